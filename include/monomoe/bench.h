// Benchmarks: the time of a layer with random weights, tokens and routes, beside what the machine could do at most. Conventions as in monomoe.h.
#ifndef MONOMOE_BENCH_H
#define MONOMOE_BENCH_H

#include "monomoe/world.h"

#ifdef __cplusplus
extern "C" {
#endif

// What lies before a timed call.
//  - COLD: the caches are emptied by reading other memory.
//  - GRAPH: as COLD, and the call is replayed from a CUDA graph, one a rank. Backend cuda only.
//  - BACK_TO_BACK: other calls with the same tokens, and several calls are timed as one; what the caches keep of the weights stays there.
typedef enum monomoe_bench_mode { MONOMOE_BENCH_COLD = 0, MONOMOE_BENCH_GRAPH = 1, MONOMOE_BENCH_BACK_TO_BACK = 2 } monomoe_bench_mode;

// Where tokens go. The ids of a token differ as long as there are experts left; the same seed gives the same routes.
//  - UNIFORM: every expert equally likely.
//  - ZIPF: expert e with weight 1 / (e + 1)^routing_value.
//  - HOT: routing_value (0..1) of all tokens, evenly spread over them, have expert 0 among their experts and the others do not; the rest is
//    uniform.
typedef enum monomoe_bench_routing {
  MONOMOE_ROUTING_UNIFORM = 0, MONOMOE_ROUTING_ZIPF = 1, MONOMOE_ROUTING_HOT = 2
} monomoe_bench_routing;

typedef struct monomoe_bench_layer {
  uint32_t struct_size;
  monomoe_format format;         // FP8, NVFP4 or MXFP4
  int64_t hidden, intermediate;  // as in monomoe_problem, like the next three
  int64_t experts;               // of all ranks of the context together, placed in order and as even as possible
  int64_t topk;
  int64_t capacity;              // most tokens a rank may bring; also what the workspace is made for
  float swiglu_limit;            // 0 or +inf = none
  uint64_t seed;                 // of weights, tokens and routes
} monomoe_bench_layer;

typedef struct monomoe_bench_call {
  uint32_t struct_size;
  int64_t num_tokens;            // of each rank: 1..capacity; 0 with tokens_per_rank
  monomoe_launch launch;         // as in monomoe_workspace_options
  monomoe_bench_mode mode;
  monomoe_bench_routing routing;
  double routing_value;          // ZIPF: the exponent, 0 or more; HOT: the share, 0..1; UNIFORM: 0
  int32_t repeats;               // timed samples, 1..10000; 0 = 20
  int32_t check;                 // 1: compare with the CPU backend whatever it costs; 0: only if the call has no more than 4e9 operations
  const int64_t* tokens_per_rank;  // [ranks] 0..capacity, not all 0, where the ranks' numbers differ; NULL: num_tokens on each
} monomoe_bench_call;

typedef struct monomoe_bench monomoe_bench;
// Makes the layer's weights: two experts of random values, which the others repeat in memory of their own, so that large layers are made in
// seconds. All ranks are in this process: for a context of one rank of a world see monomoe_world_bench_create. The context must outlive it.
MONOMOE_API monomoe_status monomoe_bench_create(monomoe_context* context, const monomoe_bench_layer* layer, monomoe_bench** bench);
// Collective (world.h): the same for one rank of a world, with a context of the options that monomoe_world_place completed. Ranks that are given
// different layers are refused. monomoe_bench_run is collective too then: each rank times its own calls, and all get the report; what fails on one
// rank fails on all, and the world is useless afterwards. Destroy the benchmark before the world is left.
MONOMOE_API monomoe_status monomoe_world_bench_create(monomoe_world* world, monomoe_context* context, const monomoe_bench_layer* layer,
                                                      monomoe_bench** bench);
MONOMOE_API void monomoe_bench_destroy(monomoe_bench* bench);  // NULL is allowed

// Times one call. The output is poisoned before each run; errors are looked for after each. The output of the first run (over 0xFF) and of the
// last timed one (over 0) must have the same bits, and on backend cuda those of the CPU backend (see check): MONOMOE_CHECK_FAILED otherwise.
// Not thread-safe, one at a time per machine if the figures are to mean something. Report, times in seconds, of the slowest rank:
// {"backend","device","format","hidden","intermediate","experts","topk","ranks","capacity","tokens","tokens_per_rank":[..],"launch","mode","routing",
//  "routing_value","seed","routes","touched_experts","largest_expert","repeats","calls_per_sample","median","min","p10","p90","samples":[..],
//  "steps":[{"step","median"}..],"flops","read":{"bytes","median","bytes_per_second"},"gemm":{"flops_per_second","library"|"why_not"},
//  "bound","bound_by","ratio","checked":{"runs_equal","cpu"},"processes":{"memory","medians":[..]}}
// tokens: the most that a rank has. processes: null if all ranks are in this process; else how the ranks share memory, and each rank's median, of
// which the largest is the row's with its samples; before each timed call the ranks meet in a call without tokens.
// read: a plain read of the packed experts that have tokens, by the same GPU or CPU threads, caches emptied before. gemm: the rate of an FP8
// product of 8192^3 by cuBLASLt, which is looked for when it is first needed (libcublasLt.so on the loader's path, or in /usr/local/cuda); null
// where there is none, and why. bound: the larger of the read and flops at that rate, of the GPU (of a world: the rank) where it is largest;
// bound_by: "read" or "products"; ratio: median / bound; null without gemm. steps: of launches split and unfused with one rank, measured in runs
// of their own.
MONOMOE_API monomoe_status monomoe_bench_run(monomoe_bench* bench, const monomoe_bench_call* call, char** json);

// Where the time of one more call goes, caches emptied before: {"traceEvents":[..],"displayTimeUnit":"ns","summary":[{"kind","tasks","first",
// "last","wait","main","after","total"}..],"span","busy","complete"}, which Chrome's trace viewer and Perfetto open: one process a rank, one thread
// a thread block (a multiprocessor), one slice a task, and in it when it waited for its data, multiplied, and finished. Times of the summary in
// seconds, from the first task's begin; wait, main, after and total are means. Backend cuda, launches ONE and SPLIT, ranks in one process only.
MONOMOE_API monomoe_status monomoe_bench_trace(monomoe_bench* bench, const monomoe_bench_call* call, char** json);

// A case line (docs/cases.md) as a benchmark: fills layer, call (its sizes and routing; the rest stays) and the number of ranks. Only what a
// benchmark has is accepted: dist uniform or zipf (exponent 1), placement even, as many tokens on each rank.
MONOMOE_API monomoe_status monomoe_bench_case(const char* line, monomoe_bench_layer* layer, monomoe_bench_call* call, int32_t* ranks);

#ifdef __cplusplus
}
#endif
#endif
