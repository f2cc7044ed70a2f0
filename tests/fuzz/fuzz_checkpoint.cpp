// A whole directory, one shard and its settings files, opened, checked and loaded layer by layer: refused with sentences, or every expert's
// bytes are readable. The input is the shard; its metadata holds the other files by name.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "custom_mutator.hpp"
#include "weights/checkpoint.hpp"
#include "weights/completeness.hpp"
#include "weights/router.hpp"

namespace {

using monomoe::fuzz::kSettingsFiles;

const std::string& scratch() {
  static const std::string path = [] {
    std::string made = std::string(::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp") + "/monomoe_fuzz_XXXXXX";
    if (::mkdtemp(made.data()) == nullptr) std::abort();
    static std::string to_remove;
    to_remove = made;
    std::atexit([] {
      for (const char* name : kSettingsFiles) ::unlink((to_remove + "/" + name).c_str());
      ::unlink((to_remove + "/model.safetensors").c_str());
      ::rmdir(to_remove.c_str());
    });
    return made;
  }();
  return path;
}

void write_file(const std::string& path, const void* data, size_t size) {
  FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr || std::fwrite(data, 1, size, file) != size || std::fclose(file) != 0) std::abort();
}

uint64_t sum_of(const monomoe::LocatedTensor& tensor) {
  uint64_t sum = 0;
  if (tensor.entry == nullptr) return 0;
  for (uint64_t i = 0; i < tensor.entry->bytes; ++i) sum += tensor.entry->data[i];
  return sum;
}

void use_layer(const monomoe::Checkpoint& checkpoint, const monomoe::LayerWeights& layer) {
  uint64_t sum = 0;
  for (const monomoe::ExpertSource& expert : layer.expert_sources) {
    for (const monomoe::MatrixSource* matrix : {&expert.gate, &expert.up, &expert.down})
      sum += sum_of(matrix->weight) + sum_of(matrix->scale) + sum_of(matrix->global_scale);
  }
  volatile uint64_t sink = sum;
  (void)sink;
  const auto config = checkpoint.router_config(layer);
  if (!config || !layer.router || layer.hidden > 4096) return;
  const std::vector<uint16_t> x(static_cast<size_t>(layer.hidden), 0x3F80);
  const std::vector<int64_t> token = {1};
  const auto routing =
      monomoe::route(*layer.router, config.value(), x, 1, layer.router->table == nullptr ? std::span<const int64_t>{} : token);
  if (!routing) return;
  for (const int64_t id : routing.value().ids) {
    if (id < 0 || id >= layer.router->experts) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  for (const char* name : kSettingsFiles) ::unlink((scratch() + "/" + name).c_str());
  write_file(scratch() + "/model.safetensors", data, size);
  const auto content = monomoe::parse_safetensors({data, size}, "fuzz");
  if (!content) return 0;  // fuzz_safetensors has those
  for (const char* name : kSettingsFiles) {
    const auto text = content.value().metadata.find(name);
    if (text != content.value().metadata.end()) write_file(scratch() + "/" + name, text->second.data(), text->second.size());
  }
  const auto checkpoint = monomoe::Checkpoint::open(scratch());
  if (!checkpoint) {
    if (checkpoint.error().message.find(scratch()) == std::string::npos) std::abort();
    return 0;
  }
  const monomoe::Completeness found = monomoe::check_completeness(checkpoint.value());
  for (const std::string& problem : found.problems) {
    if (problem.empty()) std::abort();
  }
  for (const monomoe::LayerSummary& summary : checkpoint.value().layers()) {
    for (const bool scan : {false, true}) {
      const auto layer = checkpoint.value().load_layer(summary.layer, {.scan_values = scan, .threads = 1});
      if (layer) use_layer(checkpoint.value(), layer.value());
      if (!layer && layer.error().message.empty()) std::abort();
    }
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return monomoe::fuzz::mutate_input(data, size, max_size, seed, monomoe::fuzz::change_checkpoint);
}
