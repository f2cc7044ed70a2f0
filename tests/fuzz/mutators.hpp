// One structure-aware change of an input for each target: bytes in, the new input out. Bytes that are no sound document are replaced by
// one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace monomoe::fuzz {

using Mutator = std::string (*)(const uint8_t* data, size_t size, uint64_t seed);

std::string change_shard(const uint8_t* data, size_t size, uint64_t seed);
std::string change_index(const uint8_t* data, size_t size, uint64_t seed);
std::string change_settings(const uint8_t* data, size_t size, uint64_t seed);  // config.json, kBetweenFiles, hf_quant_config.json
std::string change_manifest(const uint8_t* data, size_t size, uint64_t seed);
std::string change_checkpoint(const uint8_t* data, size_t size, uint64_t seed);  // a shard whose metadata holds kSettingsFiles

inline constexpr const char* kBetweenFiles = "\n\n";
inline constexpr const char* kSettingsFiles[] = {"config.json", "hf_quant_config.json", "monomoe_packed.json",
                                                 "model.safetensors.index.json"};

}  // namespace monomoe::fuzz
