// The fake layer of fake_layer.hpp, and that it notices what the other tests rely on it to notice.
#include "protocol/fake_layer.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "numerics/bf16.h"
#include "numerics/bits.h"
#include "numerics/tensor_core.h"

namespace monomoe::cpu::fake {
namespace {

uint32_t tag_of(const uint8_t* expert) {
  uint32_t tag;
  std::memcpy(&tag, expert, 4);
  return tag;
}

void tile_sums(const WeightTile& tile, const TokenRows& tokens, float* sums, void*) {
  const uint32_t tag = tag_of(tile.expert) * 7 + (tile.down ? 5 : 0) + static_cast<uint32_t>(tile.tile) * 13;
  for (int64_t token = 0; token < tokens.count; ++token) {
    float base = 0;
    for (int64_t block = 0; block < tile.k_blocks(); ++block) {
      int32_t mixed = 0;
      for (int32_t i = 0; i < 128; ++i) mixed += tokens.codes[token][block * 128 + i] * (1 + i);
      base += tokens.scales[token][block] * static_cast<float>(mixed % 251 + 1);
    }
    for (int64_t row = 0; row < tile.rows(); ++row) sums[token * 256 + row] = base * static_cast<float>(1 + (tag + row) % 17);
  }
}

void swiglu_quantise(const float* sums, int64_t valid, float limit, const float* weights, int64_t count, uint8_t* const* codes,
                     float* const* scales) {
  for (int64_t token = 0; token < count; ++token) {
    const float* row = sums + token * 256;
    *scales[token] = weights[token] * (1.0f + std::fmod(row[0], limit));
    for (int64_t c = 0; c < 128; ++c) codes[token][c] = c < valid ? float_bits(row[2 * c]) % 251 : 0;
  }
}

void round_contribution(const float* sums, int64_t rows, uint16_t* dst) {
  for (int64_t row = 0; row < rows; ++row) dst[row] = bf16_encode(sums[row]);
}

void quantise_row(const uint16_t* x, int64_t hidden, uint8_t* codes, float* scales) {
  for (int64_t begin = 0; begin < hidden; begin += 128) {
    float scale = 1.0f + static_cast<float>(x[begin] % 16);
    for (int32_t i = 0; i < 128; ++i) {
      codes[begin + permuted_k(i)] = static_cast<uint8_t>(x[begin + i]);
      if (is_nan(bf16_decode(x[begin + i]))) scale = std::numeric_limits<float>::quiet_NaN();
    }
    scales[begin / 128] = scale;
  }
}

void combine_row(const uint16_t* const* contributions, int64_t count, int64_t hidden, uint16_t* y) {
  for (int64_t i = 0; i < hidden; ++i) {
    float sum = 0;
    for (int64_t slot = 0; slot < count; ++slot) sum += bf16_decode(contributions[slot][i]);
    y[i] = bf16_encode(sum);
  }
}

}  // namespace

const Kernels& kernels() {
  static const Kernels table{128, tile_sums, 64, swiglu_quantise, round_contribution, quantise_row, combine_row};
  return table;
}

Problem problem_of(const LayerShape& shape, int64_t topk, int64_t capacity) {
  return {shape.hidden, shape.intermediate, shape.experts, topk, shape.ranks, capacity, WeightFormat::kFp8};
}

CpuWeights make_weights(const LayerShape& shape, std::vector<PlacementEntry> entries) {
  auto placement = entries.empty() ? PlacementTable::even(shape.experts, shape.ranks)
                                   : PlacementTable::from_entries(shape.experts, shape.ranks, entries);
  EXPECT_TRUE(placement.ok()) << placement.error().message;
  auto weights = CpuWeights::create(problem_of(shape, 1, 1), placement.take(), 97.0f);
  EXPECT_TRUE(weights.ok()) << weights.error().message;
  for (int32_t expert = 0; expert < shape.experts; ++expert) {
    const uint32_t tag = static_cast<uint32_t>(shape.seed * 1000 + expert);
    std::memcpy(weights.value().expert_data(expert), &tag, 4);
  }
  return weights.take();
}

std::unique_ptr<CpuWorkspace> make_workspace(const LayerShape& largest, int64_t topk, int64_t capacity, int64_t max_slots) {
  auto workspace = CpuWorkspace::create(problem_of(largest, topk, capacity), max_slots);
  EXPECT_TRUE(workspace.ok()) << workspace.error().message;
  return workspace.take();
}

RankCall Tokens::call() {
  RankCall call;
  call.num_tokens = count;
  call.x = x.data();
  call.topk_ids = ids.data();
  call.topk_weights = weights.data();
  call.y = y.data();
  return call;
}

Tokens make_tokens(std::mt19937& random, int64_t count, int64_t topk, const LayerShape& shape) {
  Tokens tokens;
  tokens.count = count;
  for (int64_t i = 0; i < count * shape.hidden; ++i) tokens.x.push_back(random() % 0x4000);
  for (int64_t i = 0; i < count * topk; ++i) {
    const bool dropped = random() % 8 == 0;
    tokens.ids.push_back(dropped ? -1 - static_cast<int32_t>(random() % 3) : static_cast<int32_t>(random() % shape.experts));
    tokens.weights.push_back(dropped ? NAN : 0.5f + static_cast<float>(random() % 64) / 64);
  }
  tokens.y.assign(count * shape.hidden, kUntouched);
  return tokens;
}

std::vector<uint16_t> expected(const CpuWeights& weights, const Tokens& tokens, int64_t topk) {
  const Problem& p = weights.problem();
  std::vector<uint16_t> y(tokens.count * p.hidden);
  std::vector<uint8_t> codes(p.hidden), mid(p.padded_intermediate());
  std::vector<float> scales(p.hidden_blocks()), mid_scales(p.intermediate_blocks()), sums(256);
  std::vector<uint16_t> rows(topk * p.hidden);
  for (int64_t token = 0; token < tokens.count; ++token) {
    std::vector<const uint16_t*> live;
    quantise_row(tokens.x.data() + token * p.hidden, p.hidden, codes.data(), scales.data());
    for (int64_t slot = 0; slot < topk; ++slot) {
      const int32_t id = tokens.ids[token * topk + slot];
      if (id < 0) continue;
      const uint8_t* expert = weights.expert_data(id);
      const uint8_t* code_row = codes.data();
      const float* scale_row = scales.data();
      for (int64_t tile = 0; tile < p.intermediate_blocks(); ++tile) {
        tile_sums({expert, &weights.layout(), false, tile}, {&code_row, &scale_row, 1}, sums.data(), nullptr);
        uint8_t* mid_row = mid.data() + tile * 128;
        float* mid_scale = mid_scales.data() + tile;
        const int64_t valid = min_of(128, p.intermediate - tile * 128);
        swiglu_quantise(sums.data(), valid, weights.swiglu_limit(), &tokens.weights[token * topk + slot], 1, &mid_row, &mid_scale);
      }
      code_row = mid.data();
      scale_row = mid_scales.data();
      for (int64_t tile = 0; tile * 256 < p.hidden; ++tile) {
        const WeightTile down{expert, &weights.layout(), true, tile};
        tile_sums(down, {&code_row, &scale_row, 1}, sums.data(), nullptr);
        round_contribution(sums.data(), down.rows(), rows.data() + slot * p.hidden + tile * 256);
      }
      live.push_back(rows.data() + slot * p.hidden);
    }
    combine_row(live.data(), static_cast<int64_t>(live.size()), p.hidden, y.data() + token * p.hidden);
  }
  return y;
}

std::vector<Result<void>> collective(const CpuWeights& weights, CpuWorkspace& workspace, std::vector<RankCall>& calls,
                                     const RunOptions& options, uint64_t silent) {
  std::vector<Result<void>> results(calls.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    if ((silent >> rank & 1) != 0) continue;
    threads.emplace_back([&, rank] {
      results[rank] = run_rank(weights, workspace, static_cast<int32_t>(rank), calls[rank], options, nullptr);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

TEST(FakeLayer, EveryInputChangesTheOutput) {
  const LayerShape shape{128, 32, 8, 1};
  const CpuWeights weights = make_weights(shape);
  std::mt19937 random(1);
  Tokens tokens = make_tokens(random, 1, 2, shape);
  tokens.ids = {1, 2};
  tokens.weights = {0.5f, 0.75f};
  const std::vector<uint16_t> y = expected(weights, tokens, 2);
  Tokens other = tokens;
  other.ids = {2, 1};
  EXPECT_NE(expected(weights, other, 2), y);
  other = tokens;
  other.weights[1] = 0.5f;
  EXPECT_NE(expected(weights, other, 2), y);
  other = tokens;
  other.x[77] ^= 1;
  EXPECT_NE(expected(weights, other, 2), y);
  EXPECT_NE(expected(make_weights({128, 32, 8, 1, 2}), tokens, 2), y);
}

}  // namespace monomoe::cpu::fake
