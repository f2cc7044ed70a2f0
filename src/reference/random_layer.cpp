// Only integer mixing and correctly rounded arithmetic, so that every platform makes the same layer.
#include "reference/random_layer.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "numerics/bf16.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "plan/tiles.h"

namespace monomoe {

namespace {

uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// Streams: one for each thing a layer is made of; matrices take theirs from kMatrices on.
enum Stream : uint64_t { kRow, kToken, kOutlier, kId, kMask, kWeight, kPlace, kCopies, kCopyRank, kMatrices };
// Inside a matrix: codes, scales, and what is drawn once.
enum MatrixPart : uint64_t { kCodes, kScales, kOnce, kParts };

struct MatrixDraw {
  uint64_t seed, stream;
  float uniform(MatrixPart part, int64_t i) const { return random_uniform(seed, stream * kParts + part, static_cast<uint64_t>(i)); }
  float bell(int64_t i) const { return random_bell(seed, stream * kParts + kCodes, static_cast<uint64_t>(i)); }
};

template <class T>
void append(std::vector<uint8_t>& bytes, T value) {
  const size_t end = bytes.size();
  bytes.resize(end + sizeof(T));
  std::memcpy(&bytes[end], &value, sizeof(T));
}

// A power of two near `value`: its exponent alone.
uint8_t e8m0_near(float value) { return static_cast<uint8_t>(std::ilogb(value) + 127); }

void fill_fp8(const MatrixDraw& draw, float deviation, RandomMatrix& out) {
  constexpr float kCodeDeviation = 100.0f;
  SourceMatrix& m = out.matrix;
  out.codes.resize(m.rows * m.cols);
  for (size_t i = 0; i < out.codes.size(); ++i) out.codes[i] = e4m3_encode(draw.bell(static_cast<int64_t>(i)) * kCodeDeviation);
  constexpr ScaleType kTypes[] = {ScaleType::kF32, ScaleType::kBf16, ScaleType::kE8m0};
  m.scale_type = kTypes[static_cast<int>(draw.uniform(kOnce, 0) * 3.0f)];
  const int64_t blocks = ceil_div(m.rows, kBlockK) * ceil_div(m.cols, kBlockK);
  for (int64_t i = 0; i < blocks; ++i) {
    const float u = draw.uniform(kScales, i);
    const float scale = deviation / kCodeDeviation * (0.5f + u);
    const bool is_zero = u > 0.97f;  // legal: such a block adds nothing
    if (m.scale_type == ScaleType::kF32) append(out.scales, is_zero ? 0.0f : scale);
    if (m.scale_type == ScaleType::kBf16) append(out.scales, bf16_encode(is_zero ? 0.0f : scale));
    if (m.scale_type == ScaleType::kE8m0) append(out.scales, e8m0_near(scale));
  }
}

void fill_fp4(const MatrixDraw& draw, float deviation, RandomMatrix& out) {
  constexpr float kCodeDeviation = 1.7f;  // the bell ends below 3.5, the codes at 6
  SourceMatrix& m = out.matrix;
  out.codes.resize(m.rows * m.cols / 2);
  for (size_t i = 0; i < out.codes.size(); ++i) {
    const auto first = static_cast<int64_t>(2 * i);
    const uint8_t even = e2m1_encode(draw.bell(first) * kCodeDeviation), odd = e2m1_encode(draw.bell(first + 1) * kCodeDeviation);
    out.codes[i] = static_cast<uint8_t>(even | odd << 4);
  }
  if (m.format == WeightFormat::kMxfp4) {
    m.scale_type = ScaleType::kE8m0;
    for (int64_t i = 0; i < m.rows * m.cols / 32; ++i) {
      const float u = draw.uniform(kScales, i);
      // A few groups far below the rest: they fall into e4m3's subnormals or to zero.
      out.scales.push_back(e8m0_near(deviation / kCodeDeviation * (u > 0.98f ? 0x1p-9f : 0.5f + u)));
    }
    return;
  }
  constexpr float kScale = 64.0f;
  m.scale_type = ScaleType::kE4m3;
  m.global_scale = deviation / (kCodeDeviation * kScale) * (0.5f + draw.uniform(kOnce, 0));
  for (int64_t i = 0; i < m.rows * m.cols / 16; ++i) {
    const float u = draw.uniform(kScales, i);
    // A few subnormal and zero scales, and a few so large that the products need the shift.
    const float factor = u < 0.01f ? 0x1p-14f : u > 0.99f ? 6.0f : 0.5f + u;
    out.scales.push_back(e4m3_encode(kScale * factor));
  }
}

std::vector<double> expert_weights(const Case& c) {
  std::vector<double> weights(c.problem.experts, 1.0);
  if (c.distribution == RouteDistribution::kZipf) {
    for (size_t e = 0; e < weights.size(); ++e) weights[e] = 1.0 / static_cast<double>(e + 1);
  }
  return weights;
}

// An expert drawn with the given weights.
int64_t draw_expert(const std::vector<double>& weights, float uniform) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double left = total * uniform;
  int64_t chosen = -1;
  for (size_t e = 0; e < weights.size(); ++e) {
    if (weights[e] <= 0) continue;
    chosen = static_cast<int64_t>(e);
    left -= weights[e];
    if (left < 0) break;
  }
  return chosen;
}

void fill_routes(const Case& c, RandomLayer& layer) {
  const auto topk = static_cast<uint64_t>(c.problem.topk);
  const std::vector<double> all = expert_weights(c);
  for (uint64_t token = 0; token < static_cast<uint64_t>(c.tokens); ++token) {
    const bool is_token_masked = c.distribution == RouteDistribution::kMasked && token % 5 == 4;
    std::vector<double> left = all;
    for (uint64_t slot = 0; slot < topk; ++slot) {
      const uint64_t route = token * topk + slot;
      int64_t id = draw_expert(left, random_uniform(c.seed, kId, route));
      if (c.distribution == RouteDistribution::kOne) id = 0;
      // zipf draws with replacement, so a token may name an expert twice; the others do so only when the experts run out.
      if (c.distribution != RouteDistribution::kZipf) left[id] = 0;
      if (std::all_of(left.begin(), left.end(), [](double w) { return w == 0; })) left = all;
      const bool is_masked =
          is_token_masked || (c.distribution == RouteDistribution::kMasked && random_uniform(c.seed, kMask, route) < 1.0f / 3.0f);
      layer.ids.push_back(is_masked ? -1 : id);
      const float weight = (1.25f * random_uniform(c.seed, kWeight, route) - 0.25f) / static_cast<float>(topk);
      layer.weights.push_back(is_masked ? std::numeric_limits<float>::quiet_NaN() : weight);
    }
  }
}

}  // namespace

uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t counter) {
  constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ull;
  return mix(mix(seed * kGolden + stream + 1) + counter * kGolden);
}

float random_uniform(uint64_t seed, uint64_t stream, uint64_t counter) {
  return static_cast<float>(random_bits(seed, stream, counter) >> 40) * 0x1p-24f;
}

float random_bell(uint64_t seed, uint64_t stream, uint64_t counter) {
  const uint64_t bits = random_bits(seed, stream, counter);
  const auto sum = static_cast<int32_t>((bits & 0xFFFF) + (bits >> 16 & 0xFFFF) + (bits >> 32 & 0xFFFF) + (bits >> 48)) - 2 * 0xFFFF;
  constexpr float kUnit = 0x1.bb67aep+0f * 0x1p-16f;  // root of 3: the sum of four uniforms has variance 1 / 3
  return static_cast<float>(sum) * kUnit;
}

RandomMatrix random_matrix(WeightFormat format, int64_t rows, int64_t cols, uint64_t seed, uint64_t stream) {
  RandomMatrix out;
  out.matrix.format = format;
  out.matrix.rows = rows;
  out.matrix.cols = cols;
  const MatrixDraw draw{seed, stream + kMatrices};
  const float deviation = 1.0f / std::sqrt(static_cast<float>(cols));
  switch (format) {
    case WeightFormat::kFp8: fill_fp8(draw, deviation, out); break;
    case WeightFormat::kNvfp4:
    case WeightFormat::kMxfp4: fill_fp4(draw, deviation, out); break;
    case WeightFormat::kBf16:
      for (int64_t i = 0; i < rows * cols; ++i) append(out.codes, bf16_encode(draw.bell(i) * deviation));
      break;
  }
  out.matrix.codes = out.codes.data();
  out.matrix.scales = out.scales.empty() ? nullptr : out.scales.data();
  return out;
}

std::vector<SourceExpert> RandomLayer::sources() const {
  std::vector<SourceExpert> sources;
  for (const RandomExpert& expert : experts) sources.push_back(expert.source());
  return sources;
}

LayerInput RandomLayer::input(const Case& c) const {
  LayerInput input;
  input.hidden = c.problem.hidden;
  input.intermediate = c.problem.intermediate;
  input.topk = c.problem.topk;
  input.tokens = c.tokens;
  input.x = x;
  input.ids = ids;
  input.weights = weights;
  input.limit = c.limit;
  return input;
}

RandomLayer random_layer(const Case& c) {
  const Problem& p = c.problem;
  RandomLayer layer;
  for (int64_t e = 0; e < p.experts; ++e) {
    const auto stream = static_cast<uint64_t>(3 * e);
    layer.experts.push_back({random_matrix(p.weights, p.intermediate, p.hidden, c.seed, stream),
                             random_matrix(p.weights, p.intermediate, p.hidden, c.seed, stream + 1),
                             random_matrix(p.weights, p.hidden, p.intermediate, c.seed, stream + 2)});
  }
  layer.x.resize(c.tokens * p.hidden);
  for (size_t i = 0; i < layer.x.size(); ++i) {
    const uint64_t row = i / static_cast<uint64_t>(p.hidden);
    // Rows of different sizes, and now and then a channel far above the rest.
    const float size = 0.25f + 4.0f * random_uniform(c.seed, kRow, row);
    const float outlier = random_uniform(c.seed, kOutlier, i) < 0x1p-10f ? 32.0f : 1.0f;
    layer.x[i] = bf16_encode(random_bell(c.seed, kToken, i) * size * outlier);
  }
  fill_routes(c, layer);
  return layer;
}

Result<PlacementTable> placement_of(const Case& c) {
  const auto experts = static_cast<uint64_t>(c.problem.experts), ranks = static_cast<uint64_t>(c.problem.ranks);
  if (c.placement == PlacementKind::kEven) return PlacementTable::even(c.problem.experts, c.problem.ranks);
  std::vector<PlacementEntry> entries;
  std::vector<int32_t> next_slot(ranks, 0);
  const auto place = [&](uint64_t expert, uint64_t rank) {
    entries.push_back({static_cast<int32_t>(expert), static_cast<int32_t>(rank), next_slot[rank]++});
  };
  for (uint64_t e = 0; e < experts; ++e) {
    const bool is_random = c.placement == PlacementKind::kRandom;
    place(e, is_random ? random_bits(c.seed, kPlace, e) % ranks : e * ranks / experts);
  }
  if (c.placement == PlacementKind::kRedundant) {
    for (uint64_t e = 0; e < experts; ++e) {
      const uint64_t draw = random_bits(c.seed, kCopies, e) % 4;
      const uint64_t copies = draw < 2 ? 0 : draw - 1;  // half of the experts: one or two more
      for (uint64_t i = 0; i < copies; ++i) place(e, random_bits(c.seed, kCopyRank, 4 * e + i) % ranks);
    }
  }
  return PlacementTable::from_entries(c.problem.experts, c.problem.ranks, entries);
}

}  // namespace monomoe
