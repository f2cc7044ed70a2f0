// A layer with arithmetic so cheap that a protocol test spends its time in the protocol, and so sensitive that a wrong row, expert,
// tile, weight or order changes y. expected() computes it token by token, without ranks, lists or flags.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "cpu/executor.hpp"

namespace monomoe::cpu::fake {

const Kernels& kernels();

struct LayerShape {
  int64_t hidden = 128, intermediate = 32, experts = 8, ranks = 4;
  int64_t seed = 1;
};

Problem problem_of(const LayerShape& shape, int64_t topk, int64_t capacity);
// Even placement unless entries are given.
CpuWeights make_weights(const LayerShape& shape, std::vector<PlacementEntry> entries = {});
std::unique_ptr<CpuWorkspace> make_workspace(const LayerShape& largest, int64_t topk, int64_t capacity, int64_t max_slots);

// One rank's input and output.
struct Tokens {
  int64_t count = 0;
  std::vector<uint16_t> x;
  std::vector<int32_t> ids;
  std::vector<float> weights;
  std::vector<uint16_t> y;

  RankCall call();
};
constexpr uint16_t kUntouched = 0xABCD;  // y before the call

// ids uniform over the experts, about one in eight dropped with a NaN weight.
Tokens make_tokens(std::mt19937& random, int64_t count, int64_t topk, const LayerShape& shape);
std::vector<uint16_t> expected(const CpuWeights& weights, const Tokens& tokens, int64_t topk);

// Every rank in its own thread, those of `silent` not at all. The results in rank order; a silent rank's is success.
std::vector<Result<void>> collective(const CpuWeights& weights, CpuWorkspace& workspace, std::vector<RankCall>& calls,
                                     const RunOptions& options, uint64_t silent = 0);

}  // namespace monomoe::cpu::fake
