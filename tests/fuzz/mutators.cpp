// See mutators.hpp.
#include "mutators.hpp"

#include <string_view>

#include "checkpoint_seeds.hpp"
#include "config_words.hpp"
#include "tensor_file.hpp"
#include "weights/packed_manifest.hpp"

namespace monomoe::fuzz {
namespace {

constexpr const char* kShardSeed =
    R"({"__metadata__":{"format":"pt"},"layers.0.ffn.experts.0.w1.weight":{"dtype":"F8_E4M3","shape":[2,4],"data_offsets":[0,8]},)"
    R"("layers.0.ffn.experts.0.w1.scale":{"dtype":"F32","shape":[1,1],"data_offsets":[8,12]},"f4":{"dtype":"F4","shape":[2,2],"data_offsets":[12,14]}})";
constexpr const char* kIndexSeed =
    R"({"metadata":{"total_size":12},"weight_map":{"layers.0.ffn.experts.0.w1.weight":"a.safetensors","b":"model-00001-of-00002.safetensors"}})";
constexpr const char* kManifestSeed =
    R"({"monomoe_packed":3,"layout":1,"checksum":"xxh3-128","layers":{"0":{"prefix":"layers.0.ffn.","format":"nvfp4","hidden":4096,"intermediate":2048,)"
    R"("experts":["00000000000000000000000000000000","11111111111111111111111111111111"],"shared_expert":{"format":"fp8","intermediate":2048,)"
    R"("checksum":"22222222222222222222222222222222"},"tensors":{"layers.0.ffn.gate.weight":"3"},"checksum":"x"},"mtp.0":{"prefix":"mtp.0.ffn.",)"
    R"("format":"mxfp4","hidden":128,"intermediate":128,"experts":["a"],"tensors":{},"checksum":"x"}}})";

const Vocabulary kIndexWords = {
    {"weight_map", "metadata", "total_size", "layers.0.ffn.experts.0.w1.weight", "b"},
    {"a.safetensors", ".safetensors", "model-00001-of-00002.safetensors", "../", "/etc/passwd", "a\\b", ".hidden"}};
const Vocabulary kManifestWords = {
    {"monomoe_packed", "layout", "checksum", "layers", "0", "mtp.0", "prefix", "format", "hidden", "intermediate", "experts",
     "shared_expert", "tensors", "layers.0.ffn.gate.weight"},
    {"xxh3-128", "nvfp4", "mxfp4", "fp8", "bf16", "layers.0.ffn.", "1", "99999", "100000", "mtp.", "00", "../"}};

// The bytes as JSON, or the seed where they are none.
Json parse_or(std::string_view text, const char* seed) {
  Json parsed = Json::parse(text, nullptr, false);
  return parsed.is_discarded() ? Json::parse(seed) : parsed;
}

std::string_view text_of(const uint8_t* data, size_t size) { return {reinterpret_cast<const char*>(data), size}; }

// A wrong checksum hides every other fault, and its refusal tells the right one: put in, so that the fuzzer gets past it.
std::string with_checksums(Json document, Random& random) {
  std::string text = write_json(document, random);
  for (int round = 0; round < 4 && document.is_object() && document.contains("layers") && document["layers"].is_object(); ++round) {
    const auto parsed = parse_packed_manifest(text, "fuzz");
    if (parsed) return text;
    const std::string& message = parsed.error().message;
    constexpr std::string_view kLayer = "fuzz: layer ", kFound = ": its fields have the checksum ";
    const size_t at = message.find(kFound);
    if (at == std::string::npos || !message.starts_with(kLayer)) return text;
    const std::string label = message.substr(kLayer.size(), at - kLayer.size());
    if (!document["layers"].contains(label) || !document["layers"][label].is_object()) return text;
    document["layers"][label]["checksum"] = message.substr(at + kFound.size(), 32);
    text = document.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  return text;
}

}  // namespace

std::string change_shard(const uint8_t* data, size_t size, uint64_t seed) {
  Random random(seed);
  std::optional<TensorFile> file = split_file(data, size);
  if (!file) {
    file.emplace();
    file->header = Json::parse(kShardSeed);
    lay_out(*file, random);
  }
  mutate_file(*file, random);
  return join_file(*file, random);
}

std::string change_index(const uint8_t* data, size_t size, uint64_t seed) {
  Random random(seed);
  Json document = parse_or(text_of(data, size), kIndexSeed);
  mutate_json(document, kIndexWords, random);
  return write_json(document, random);
}

std::string change_settings(const uint8_t* data, size_t size, uint64_t seed) {
  Random random(seed);
  const std::string_view all = text_of(data, size), between = kBetweenFiles;
  const size_t at = all.find(between);
  Json config = parse_or(all.substr(0, at), kConfigSeed);
  Json quant = parse_or(at == std::string_view::npos ? std::string_view() : all.substr(at + between.size()), kQuantSeed);
  mutate_json(random.one_in(2) ? config : quant, kConfigWords, random);
  return write_json(config, random) + (random.one_in(20) ? std::string() : std::string(between) + write_json(quant, random));
}

std::string change_manifest(const uint8_t* data, size_t size, uint64_t seed) {
  Random random(seed);
  Json document = parse_or(text_of(data, size), kManifestSeed);
  mutate_json(document, kManifestWords, random);
  return random.one_in(10) ? write_json(document, random) : with_checksums(std::move(document), random);
}

std::string change_checkpoint(const uint8_t* data, size_t size, uint64_t seed) {
  Random random(seed);
  std::optional<TensorFile> file = split_file(data, size);
  if (!file || random.one_in(50)) file = checkpoint_seed(random);
  Json& metadata = file->header["__metadata__"];
  if (metadata.is_object() && random.one_in(3)) {
    const char* name = random.pick(kSettingsFiles);
    const bool has_text = metadata.contains(name) && metadata[name].is_string();
    Json settings = has_text ? Json::parse(metadata[name].get_ref<const std::string&>(), nullptr, false) : Json::object();
    if (settings.is_discarded()) settings = Json::parse(kConfigSeed);
    mutate_json(settings, kConfigWords, random);
    metadata[name] = write_json(settings, random);
  } else {
    mutate_file(*file, random);
  }
  return join_file(*file, random);
}

}  // namespace monomoe::fuzz
