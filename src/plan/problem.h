// The numbers that define a layer and its run, and the rules that make them legal. Nothing here is compiled per shape.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "plan/source_matrix.h"
#include "plan/tiles.h"

namespace monomoe {

struct Problem {
  int64_t hidden = 0;        // channels of a token; a multiple of 128
  int64_t intermediate = 0;  // channels between the two GEMMs; a multiple of 32, padded with exact zeros to 128
  int64_t experts = 0;       // routed experts of the layer, over all ranks
  int64_t topk = 0;          // slots of a token
  int64_t ranks = 1;
  int64_t capacity = 0;      // largest number of tokens one rank may bring
  WeightFormat weights = WeightFormat::kFp8;

  MONOMOE_HD constexpr int64_t hidden_blocks() const { return hidden / kBlockK; }
  MONOMOE_HD constexpr int64_t padded_intermediate() const { return round_up(intermediate, kBlockK); }
  MONOMOE_HD constexpr int64_t intermediate_blocks() const { return padded_intermediate() / kBlockK; }
  MONOMOE_HD constexpr int64_t max_routes() const { return ranks * capacity * topk; }  // equal ids in one token are legal
};

inline constexpr int64_t kMaxHidden = 65536;
inline constexpr int64_t kMaxIntermediate = 65536;
inline constexpr int64_t kMaxExperts = 1024;
inline constexpr int64_t kMaxTopk = 32;
inline constexpr int64_t kMaxRanks = 64;
inline constexpr int64_t kMaxCapacity = int64_t{1} << 20;

// The first rule a problem breaks; problem_text.hpp turns it into a sentence.
enum class ProblemRule : uint8_t { kLegal, kHidden, kIntermediate, kExperts, kTopk, kRanks, kCapacity, kFormat };

MONOMOE_HD constexpr ProblemRule broken_rule(const Problem& p) {
  if (p.hidden <= 0 || p.hidden > kMaxHidden || p.hidden % kBlockK != 0) return ProblemRule::kHidden;
  if (p.intermediate <= 0 || p.intermediate > kMaxIntermediate || p.intermediate % 32 != 0) return ProblemRule::kIntermediate;
  if (p.experts < 1 || p.experts > kMaxExperts) return ProblemRule::kExperts;
  if (p.topk < 1 || p.topk > kMaxTopk) return ProblemRule::kTopk;
  if (p.ranks < 1 || p.ranks > kMaxRanks) return ProblemRule::kRanks;
  if (p.capacity < 0 || p.capacity > kMaxCapacity) return ProblemRule::kCapacity;
  if (p.weights == WeightFormat::kBf16) return ProblemRule::kFormat;
  return ProblemRule::kLegal;
}

}  // namespace monomoe
