// A weight row is decoded once and meets every route; sums of one step are exact, so their order is free.
#include "reference/float64_expert.hpp"

#include <cmath>
#include <limits>

#include "numerics/e4m3.h"
#include "reference/decoded_matrix.hpp"
#include "reference/error_bounds.hpp"
#include "reference/step_rows.hpp"

namespace monomoe {

namespace {

using bounds::Bounded;

// One row of weights in step order, padded to whole blocks.
struct StepWeights {
  std::vector<double> values, magnitudes;
  std::vector<uint8_t> keys;
  int64_t row = 0;
};

struct CodeTables {
  double values[256];
  uint8_t keys[256];
};
const CodeTables& code_tables() {
  static const CodeTables kTables = [] {
    CodeTables tables{};
    for (int code = 0; code < 256; ++code) {
      tables.values[code] = e4m3_decode(static_cast<uint8_t>(code));
      tables.keys[code] = bounds::exponent_key(static_cast<uint8_t>(code));
    }
    return tables;
  }();
  return kTables;
}

void load_row(const DecodedMatrix& m, int64_t row, StepWeights& out) {
  const CodeTables& tables = code_tables();
  const int64_t padded = round_up(m.cols, kBlockK);
  out.values.assign(padded, 0.0);
  out.magnitudes.assign(padded, 0.0);
  out.keys.assign(padded, 0);
  out.row = row;
  for (int64_t k = 0; k < m.cols; ++k) {
    const uint8_t code = m.codes[row * m.cols + k];
    const int64_t place = step_position(k);
    out.values[place] = tables.values[code];
    out.magnitudes[place] = std::fabs(out.values[place]);
    out.keys[place] = tables.keys[code];
  }
}

struct StepSums {
  std::vector<double> sums, slack;
  std::vector<uint8_t> keys;
  explicit StepSums(int64_t k) : sums(k / kStepK), slack(k / kStepK), keys(k / kStepK) {}
};

// GEMM1: exact codes and scales on both sides.
Bounded token_product(const double* values, const uint8_t* keys, const float* scales, const DecodedMatrix& m, const StepWeights& w,
                      StepSums& s) {
  step_dots(values, w.values.data(), static_cast<int64_t>(s.sums.size()), s.sums.data());
  step_keys(keys, w.keys.data(), static_cast<int64_t>(s.sums.size()), s.keys.data());
  Bounded sum;
  for (size_t block = 0; block < s.sums.size() / 4; ++block) {
    const double* steps = &s.sums[4 * block];
    const double dot = (steps[0] + steps[1]) + (steps[2] + steps[3]);
    const double truncation = bounds::block_error(steps, nullptr, &s.keys[4 * block], 1.0);
    double scale = scales[block], scale_error = 0;
    if (m.has_block_scales()) {
      scale *= m.block_scale(w.row, static_cast<int64_t>(block));
      scale_error = std::fabs(scale) * bounds::kFp32Unit + bounds::kFp32Underflow;
    }
    bounds::add_term(sum, scale * dot, std::fabs(scale) * truncation + scale_error * (std::fabs(dot) + truncation));
  }
  if (!m.has_block_scales()) bounds::multiply(sum, m.multiplier);
  sum.error *= bounds::kSlack;
  return sum;
}

// A route's intermediate as GEMM2 meets it: exact values and what a backend's codes may differ from them by, in step order.
struct StoredRow {
  std::vector<double> values, errors;
  std::vector<uint8_t> keys;
  std::vector<double> units;  // largest stored scale, a block
};

StoredRow store_row(const std::vector<Bounded>& h, double weight) {
  const auto channels = static_cast<int64_t>(h.size());
  const int64_t padded = round_up(channels, kBlockK);
  StoredRow row{std::vector<double>(padded, 0.0), std::vector<double>(padded, 0.0), std::vector<uint8_t>(padded, 0), {}};
  for (int64_t begin = 0; begin < channels; begin += kBlockK) {
    const int64_t count = min_of(kBlockK, channels - begin);
    const bounds::GroupBounds group = bounds::group_bounds(&h[begin], count);
    bool is_nan = !std::isfinite(weight);
    for (int64_t c = begin; c < begin + count; ++c) is_nan = is_nan || !std::isfinite(h[c].value);
    row.units.push_back(bounds::stored_unit(group, weight));
    // fp32 may overflow in the stored scale: then nothing is known.
    const bool is_unknown = row.units.back() > std::numeric_limits<float>::max();
    for (int64_t c = begin; c < begin + count; ++c) {
      const int64_t place = step_position(c);
      row.values[place] = is_nan ? std::numeric_limits<double>::quiet_NaN() : h[c].value * weight;
      row.errors[place] = is_unknown ? std::numeric_limits<double>::infinity() : bounds::stored_error(h[c], group, weight);
      row.keys[place] = bounds::largest_key(h[c], group);
    }
  }
  return row;
}

Bounded stored_product(const StoredRow& row, const DecodedMatrix& m, const StepWeights& w, StepSums& s) {
  const auto steps = static_cast<int64_t>(s.sums.size());
  step_dots(row.values.data(), w.values.data(), steps, s.sums.data());
  step_dots(row.errors.data(), w.magnitudes.data(), steps, s.slack.data());
  step_keys(row.keys.data(), w.keys.data(), steps, s.keys.data());
  Bounded sum;
  for (size_t block = 0; block < s.sums.size() / 4; ++block) {
    const double *dots = &s.sums[4 * block], *slacks = &s.slack[4 * block];
    const double dot = (dots[0] + dots[1]) + (dots[2] + dots[3]), slack = (slacks[0] + slacks[1]) + (slacks[2] + slacks[3]);
    const double known = slack + bounds::block_error(dots, slacks, &s.keys[4 * block], row.units[block]);
    double scale = 1.0, scale_error = 0;
    if (m.has_block_scales()) {
      scale = m.block_scale(w.row, static_cast<int64_t>(block));
      // In the unit of the codes no accumulator reaches 2^25.
      scale_error = std::fabs(scale) * bounds::kFp32Unit * (std::fabs(dot) + known) + 0x1p25 * bounds::kFp32Underflow;
    }
    bounds::add_term(sum, scale * dot, std::fabs(scale) * known + scale_error);
  }
  if (!m.has_block_scales()) bounds::multiply(sum, m.multiplier);
  sum.error *= bounds::kSlack;
  return sum;
}

void put(BoundedStage& stage, int64_t index, const Bounded& element) {
  stage.values[index] = element.value;
  stage.bounds[index] = element.error;
}

}  // namespace

StepTokens step_tokens(const StagedTokens& tokens, int64_t hidden) {
  StepTokens out{std::vector<double>(tokens.codes.size()), std::vector<uint8_t>(tokens.codes.size())};
  for (size_t i = 0; i < tokens.codes.size(); ++i) {
    const auto row = static_cast<int64_t>(i) / hidden * hidden;
    const int64_t place = row + step_position(static_cast<int64_t>(i) - row);
    out.values[place] = e4m3_decode(tokens.codes[i]);
    out.keys[place] = bounds::exponent_key(tokens.codes[i]);
  }
  return out;
}

void float64_expert(const LayerInput& in, const StepTokens& tokens, const SourceExpert& expert, std::span<const int64_t> routes,
                    Float64Result& result) {
  StepWeights weights;
  std::vector<std::vector<Bounded>> h(routes.size(), std::vector<Bounded>(in.intermediate));
  {
    const DecodedMatrix gate = decode_matrix(expert.gate), up = decode_matrix(expert.up);
    StepSums sums(in.hidden);
    for (int64_t channel = 0; channel < in.intermediate; ++channel) {
      const auto products = [&](const DecodedMatrix& m, size_t i) {
        const int64_t token = routes[i] / in.topk;
        const float* scales = &result.tokens.scales[token * in.hidden / kBlockK];
        return token_product(&tokens.values[token * in.hidden], &tokens.keys[token * in.hidden], scales, m, weights, sums);
      };
      load_row(gate, channel, weights);
      for (size_t i = 0; i < routes.size(); ++i) h[i][channel] = products(gate, i);
      load_row(up, channel, weights);
      for (size_t i = 0; i < routes.size(); ++i) h[i][channel] = bounds::swiglu(h[i][channel], products(up, i), in.limit);
    }
  }
  std::vector<StoredRow> rows;
  for (size_t i = 0; i < routes.size(); ++i) {
    rows.push_back(store_row(h[i], in.weights[routes[i]]));
    for (int64_t c = 0; c < in.intermediate; ++c) {
      const int64_t place = step_position(c);
      put(result.intermediate, routes[i] * in.intermediate + c, {rows[i].values[place], rows[i].errors[place]});
    }
  }
  const DecodedMatrix down = decode_matrix(expert.down);
  StepSums sums(round_up(in.intermediate, kBlockK));
  for (int64_t channel = 0; channel < in.hidden; ++channel) {
    load_row(down, channel, weights);
    for (size_t i = 0; i < routes.size(); ++i) {
      Bounded contribution = stored_product(rows[i], down, weights, sums);
      bounds::round_to_bf16(contribution);
      put(result.contributions, routes[i] * in.hidden + channel, contribution);
    }
  }
}

}  // namespace monomoe
