// monomoe_plan_time: the roofline of one layer on the GPUs the kernel is made for.
#include "layer/plan_time.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "layer/arguments.hpp"
#include "layer/error_state.hpp"
#include "plan/problem_text.hpp"
#include "plan/weight_packing.h"

namespace monomoe::layer {
namespace {

using Json = nlohmann::ordered_json;

// H200: measured, 4.5 of its 4.8 TB/s (a plain read of 1.4 GB or more; of 0.8 GB 4.4, of 0.4 GB 4.3) and 1418 of its 1979 TFLOPS, 360 of 450 GB/s. H100 is the same chip with 3.35 TB/s of memory. H20 has
// 4.0 TB/s, 78 multiprocessors and 296 TFLOPS, so few that it is not held back by power: its data sheet's figure.
constexpr GpuRates kGpus[] = {
    {"H100", 132, 3.14e12, 1418e12, 360e9, false}, {"H200", 132, 4.5e12, 1418e12, 360e9, true}, {"H20", 78, 3.75e12, 296e12, 360e9, false}};

// What the fused kernel adds to the bounds: a start that nothing hides, and how far reads and products stay behind a plain read and a large
// product; where several count they overlap less than wholly. Fitted to the 29 figures of one launch in
// results/2026-12-01-h200-b043ff2.json for each format, of which the largest error is 17 % (NVFP4) and 10 % (FP8). MXFP4 runs the code of NVFP4.
struct Measured {
  double start_seconds, read_factor, product_factor;
};
constexpr Measured kFp4Measured{52e-6, 1.1, 2.0}, kFp8Measured{46e-6, 1.02, 1.76};

double expected(const LayerTime& time, WeightFormat format) {
  if (time.routes_per_rank == 0) return 0;
  const Measured& m = format == WeightFormat::kFp8 ? kFp8Measured : kFp4Measured;
  const double read = time.read_seconds * m.read_factor, products = time.product_seconds * m.product_factor;
  return m.start_seconds + std::cbrt(read * read * read + products * products * products + std::pow(time.link_seconds, 3));
}

// Experts of `local` with at least one of `routes` routes thrown at them evenly.
double touched(double local, double routes) { return local * (1 - std::pow(1 - 1 / local, routes)); }

Json time_json(const LayerTime& time, const GpuRates& gpu) {
  return {{"gpu", gpu.name},
          {"measured_rates", gpu.measured},
          {"thread_blocks", gpu.multiprocessors},
          {"read_seconds", time.read_seconds},
          {"product_seconds", time.product_seconds},
          {"link_seconds", time.link_seconds},
          {"bound_seconds", time.bound_seconds},
          {"bound_by", time.bound_by},
          {"expected_seconds", time.expected_seconds}};
}

}  // namespace

std::span<const GpuRates> gpu_rates() { return kGpus; }

LayerTime layer_time(const Problem& p, int64_t tokens, const GpuRates& gpu) {
  LayerTime time;
  const auto local = static_cast<double>(ceil_div(p.experts, p.ranks)), m = static_cast<double>(tokens), k = static_cast<double>(p.topk);
  const auto ranks = static_cast<double>(p.ranks), hidden = static_cast<double>(p.hidden);
  time.routes_per_rank = m * k * ranks * local / static_cast<double>(p.experts);
  time.touched_experts = touched(local, time.routes_per_rank);
  time.weight_bytes = time.touched_experts * static_cast<double>(expert_layout(p).bytes);
  time.flops = 2 * 3 * hidden * static_cast<double>(p.intermediate) * time.routes_per_rank;
  // Out: a row of codes and scales to each other rank that serves the token. Back: a bf16 row for each route served elsewhere.
  const double others = ranks - 1, reached = p.ranks > 1 ? others * (1 - std::pow(1 - 1 / ranks, k)) : 0;
  const double out = m * reached * (hidden + hidden / 128 * 4), back = m * k * others / ranks * hidden * 2;
  time.link_bytes = std::max(out + back, 0.0);
  time.read_seconds = time.weight_bytes / gpu.bytes_per_second;
  time.product_seconds = time.flops / gpu.flops_per_second;
  time.link_seconds = time.link_bytes / gpu.link_bytes_per_second;
  time.bound_seconds = std::max({time.read_seconds, time.product_seconds, time.link_seconds});
  time.bound_by = time.bound_seconds == time.read_seconds ? "read" : time.bound_seconds == time.product_seconds ? "products" : "link";
  time.expected_seconds = expected(time, p.weights);
  return time;
}

}  // namespace monomoe::layer

using namespace monomoe;
using namespace monomoe::layer;

extern "C" monomoe_status monomoe_plan_time(const monomoe_problem* problem, int64_t tokens, char** json) {
  return guarded([&]() -> Result<void> {
    if (auto given = require_struct(problem, "problem"); !given) return given;
    if (auto given = require_pointer(json, "json"); !given) return given;
    auto format = format_from_abi(problem->format, "problem->format");
    if (!format) return format.error();
    const Problem p{problem->hidden, problem->intermediate, problem->experts, problem->topk,
                    problem->ranks,  problem->capacity,     format.value()};
    if (auto legal = check(p); !legal) return legal;
    if (tokens < 0 || tokens > p.capacity) {
      return usage_error("tokens is " + std::to_string(tokens) + ", wanted 0 to the capacity, which is " + std::to_string(p.capacity));
    }
    const LayerTime any = layer_time(p, tokens, kGpus[0]);
    Json report = {{"tokens", tokens},
                   {"routes_per_rank", any.routes_per_rank},
                   {"touched_experts", any.touched_experts},
                   {"weight_bytes", any.weight_bytes},
                   {"flops", any.flops},
                   {"link_bytes", any.link_bytes},
                   {"gpus", Json::array()}};
    for (const GpuRates& gpu : kGpus) report["gpus"].push_back(time_json(layer_time(p, tokens, gpu), gpu));
    *json = caller_text(report.dump());
    return {};
  });
}
