#include "plan/layer_tag.hpp"

#include <atomic>

#include "numerics/bits.h"

namespace monomoe {
namespace {

// FNV-1a over the bytes of words.
class Hash {
 public:
  void add(uint64_t word) {
    for (int byte = 0; byte < 8; ++byte) state_ = (state_ ^ (word >> (8 * byte) & 0xFF)) * 0x100000001B3u;
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0xCBF29CE484222325u;
};

}  // namespace

uint64_t unique_layer_tag() {
  static std::atomic<uint64_t> next{1};
  return next++;
}

uint64_t world_layer_tag(const Problem& problem, const PlacementTable& placement, float swiglu_limit, uint64_t given) {
  Hash hash;
  for (const int64_t number : {problem.hidden, problem.intermediate, problem.experts, problem.ranks})
    hash.add(static_cast<uint64_t>(number));
  hash.add(float_bits(swiglu_limit));
  hash.add(given);
  const PlacementView view = placement.view();
  for (int32_t expert = 0; expert < view.experts; ++expert) {
    for (int32_t copy = view.copy_begin[expert]; copy < view.copy_begin[expert + 1]; ++copy) {
      hash.add(static_cast<uint64_t>(expert));
      hash.add(static_cast<uint64_t>(view.copies[copy].rank) << 32 | static_cast<uint32_t>(view.copies[copy].slot));
    }
  }
  return hash.value();
}

}  // namespace monomoe
