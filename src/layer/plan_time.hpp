// What a layer's time cannot be below on a GPU: the bytes it must read, the products it must make, the rows it must send. And what it will
// be, from what the fused kernel was measured to add.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "plan/problem.h"

namespace monomoe::layer {

struct GpuRates {
  const char* name;
  int multiprocessors;
  double bytes_per_second;       // a plain read of much memory
  double flops_per_second;       // FP8, a large dense product
  double link_bytes_per_second;  // to all other ranks together, each way
  bool measured;                 // false: scaled from the measured GPU by data sheet figures
};
std::span<const GpuRates> gpu_rates();

struct LayerTime {
  double routes_per_rank = 0, touched_experts = 0;  // expected under uniform routing
  double weight_bytes = 0, flops = 0, link_bytes = 0;
  double read_seconds = 0, product_seconds = 0, link_seconds = 0;
  double bound_seconds = 0;   // the largest of the three: everything else hidden behind it
  const char* bound_by = "";  // "read", "products" or "link"
  double expected_seconds = 0;  // 0 without tokens
};

// tokens: of each rank; the fullest rank of an even placement.
LayerTime layer_time(const Problem& problem, int64_t tokens, const GpuRates& gpu);

}  // namespace monomoe::layer
