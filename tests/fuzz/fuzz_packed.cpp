// Any bytes as monomoe_packed.json: an error, or entries within the rules that are written back as they were read.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "custom_mutator.hpp"
#include "plan/problem.h"
#include "weights/packed_manifest.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto parsed = monomoe::parse_packed_manifest({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!parsed) {
    if (!parsed.error().message.starts_with("fuzz: ")) std::abort();
    return 0;
  }
  for (const auto& [label, record] : parsed.value().layers) {
    if (record.hidden < 1 || record.hidden > monomoe::kMaxHidden || record.intermediate < 1 ||
        record.intermediate > monomoe::kMaxIntermediate)
      std::abort();
    if (record.checksums.empty() || record.checksums.size() > static_cast<size_t>(monomoe::kMaxExperts)) std::abort();
    if (record.format == monomoe::WeightFormat::kBf16) std::abort();
  }
  const std::string text = monomoe::packed_manifest_text(parsed.value());
  const auto again = monomoe::parse_packed_manifest(text, "fuzz");
  if (!again || again.value().layers.size() != parsed.value().layers.size() || monomoe::packed_manifest_text(again.value()) != text)
    std::abort();
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return monomoe::fuzz::mutate_input(data, size, max_size, seed, monomoe::fuzz::change_manifest);
}
