// Shares the experts among threads, then sums each token's contributions.
#include "reference/float64_layer.hpp"

#include <atomic>
#include <cmath>
#include <thread>

#include "numerics/bf16.h"
#include "numerics/e4m3.h"
#include "plan/tiles.h"
#include "reference/decoded_matrix.hpp"
#include "reference/error_bounds.hpp"
#include "reference/float64_expert.hpp"

namespace monomoe {

namespace {

// Routes of each expert, in ascending order.
std::vector<std::vector<int64_t>> routes_of_experts(const LayerInput& in, size_t experts) {
  std::vector<std::vector<int64_t>> routes(experts);
  for (int64_t route = 0; route < in.routes(); ++route) {
    if (in.ids[route] >= 0) routes[in.ids[route]].push_back(route);
  }
  return routes;
}

template <class Work>
void for_each_expert(const std::vector<std::vector<int64_t>>& routes, int threads, Work work) {
  std::atomic<size_t> next{0};
  const auto run = [&] {
    for (size_t e = next++; e < routes.size(); e = next++) {
      if (!routes[e].empty()) work(e);
    }
  };
  std::vector<std::jthread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(run);
  run();
}

void sum_contributions(const LayerInput& in, Float64Result& result) {
  for (int64_t i = 0; i < in.tokens * in.hidden; ++i) {
    bounds::Bounded sum;
    bool is_first = true;
    for (int64_t slot = 0; slot < in.topk; ++slot) {
      const int64_t route = i / in.hidden * in.topk + slot;
      if (in.ids[route] < 0) continue;
      const int64_t from = route * in.hidden + i % in.hidden;
      const double value = result.contributions.values[from], error = result.contributions.bounds[from];
      if (is_first) {
        sum = {value, error};  // added to +0: exact
      } else {
        bounds::add_term(sum, value, error);
      }
      is_first = false;
    }
    // One contribution alone is bf16 already, so the last rounding changes nothing.
    if (in.topk > 1) bounds::round_to_bf16(sum);
    result.output.values[i] = sum.value;
    result.output.bounds[i] = sum.error;
  }
}

// For information only: plain loops over exact values.
void exact_expert(const LayerInput& in, std::span<const double> x, const SourceExpert& expert, std::span<const int64_t> routes,
                  std::vector<double>& contributions) {
  std::vector<double> gate_row(in.hidden), up_row(in.hidden), down_row(in.intermediate);
  std::vector<double> mid(routes.size() * in.intermediate);
  const auto dot = [](const double* a, const double* b, int64_t count) {
    double lanes[8] = {};
    for (int64_t k = 0; k < count; k += 8) {
      for (int lane = 0; lane < 8; ++lane) lanes[lane] += a[k + lane] * b[k + lane];
    }
    return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
  };
  for (int64_t channel = 0; channel < in.intermediate; ++channel) {
    exact_row(expert.gate, channel, gate_row.data());
    exact_row(expert.up, channel, up_row.data());
    for (size_t i = 0; i < routes.size(); ++i) {
      const double* token = &x[routes[i] / in.topk * in.hidden];
      const double gate = dot(token, gate_row.data(), in.hidden), up = dot(token, up_row.data(), in.hidden);
      mid[i * in.intermediate + channel] = bounds::swiglu({gate, 0}, {up, 0}, in.limit).value * in.weights[routes[i]];
    }
  }
  for (int64_t channel = 0; channel < in.hidden; ++channel) {
    exact_row(expert.down, channel, down_row.data());
    for (size_t i = 0; i < routes.size(); ++i) {
      contributions[routes[i] * in.hidden + channel] = dot(&mid[i * in.intermediate], down_row.data(), in.intermediate);
    }
  }
}

std::vector<double> token_values(const LayerInput& in) {
  std::vector<double> x(in.tokens * in.hidden);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = in.x.empty() ? double{e4m3_decode(in.codes[i])} * in.scales[i / kBlockK] : bf16_decode(in.x[i]);
  }
  return x;
}

}  // namespace

Result<Float64Result> float64_layer(const LayerInput& in, std::span<const SourceExpert> experts, int threads) {
  if (auto checked = check_layer(in, experts); !checked) return checked.error();
  for (const SourceExpert& expert : experts) {
    for (const SourceMatrix* m : {&expert.gate, &expert.up, &expert.down}) {
      if (m->format == WeightFormat::kBf16) return usage_error("BF16 weights have no rounded form: quantise them first");
    }
  }
  Float64Result result;
  result.tokens = stage_tokens(in);
  for (auto* stage : {&result.intermediate, &result.contributions, &result.output}) {
    const int64_t elements = stage == &result.intermediate    ? in.routes() * in.intermediate
                             : stage == &result.contributions ? in.routes() * in.hidden
                                                              : in.tokens * in.hidden;
    stage->values.assign(elements, 0.0);
    stage->bounds.assign(elements, 0.0);
  }
  const StepTokens tokens = step_tokens(result.tokens, in.hidden);
  const auto routes = routes_of_experts(in, experts.size());
  for_each_expert(routes, threads, [&](size_t e) { float64_expert(in, tokens, experts[e], routes[e], result); });
  sum_contributions(in, result);
  return result;
}

Result<std::vector<double>> exact_layer(const LayerInput& in, std::span<const SourceExpert> experts, int threads) {
  if (auto checked = check_layer(in, experts); !checked) return checked.error();
  const std::vector<double> x = token_values(in);
  std::vector<double> contributions(in.routes() * in.hidden, 0.0), y(in.tokens * in.hidden, 0.0);
  const auto routes = routes_of_experts(in, experts.size());
  for_each_expert(routes, threads, [&](size_t e) { exact_expert(in, x, experts[e], routes[e], contributions); });
  for (int64_t i = 0; i < in.tokens * in.hidden; ++i) {
    for (int64_t slot = 0; slot < in.topk; ++slot) {
      const int64_t route = i / in.hidden * in.topk + slot;
      if (in.ids[route] >= 0) y[i] += contributions[route * in.hidden + i % in.hidden];
    }
  }
  return y;
}

}  // namespace monomoe
