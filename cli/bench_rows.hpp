// The options of `bench`, and the rows they ask for: every layer with every launch, mode, routing and number of tokens.
#pragma once

#include <string>
#include <vector>

#include "monomoe/bench.h"
#include "options.hpp"
#include "processes.hpp"

namespace monomoe::cli {

struct BenchOptions {
  std::vector<std::string> geometries, weights, launches, modes, routings;
  std::string cases, tokens, trace;
  int64_t hidden = -1, intermediate = -1, experts = -1, topk = -1, capacity = -1;
  int32_t num_ranks = 1, repeats = 0;
  uint64_t seed = 1;
  std::string swiglu_limit = "10";
  bool check = false, json = false;
  ContextOptions context;
  ProcessOptions processes;
};
void add_bench_options(CLI::App& parser, BenchOptions& options);

struct RowCall {
  monomoe_bench_call call = {};
  std::vector<int64_t> tokens_per_rank;  // where they differ, else empty
  // Of this, while it lives.
  monomoe_bench_call view() const;
};

// One layer and the calls measured on it.
struct LayerRows {
  monomoe_bench_layer layer = {};
  int32_t ranks = 1;
  std::vector<RowCall> calls;
  bool from_file = false;
  Origin origin() const { return from_file ? Origin::kFile : Origin::kCommandLine; }
};
// Throws bad usage or, for lines of --cases, bad input.
std::vector<LayerRows> layers_of(const BenchOptions& options);
// What must be the same on all ranks.
Settings settings_of(const BenchOptions& options);

}  // namespace monomoe::cli
