// Written and read here alone. Read as hostile input: every number is held against the rules before it sizes anything.
#include "weights/packed_manifest.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "plan/problem.h"
#include "plan/problem_text.hpp"
#include "plan/weight_packing.h"
#include "weights/checksum.hpp"
#include "weights/json_text.hpp"
#include "weights/mapped_file.hpp"
#include "weights/names.hpp"
#include "weights/text.hpp"

namespace monomoe {
namespace {

using nlohmann::json;

constexpr int kManifestVersion = 3;
constexpr const char* kChecksumKind = "xxh3-128";

// Of all fields of a layer's entry but "checksum" itself, keys sorted, with the layer's number: a size that is wrong by less than a padding
// step fits the same tensors, so nothing else would find it.
std::string entry_checksum(const std::string& label, json entry) {
  entry.erase("checksum");
  const std::string text = json{label, std::move(entry)}.dump(-1, ' ', false, json::error_handler_t::replace);
  return checksum_text({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
}

// Reads the fields of one object; the first that is wrong is kept as a sentence.
class Reader {
 public:
  Reader(const json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const json* get(const char* key, json::value_t type, const char* wanted) {
    const auto found = object_.is_object() ? object_.find(key) : object_.end();
    if (found != object_.end() && found->type() == type) return &*found;
    if (wrong_.empty()) wrong_ = fmt::format("{}: \"{}\" is missing or wrong, wanted {}", where_, key, wanted);
    return nullptr;
  }
  int64_t number(const char* key, int64_t most) {
    const json* value = get(key, json::value_t::number_unsigned, "a whole number");
    if (value == nullptr) return 0;
    const auto number = value->get<uint64_t>();
    if (number >= 1 && number <= static_cast<uint64_t>(most)) return static_cast<int64_t>(number);
    if (wrong_.empty()) wrong_ = fmt::format("{}: \"{}\" is {}, wanted 1 to {}", where_, key, number, most);
    return 0;
  }
  std::string word(const char* key) {
    const json* value = get(key, json::value_t::string, "a string");
    return value == nullptr ? std::string() : value->get<std::string>();
  }
  WeightFormat format(const char* key) {
    const std::string written = word(key);
    const std::optional<WeightFormat> format = weight_format_from_text(written);
    if ((!format || *format == WeightFormat::kBf16) && wrong_.empty())
      wrong_ = fmt::format("{}: \"{}\" is \"{}\", wanted fp8, nvfp4 or mxfp4", where_, key, printable(written));
    return format.value_or(WeightFormat::kFp8);
  }
  const std::string& wrong() const { return wrong_; }

 private:
  const json& object_;
  std::string where_, wrong_;
};

Result<PackedLayerRecord> read_layer(const json& object, const std::string& label, const std::string& where) {
  Reader reader(object, where);
  PackedLayerRecord record;
  record.prefix = reader.word("prefix");
  record.format = reader.format("format");
  record.hidden = reader.number("hidden", kMaxHidden);
  record.intermediate = reader.number("intermediate", kMaxIntermediate);
  if (const json* checksums = reader.get("experts", json::value_t::array, "a list of checksums")) {
    for (const json& item : *checksums) record.checksums.push_back(item.is_string() ? item.get<std::string>() : std::string());
    if (record.checksums.empty() || record.checksums.size() > static_cast<size_t>(kMaxExperts)) {
      return bad_input(fmt::format("{}: \"experts\" has {} entries, wanted 1 to {}", where, record.checksums.size(), kMaxExperts));
    }
  }
  if (object.is_object() && object.contains("shared_expert")) {
    Reader shared(object["shared_expert"], where + ", shared_expert");
    record.shared_format = shared.format("format");
    record.shared_intermediate = shared.number("intermediate", kMaxIntermediate);
    record.shared_checksum = shared.word("checksum");
    if (!shared.wrong().empty()) return bad_input(shared.wrong());
  }
  if (const json* tensors = reader.get("tensors", json::value_t::object, "an object of checksums")) {
    for (const auto& [name, checksum] : tensors->items())
      record.tensor_checksums.emplace(name, checksum.is_string() ? checksum.get<std::string>() : std::string());
  }
  const std::string stated = reader.word("checksum");
  if (!reader.wrong().empty()) return bad_input(reader.wrong());
  if (const std::string found = entry_checksum(label, object); found != stated) {
    return bad_input(fmt::format("{}: its fields have the checksum {}, \"checksum\" states \"{}\": the file is damaged or was edited",
                                 where, found, printable(stated)));
  }
  return record;
}

}  // namespace

Result<PackedManifest> parse_packed_manifest(std::string_view text, std::string_view file) {
  Result<json> parsed = parse_json_strict(text, file);
  if (!parsed) return parsed.error();
  const json& root = parsed.value();
  const std::string name = printable(file);
  Reader reader(root, name);
  const int64_t version = reader.number("monomoe_packed", 1'000'000), layout = reader.number("layout", 1'000'000);
  const json* layers = reader.get("layers", json::value_t::object, "an object of layers");
  if (!reader.wrong().empty()) return bad_input(reader.wrong() + "; pack the checkpoint again");
  if (version != kManifestVersion || layout != kPackedLayoutVersion) {
    return bad_input(
        fmt::format("{}: packed in version {}, layout {}; this library reads version {}, layout {}: pack the checkpoint again with it",
                    name, version, layout, kManifestVersion, kPackedLayoutVersion));
  }
  const std::string kind = reader.word("checksum");
  if (!reader.wrong().empty()) return bad_input(reader.wrong() + "; pack the checkpoint again");
  if (kind != kChecksumKind) {
    return bad_input(
        fmt::format("{}: \"checksum\" is \"{}\", wanted \"{}\"; pack the checkpoint again", name, printable(kind), kChecksumKind));
  }
  PackedManifest manifest;
  manifest.file = file;
  for (const auto& [label, object] : layers->items()) {
    if (!layer_from_label(label)) {
      return bad_input(
          fmt::format("{}: \"{}\" is no layer, wanted a number or mtp.NUMBER; pack the checkpoint again", name, printable(label)));
    }
    Result<PackedLayerRecord> record = read_layer(object, label, fmt::format("{}: layer {}", name, label));
    if (!record) return bad_input(record.error().message + "; pack the checkpoint again");
    manifest.layers.emplace(label, record.take());
  }
  return manifest;
}

Result<PackedManifest> read_packed_manifest(const std::string& directory) {
  const std::string path = (std::filesystem::path(directory) / kPackedManifestName).string();
  std::error_code error;
  if (!std::filesystem::exists(std::filesystem::symlink_status(path, error))) return PackedManifest{};
  Result<MappedFile> map = MappedFile::open(path);
  if (!map) return map.error();
  const std::span<const uint8_t> bytes = map.value().bytes();
  if (bytes.empty()) return bad_input(fmt::format("{} is empty; pack the checkpoint again", printable(path)));
  return parse_packed_manifest({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

std::string packed_manifest_text(const PackedManifest& manifest) {
  nlohmann::ordered_json layers = nlohmann::ordered_json::object();
  for (const auto& [label, record] : manifest.layers) {
    nlohmann::ordered_json layer = {{"prefix", record.prefix},
                                    {"format", weight_format_text(record.format)},
                                    {"hidden", record.hidden},
                                    {"intermediate", record.intermediate},
                                    {"experts", record.checksums}};
    if (!record.shared_checksum.empty()) {
      layer["shared_expert"] = {{"format", weight_format_text(record.shared_format)},
                                {"intermediate", record.shared_intermediate},
                                {"checksum", record.shared_checksum}};
    }
    layer["tensors"] = nlohmann::ordered_json::object();
    for (const auto& [name, checksum] : record.tensor_checksums) layer["tensors"][name] = checksum;
    layer["checksum"] = entry_checksum(label, layer);
    layers[label] = std::move(layer);
  }
  const nlohmann::ordered_json root = {
      {"monomoe_packed", kManifestVersion}, {"layout", kPackedLayoutVersion}, {"checksum", kChecksumKind}, {"layers", std::move(layers)}};
  return root.dump(1) + "\n";
}

}  // namespace monomoe
