// JSON files of a checkpoint (config.json, the index) read strictly: duplicate keys and deep nesting are refused.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace monomoe {

constexpr int kMaxJsonDepth = 64;
constexpr size_t kMaxJsonBytes = 100'000'000;

// Python's bare NaN, Infinity and -Infinity are accepted and become the strings "NaN", "Infinity" and "-Infinity".
Result<nlohmann::json> parse_json_strict(std::string_view text, std::string_view file);

}  // namespace monomoe
