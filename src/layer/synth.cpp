// monomoe_synth: a checkpoint written beside OUT under a temporary name and renamed when all of it is there.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/partial_name.hpp"
#include "layer/arguments.hpp"
#include "layer/error_state.hpp"
#include "layer/output_target.hpp"
#include "layer/synth_tensors.hpp"
#include "monomoe/checkpoint.h"
#include "plan/problem.h"
#include "weights/tensor_set.hpp"
#include "weights/text.hpp"

namespace monomoe::layer {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kShardBytes = 2'000'000'000;
constexpr int64_t kMaxSynthLayers = 1000;
constexpr int64_t kMaxSynthTokens = int64_t{1} << 24;

// The directory under construction, new beside the target under a name of its own: removed, with parents made for it, unless it was put
// in place.
class PartialDirectory {
 public:
  static Result<PartialDirectory> create(const fs::path& wanted) {
    auto target = usable_target(wanted);
    if (!target) return target.error();
    PartialDirectory directory;
    directory.target_ = target.take();
    if (auto made = directory.make_parents(directory.target_.parent_path()); !made) return made.error();
    std::error_code code;
    bool made = false;
    for (int attempt = 0; attempt < kPartialAttempts && !made && !code; ++attempt) {
      directory.partial_ = partial_name(directory.target_.string());
      made = fs::create_directory(directory.partial_, code);  // false without a code: the name is taken
    }
    if (!made) return bad_input(fmt::format("cannot create {}: {}", printable(directory.partial_.string()), code.message()));
    directory.owned_ = true;
    return directory;
  }
  PartialDirectory(PartialDirectory&& other) noexcept
      : target_(std::move(other.target_)),
        partial_(std::move(other.partial_)),
        parents_(std::exchange(other.parents_, {})),
        owned_(std::exchange(other.owned_, false)) {}
  PartialDirectory& operator=(PartialDirectory&&) = delete;
  ~PartialDirectory() {
    std::error_code ignored;
    if (owned_) fs::remove_all(partial_, ignored);
    for (; !parents_.empty(); parents_.pop_back()) fs::remove(parents_.back(), ignored);  // refused where others have put something
  }

  const fs::path& path() const { return partial_; }
  std::string file(const std::string& name) const { return (partial_ / name).string(); }
  Result<void> put_in_place() {
    std::error_code code;
    fs::rename(partial_, target_, code);  // replaces an empty directory
    if (code)
      return bad_input(
          fmt::format("cannot rename {} to {}: {}", printable(partial_.string()), printable(target_.string()), code.message()));
    owned_ = false;
    parents_.clear();
    return {};
  }

 private:
  PartialDirectory() = default;

  Result<void> make_parents(const fs::path& parent) {
    std::error_code code, ignored;
    if (parent.empty() || fs::is_directory(parent, ignored)) return {};
    if (auto made = make_parents(parent.parent_path()); !made) return made;
    if (fs::create_directory(parent, code)) {
      parents_.push_back(parent);
    } else if (!fs::is_directory(parent, ignored)) {
      return bad_input(fmt::format("cannot create directory {}: {}", printable(parent.string()),
                                   code ? code.message() : "a file has that name"));
    }
    return {};
  }

  fs::path target_, partial_;
  std::vector<fs::path> parents_;  // made here, outermost first
  bool owned_ = false;
};

Result<void> write_tensors(const std::string& path, std::span<const SynthTensor> tensors, uint64_t seed) {
  std::vector<TensorSpec> specs;
  for (const SynthTensor& tensor : tensors) specs.push_back(tensor.spec);
  auto writer = SafetensorsWriter::create(path, std::move(specs), {{"format", "pt"}});
  if (!writer) return writer.error();
  const Sink sink = [&](std::span<const uint8_t> bytes) { return writer.value().append(bytes); };
  for (const SynthTensor& tensor : tensors) {
    if (auto filled = fill_tensor(tensor.fill, tensor_key(seed, tensor.spec.name), tensor.bytes, sink); !filled) return filled;
  }
  return writer.value().finish();
}

// Consecutive tensors by shard: at most kShardBytes each, unless one tensor alone is larger.
std::vector<std::span<const SynthTensor>> split_into_shards(std::span<const SynthTensor> tensors) {
  std::vector<std::span<const SynthTensor>> shards;
  size_t begin = 0;
  uint64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (i > begin && bytes + tensors[i].bytes > kShardBytes) {
      shards.push_back(tensors.subspan(begin, i - begin));
      begin = i;
      bytes = 0;
    }
    bytes += tensors[i].bytes;
  }
  shards.push_back(tensors.subspan(begin));
  return shards;
}

Result<void> write_checkpoint(const PartialDirectory& out, std::span<const SynthTensor> tensors, uint64_t seed) {
  const auto shards = split_into_shards(tensors);
  nlohmann::json weight_map = nlohmann::json::object();
  uint64_t total = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    if (auto written = write_tensors(out.file(name), shards[i], seed); !written) return written;
    for (const SynthTensor& tensor : shards[i]) {
      weight_map[tensor.spec.name] = name;
      total += tensor.bytes;
    }
  }
  const nlohmann::json index = {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
  return write_text(out.file(kIndexFileName), index.dump(2) + "\n");
}

std::string geometry_names() {
  std::string names;
  for (const Geometry& geometry : geometries()) names += (names.empty() ? "" : ", ") + std::string(geometry.name);
  return names;
}

struct SynthRequest {
  const Geometry* geometry;
  SynthShape shape;
  int64_t tokens;
};

Result<SynthRequest> read_request(const monomoe_synth_options& options) {
  if (auto given = require_pointer(options.geometry, "options->geometry"); !given) return given.error();
  const Geometry* geometry = find_geometry(options.geometry);
  if (geometry == nullptr) {
    return usage_error(fmt::format("options->geometry is '{}', wanted one of: {}", printable(options.geometry), geometry_names()));
  }
  auto format = format_from_abi(options.format, "options->format");
  if (!format) return format.error();
  if (format.value() == WeightFormat::kBf16) return usage_error("options->format is bf16, wanted fp8, nvfp4 or mxfp4");
  const int64_t layers = options.num_layers == 0 ? 1 : options.num_layers;
  const int64_t experts = options.num_experts == 0 ? geometry->experts : options.num_experts;
  const int64_t tokens = options.num_tokens == 0 ? 64 : options.num_tokens;
  if (layers < 1 || layers > kMaxSynthLayers)
    return usage_error(fmt::format("options->num_layers is {}, wanted 1..{}", layers, kMaxSynthLayers));
  if (experts < 1 || experts > kMaxExperts)
    return usage_error(fmt::format("options->num_experts is {}, wanted 1..{}", experts, kMaxExperts));
  if (tokens < 1 || tokens > kMaxSynthTokens)
    return usage_error(fmt::format("options->num_tokens is {}, wanted 1..{}", tokens, kMaxSynthTokens));
  return SynthRequest{geometry, {layers, experts, format.value()}, tokens};
}

Result<void> synthesise(const std::string& directory, const SynthRequest& request, uint64_t seed) {
  fs::path target = fs::path(directory).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();  // "out/"
  const std::vector<SynthTensor> tensors = checkpoint_tensors(*request.geometry, request.shape);
  const std::vector<SynthTensor> input = input_tensors(*request.geometry, request.tokens);
  auto out = PartialDirectory::create(target);
  if (!out) return out.error();
  uint64_t bytes = 0;
  for (const SynthTensor& tensor : tensors) bytes += tensor.bytes;
  for (const SynthTensor& tensor : input) bytes += tensor.bytes;
  if (auto enough = check_space(out.value().path(), bytes, "ask for fewer layers or experts"); !enough) return enough;
  if (auto written = write_checkpoint(out.value(), tensors, seed); !written) return written;
  if (auto written = write_text(out.value().file("config.json"), synth_config(*request.geometry, request.shape)); !written) return written;
  if (auto written = write_tensors(out.value().file("input.safetensors"), input, seed); !written) return written;
  return out.value().put_in_place();
}

}  // namespace
}  // namespace monomoe::layer

using namespace monomoe;
using namespace monomoe::layer;

extern "C" {

monomoe_status monomoe_synth(const char* directory, const monomoe_synth_options* options) {
  return guarded([&]() -> Result<void> {
    if (auto given = require_pointer(directory, "directory"); !given) return given;
    if (auto given = require_struct(options, "options"); !given) return given;
    if (*directory == '\0') return usage_error("directory is an empty name; name the directory to write");
    auto request = read_request(*options);
    if (!request) return request.error();
    return synthesise(directory, request.value(), options->seed);
  });
}

int32_t monomoe_synth_topk(const char* geometry) {
  const Geometry* found = geometry == nullptr ? nullptr : find_geometry(geometry);
  return found == nullptr ? -1 : static_cast<int32_t>(found->topk);
}

const char* const* monomoe_synth_geometries(void) {
  static const char* const* const names = [] {
    constexpr size_t kMost = 32;
    static const char* list[kMost + 1] = {};
    size_t count = 0;
    for (const Geometry& geometry : geometries()) list[count++] = geometry.name;
    return static_cast<const char* const*>(list);
  }();
  return names;
}

}  // extern "C"
