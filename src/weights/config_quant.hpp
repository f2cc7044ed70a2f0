// The quantisation part of config.json and hf_quant_config.json.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "weights/config.hpp"
#include "weights/text.hpp"

namespace monomoe {

std::string lower_case(std::string_view text);

// Adds what `json` states to `hints`; what an earlier file stated stays.
void read_quant_hints(const nlohmann::json& json, std::string_view file, QuantHints& hints, ProblemList& problems);

// Whether a pattern list of config.json covers a module ("layers.3.ffn.experts"): '*' matches anything; a leading "model." does not count.
bool matches_module(const std::vector<std::string>& patterns, std::string_view module);

// The algorithm that config.json states for exactly this module or one of its parents; empty if none.
std::string stated_algorithm(const QuantHints& hints, std::string_view module);

}  // namespace monomoe
