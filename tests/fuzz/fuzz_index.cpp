// Any bytes as an index and as config.json: an error or a result whose shards are plain file names.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "weights/config.hpp"
#include "weights/tensor_index.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto index = monomoe::parse_tensor_index({data, size}, "index");
  if (index) {
    for (const monomoe::IndexedTensor& item : index.value()) {
      if (item.shard.empty() || item.shard[0] == '.' || item.shard.find('/') != std::string::npos) std::abort();
    }
  }
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = monomoe::parse_model_config(text, "config.json", text, "hf_quant_config.json");
  if (config && config.value().swiglu_limit && !(*config.value().swiglu_limit > 0)) std::abort();
  return 0;
}
