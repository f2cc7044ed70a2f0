// monomoe_pack: plan, refuse what is not exact, write shard after shard into OUT.partial, put it in place.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "layer/arguments.hpp"
#include "layer/error_state.hpp"
#include "layer/output_target.hpp"
#include "layer/pack_config.hpp"
#include "layer/pack_directory.hpp"
#include "layer/pack_shard.hpp"
#include "plan/weight_packing.h"
#include "weights/mapped_file.hpp"
#include "weights/text.hpp"

namespace monomoe::layer {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kChecksumsName = "checksums.xxh128";

// Names, sizes and times of the files that are read: what two runs of one pack must have in common.
Json source_files(const Checkpoint& checkpoint) {
  std::vector<std::string> paths;
  for (const auto& file : checkpoint.tensors().files()) paths.push_back(file->path());
  for (const char* name : {"config.json", "hf_quant_config.json", kIndexFileName}) {
    paths.push_back((fs::path(checkpoint.tensors().directory()) / name).string());
  }
  std::sort(paths.begin(), paths.end());
  Json files = Json::array();
  for (const std::string& path : paths) {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) continue;
    files.push_back({printable(fs::path(path).filename().string()), info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec});
  }
  return files;
}

class Packer {
 public:
  Packer(const Checkpoint& checkpoint, const PackRequest& request, PackPlan plan)
      : checkpoint_(checkpoint), request_(request), plan_(std::move(plan)), files_(source_files(checkpoint)) {}

  Result<std::string> run(const std::string& out);

 private:
  std::string identity() const;
  std::string place(const LayerWeights& layer) const {
    return fmt::format("{}, layer {}", printable(checkpoint_.tensors().directory()), layer.layer.label());
  }
  Result<void> check_exact(const PackDirectory& directory) const;
  Result<void> write_shards(PackDirectory& directory);
  Result<void> finish(PackDirectory& directory);
  Result<void> copy_other_files(std::map<std::string, std::string>& texts);
  void tell(int64_t shards_done, const std::string& layer) const;
  bool all_done(const PackDirectory& directory, size_t layer) const;
  std::string index_text() const;
  PackedManifest manifest(const PackDirectory& directory) const;
  std::string report(const std::string& out, const PackDirectory& directory) const;

  const Checkpoint& checkpoint_;
  const PackRequest& request_;
  PackPlan plan_;
  Json files_;
  int64_t resumed_ = 0;
  uint64_t bytes_done_ = 0;
};

std::string Packer::identity() const {
  Json layers = Json::array();
  for (const LayerWeights& layer : plan_.layers) layers.push_back(layer.layer.label());
  return Json{{"monomoe_pack", monomoe_version()},
              {"layout", kPackedLayoutVersion},
              {"to", request_.to},
              {"round", request_.allow_rounding},
              {"whole", request_.is_whole()},
              {"layers", layers},
              {"experts", request_.experts},
              {"shards", plan_.shards.size()},
              {"bytes", plan_.bytes},
              {"files", files_}}
      .dump();
}

void Packer::tell(int64_t shards_done, const std::string& layer) const {
  if (request_.callback == nullptr) return;
  monomoe_pack_progress progress{};
  progress.struct_size = sizeof(progress);
  progress.shards_done = shards_done;
  progress.shards = static_cast<int64_t>(plan_.shards.size());
  progress.shards_resumed = resumed_;
  progress.bytes_done = bytes_done_;
  progress.bytes = plan_.bytes;
  progress.layer = layer.c_str();
  request_.callback(&progress, request_.user);
}

bool Packer::all_done(const PackDirectory& directory, size_t layer) const {
  return std::ranges::all_of(plan_.shards, [&](const ShardPlan& shard) {
    return shard.layer != static_cast<int>(layer) || directory.done().contains(shard.name);
  });
}

Result<void> Packer::check_exact(const PackDirectory& directory) const {
  if (request_.allow_rounding) return {};
  for (size_t i = 0; i < plan_.layers.size(); ++i) {
    const LayerWeights& layer = plan_.layers[i];
    if (!converts(layer, request_) || all_done(directory, i)) continue;
    auto found = layer_change(layer, request_);
    if (!found) return found.error();
    const ConversionChange& change = found.value().change;
    if (change.changed == 0) continue;
    // A NaN has no exact value in any format: then the source is wrong, not the target too narrow.
    auto scanned = checkpoint_.load_layer(layer.layer, {.scan_values = true, .threads = request_.threads, .release_pages = true});
    if (!scanned) return scanned.error();
    return Error{
        Status::kCheckFailed,
        fmt::format("{}: {} of {} weights have no exact value in {} (first: tensor \"{}\", row {}, column {}: {} would become {}; worst "
                    "relative error {:.3g}); nothing more was written: set options->allow_rounding, or keep the format",
                    place(layer), change.changed, change.weights, request_.to, printable(found.value().first_tensor), change.first_row,
                    change.first_column, change.first_before, change.first_after, change.worst_relative_error)};
  }
  return {};
}

Result<void> Packer::write_shards(PackDirectory& directory) {
  std::optional<LayerWeights> loaded;  // the layer of the shard at hand, its values scanned
  int64_t shards_done = 0;
  for (const ShardPlan& shard : plan_.shards) {
    const std::string label = shard.layer < 0 ? std::string() : plan_.layers[static_cast<size_t>(shard.layer)].layer.label();
    if (directory.done().contains(shard.name)) {
      ++shards_done;
      bytes_done_ += shard.bytes;
      continue;
    }
    if (shard.layer >= 0 && (!loaded || loaded->layer != plan_.layers[static_cast<size_t>(shard.layer)].layer)) {
      const LayerId id = plan_.layers[static_cast<size_t>(shard.layer)].layer;
      auto layer = checkpoint_.load_layer(id, {.scan_values = true, .threads = request_.threads, .release_pages = true});
      if (!layer) return layer.error();
      loaded = layer.take();
      checkpoint_.tensors().release_pages();
    }
    tell(shards_done, label);
    const auto progress = [&](uint64_t bytes) {
      bytes_done_ += bytes;
      tell(shards_done, label);
    };
    auto record = write_shard(shard, shard.layer < 0 ? nullptr : &*loaded, request_, directory.file(shard.name), progress);
    if (!record) return record.error();
    if (auto kept = directory.record(record.take()); !kept) return kept;
    tell(++shards_done, label);
  }
  return {};
}

std::string Packer::index_text() const {
  nlohmann::json weight_map = nlohmann::json::object();
  for (const ShardPlan& shard : plan_.shards) {
    for (const TensorSpec& spec : shard.specs) weight_map[spec.name] = shard.name;
  }
  return nlohmann::json{{"metadata", {{"total_size", plan_.bytes}}}, {"weight_map", weight_map}}.dump(
             2, ' ', false, nlohmann::json::error_handler_t::replace) +
         "\n";
}

PackedManifest Packer::manifest(const PackDirectory& directory) const {
  PackedManifest out;
  for (const ShardPlan& shard : plan_.shards) {
    const LayerWeights& layer = plan_.layers[static_cast<size_t>(shard.layer)];
    const ShardRecord& done = directory.done().at(shard.name);
    PackedLayerRecord& record = out.layers[layer.layer.label()];
    record.prefix = layer.prefix;
    record.format = layer.format;
    record.hidden = layer.hidden;
    record.intermediate = layer.intermediate;
    record.checksums.insert(record.checksums.end(), done.expert_checksums.begin(), done.expert_checksums.end());
    record.tensor_checksums.insert(done.tensor_checksums.begin(), done.tensor_checksums.end());
    if (!shard.packs_shared) continue;
    record.shared_format = layer.shared_format;
    record.shared_intermediate = layer.shared->gate.rows;
    record.shared_checksum = done.shared_checksum;
  }
  return out;
}

// Why a file of the source is not copied, as the rest of a sentence; empty: it is. No words for what is written anew.
std::string left_out(const fs::path& path) {
  constexpr uintmax_t kLargest =
      uintmax_t{64} << 20;  // settings and tokenizers are smaller; what is not belongs to another format of the weights
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::is_directory(status)) return "is a directory";
  if (fs::is_symlink(fs::symlink_status(path, ignored)) && !fs::exists(status)) return "is a link to nothing";
  if (!fs::is_regular_file(status)) return "is not a regular file";
  const std::string name = path.filename().string();
  if (name.ends_with(".safetensors")) return "is not among the checkpoint's shards";
  if (name == kJournalName || name == kPackedManifestName) return "is of another pack";
  return fs::file_size(path, ignored) > kLargest ? "is larger than 64 MiB" : "";
}

// Tokenizer, generation settings and the like: a whole checkpoint stays one that other engines can load.
Result<void> Packer::copy_other_files(std::map<std::string, std::string>& texts) {
  std::set<std::string> replaced = {kIndexFileName, "config.json", "hf_quant_config.json", kChecksumsName};
  for (const auto& file : checkpoint_.tensors().files()) replaced.insert(fs::path(file->path()).filename().string());
  std::set<fs::path> others;  // sorted, so that the notes are
  std::error_code code;
  for (fs::directory_iterator it(checkpoint_.tensors().directory(), code), end; !code && it != end; it.increment(code)) {
    const std::string name = it->path().filename().string();
    if (name[0] != '.' && !replaced.contains(name)) others.insert(it->path());
  }
  if (code) return bad_input(fmt::format("cannot read the directory {}: {}", printable(checkpoint_.tensors().directory()), code.message()));
  for (const fs::path& path : others) {
    const std::string name = path.filename().string(), why = left_out(path);
    if (!why.empty()) {
      plan_.notes.push_back(fmt::format("{} {} and was not copied", printable(name), why));
      continue;
    }
    auto map = MappedFile::open(path.string());
    if (!map) return map.error();
    texts[name].assign(reinterpret_cast<const char*>(map.value().bytes().data()), map.value().bytes().size());
  }
  return {};
}

Result<void> Packer::finish(PackDirectory& directory) {
  std::map<std::string, std::string> texts;
  if (request_.is_whole()) {
    if (auto copied = copy_other_files(texts); !copied) return copied;
  }
  auto config = pack_config(checkpoint_, request_, plan_);
  if (!config) return config.error();
  if (!config.value().empty()) texts["config.json"] = config.take();
  texts[kIndexFileName] = index_text();
  if (!request_.format) texts[kPackedManifestName] = packed_manifest_text(manifest(directory));
  std::string checksums;
  for (const auto& [name, shard] : directory.done()) checksums += fmt::format("{}  {}\n", shard.checksum, name);
  for (const auto& [name, text] : texts) {
    checksums += fmt::format("{}  {}\n", checksum_text({reinterpret_cast<const uint8_t*>(text.data()), text.size()}), name);
  }
  texts[kChecksumsName] = checksums;
  for (const auto& [name, text] : texts) {
    if (auto written = write_text(directory.file(name), text); !written) return written;
  }
  if (source_files(checkpoint_) != files_) {
    return bad_input(fmt::format("{}: its files changed while they were read; remove {} and pack again",
                                 printable(checkpoint_.tensors().directory()), printable(directory.path().string())));
  }
  return directory.put_in_place();
}

std::string Packer::report(const std::string& out, const PackDirectory& directory) const {
  ConversionChange change;
  std::string first_tensor;
  for (const ShardPlan& shard : plan_.shards) {
    const ShardRecord& done = directory.done().at(shard.name);
    if (change.first_row < 0) first_tensor = done.first_tensor;
    change.add(done.change);
  }
  Json layers = Json::array();
  for (const LayerWeights& layer : plan_.layers) layers.push_back(layer.layer.label());
  const size_t experts = request_.experts.empty() ? plan_.layers.front().experts.size() : request_.experts.size();
  Json json = {{"directory", checkpoint_.tensors().directory()},
               {"output", out},
               {"to", request_.to},
               {"whole", request_.is_whole()},
               {"layers", layers},
               {"experts", experts},
               {"shards", plan_.shards.size()},
               {"shards_resumed", resumed_},
               {"bytes", plan_.bytes}};
  if (request_.format) {
    const double weights = static_cast<double>(std::max<int64_t>(change.weights, 1));
    json["weights"] = {{"converted", change.weights},
                       {"changed", change.changed},
                       {"underflows", change.underflows},
                       {"worst_relative_error", change.worst_relative_error},
                       {"rms_relative_error", std::sqrt(change.squared_relative_error / weights)}};
    if (change.changed > 0) {
      json["weights"]["first_changed"] = {{"tensor", printable(first_tensor)},
                                          {"row", change.first_row},
                                          {"column", change.first_column},
                                          {"before", change.first_before},
                                          {"after", change.first_after}};
    }
  }
  json["notes"] = plan_.notes;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<std::string> Packer::run(const std::string& out) {
  fs::path target = fs::path(out).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();  // "out/"
  auto opened = PackDirectory::open(target, identity());
  if (!opened) return opened.error();
  PackDirectory& directory = opened.value();
  resumed_ = static_cast<int64_t>(directory.done().size());
  for (const std::string& name : directory.damaged()) {
    plan_.notes.push_back(
        fmt::format("{} of an earlier run does not have the size and checksum that the journal states; it is damaged and was written again",
                    printable(name)));
  }
  uint64_t missing = 0;
  for (const ShardPlan& shard : plan_.shards) missing += directory.done().contains(shard.name) ? 0 : shard.bytes;
  if (auto enough = check_space(directory.path(), missing, "pack fewer layers or experts"); !enough) return enough.error();
  if (auto exact = check_exact(directory); !exact) return exact.error();
  if (auto written = write_shards(directory); !written) return written.error();
  if (auto done = finish(directory); !done) return done.error();
  return report(out, directory);
}

Result<void> check_apart(const std::string& directory, const std::string& out) {
  std::error_code ignored;
  const fs::path source = fs::weakly_canonical(directory, ignored), target = fs::weakly_canonical(out, ignored);
  if (source.empty() || target.empty()) return {};
  if (std::mismatch(source.begin(), source.end(), target.begin(), target.end()).first != source.end()) return {};
  return usage_error(fmt::format("{} is inside the checkpoint {}; name a directory outside it", printable(out), printable(directory)));
}

}  // namespace
}  // namespace monomoe::layer

using namespace monomoe;
using namespace monomoe::layer;

extern "C" monomoe_status monomoe_pack(const char* directory, const char* out, const monomoe_pack_options* options, char** json) {
  return guarded([&]() -> Result<void> {
    if (auto given = require_pointer(directory, "directory"); !given) return given;
    if (auto given = require_pointer(out, "out"); !given) return given;
    if (auto given = require_struct(options, "options"); !given) return given;
    if (auto given = require_pointer(json, "json"); !given) return given;
    if (*out == '\0') return usage_error("out is an empty name; name the directory to write");
    auto request = read_pack_request(*options);
    if (!request) return request.error();
    if (auto apart = check_apart(directory, out); !apart) return apart;
    auto checkpoint = Checkpoint::open(directory);
    if (!checkpoint) return checkpoint.error();
    auto plan = make_pack_plan(checkpoint.value(), request.value());
    if (!plan) return plan.error();
    auto report = Packer(checkpoint.value(), request.value(), plan.take()).run(out);
    if (!report) return report.error();
    *json = caller_text(report.value());
    return {};
  });
}
