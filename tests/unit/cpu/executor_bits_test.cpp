// The executor with the real kernels gives the contract's bits: for every format, rank count, placement, capacity, thread count
// and vector width, and whatever the workspace held before.
#include <gtest/gtest.h>

#include <algorithm>

#include "cpu/executor.hpp"
#include "reference/case_line.hpp"
#include "reference/contract_layer.hpp"
#include "reference/random_layer.hpp"
#include "weights/pack_expert.hpp"

namespace monomoe::cpu {
namespace {

struct Setting {
  int32_t threads;
  int32_t vector_bits;
  int64_t more_capacity;
};

Result<CpuWeights> pack(const Case& c, const RandomLayer& layer) {
  auto placement = placement_of(c);
  if (!placement) return placement.error();
  auto weights = CpuWeights::create(c.problem, placement.take(), c.limit);
  if (!weights) return weights.error();
  const std::vector<SourceExpert> sources = layer.sources();
  for (size_t expert = 0; expert < sources.size(); ++expert) {
    const auto packed = pack_expert(sources[expert], c.problem, weights.value().expert_data(static_cast<int32_t>(expert)));
    if (!packed) return packed.error();
  }
  return weights;
}

// The rows of all ranks in one array, as the case deals them out.
std::vector<uint16_t> run(const Case& c, const RandomLayer& layer, const CpuWeights& weights, const Setting& setting) {
  Problem room = c.problem;
  room.capacity += setting.more_capacity;
  auto workspace = CpuWorkspace::create(room, weights.placement().max_slots());
  EXPECT_TRUE(workspace.ok());
  workspace.value()->poison_bytes(0xFF);
  std::vector<uint16_t> y(c.tokens * c.problem.hidden, 0xABCD);
  std::vector<RankCall> calls;
  int64_t first = 0;
  for (int64_t count : c.rows) {
    RankCall call;
    call.num_tokens = count;
    call.x = layer.x.data() + first * c.problem.hidden;
    call.wide_ids = true;
    call.topk_ids = layer.ids.data() + first * c.problem.topk;
    call.topk_weights = layer.weights.data() + first * c.problem.topk;
    call.y = y.data() + first * c.problem.hidden;
    calls.push_back(call);
    first += count;
  }
  const auto result = run_all(weights, *workspace.value(), calls, {&kernels(setting.vector_bits), setting.threads, 60000}, nullptr);
  EXPECT_TRUE(result.ok()) << result.error().message;
  return y;
}

// The contract's y of a case; where the rows stand does not matter to it.
std::vector<uint16_t> contract_y(const Case& c, const RandomLayer& layer) {
  auto wanted = contract_layer(layer.input(c), layer.sources());
  EXPECT_TRUE(wanted.ok()) << wanted.error().message;
  return wanted.take().y;
}

Case case_of(const std::string& line) {
  auto parsed = parse_case(line);
  EXPECT_TRUE(parsed.ok()) << parsed.error().message;
  return parsed.take();
}

void check(const Case& c, const RandomLayer& layer, const std::vector<uint16_t>& wanted, const Setting& setting) {
  if (setting.vector_bits != 0 && !has_vectors(setting.vector_bits)) return;
  const auto weights = pack(c, layer);
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  const std::vector<uint16_t> y = run(c, layer, weights.value(), setting);
  const auto first = std::mismatch(y.begin(), y.end(), wanted.begin());
  EXPECT_TRUE(first.first == y.end()) << case_text(c) << ": " << setting.threads << " threads, " << setting.vector_bits
                                      << " bits, element " << first.first - y.begin();
}

TEST(ExecutorBits, EveryFormatRankCountAndPlacement) {
  for (const std::string format : {"fp8", "nvfp4", "mxfp4"}) {
    const std::string size = " experts=6 topk=3 tokens=27 hidden=384 inter=160 seed=5 limit=1.5 dist=masked w=" + format;
    const Case alone = case_of("ranks=1" + size);
    const RandomLayer layer = random_layer(alone);
    const std::vector<uint16_t> wanted = contract_y(alone, layer);
    for (const std::string ranks : {"1", "2", "3", "4", "8"}) {
      for (const std::string placement : {"even", "random", "redundant"}) {
        check(case_of("ranks=" + ranks + size + " placement=" + placement), layer, wanted, {4, 0, 0});
      }
    }
  }
}

TEST(ExecutorBits, EveryVectorWidthThreadCountAndCapacity) {
  const Case c = case_of("ranks=2 experts=4 topk=2 tokens=23 hidden=256 inter=128 w=nvfp4 seed=8");
  const RandomLayer layer = random_layer(c);
  const std::vector<uint16_t> wanted = contract_y(c, layer);
  for (const Setting& setting : {Setting{2, 128, 0}, Setting{3, 256, 100}, Setting{7, 512, 1}}) check(c, layer, wanted, setting);
}

TEST(ExecutorBits, AllTokensToOneExpertInSeveralBlocks) {
  const Case c = case_of("ranks=3 experts=4 topk=2 tokens=150 hidden=128 inter=32 w=fp8 seed=9 dist=one");
  const RandomLayer layer = random_layer(c);
  check(c, layer, contract_y(c, layer), {3, 128, 0});
}

}  // namespace
}  // namespace monomoe::cpu
