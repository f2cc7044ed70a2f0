// Two ranks in two processes: each holds one expert of the layer and brings one token that the other rank's expert serves. The memory they share
// is the caller's: here pages mapped before the fork, on GPUs e.g. memory opened through CUDA IPC. Gate and up are 1 in expert 0 and 2 in
// expert 1 for a token of ones, so rank 0's y is silu(2) * 2 = 3.523 and rank 1's is silu(1) = 0.731, as FP8 rounds them.
#define _DEFAULT_SOURCE  // MAP_ANONYMOUS
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "monomoe/monomoe.h"

enum { kSize = 128, kRanks = 2 };

static void check(monomoe_status status) {
  if (status == MONOMOE_OK) return;
  fprintf(stderr, "%s: %s\n", monomoe_status_name(status), monomoe_last_error());
  _exit((int)status);
}

static monomoe_context* one_rank(int rank) {
  const monomoe_context_options options = {.struct_size = sizeof(options), .backend = MONOMOE_BACKEND_CPU, .num_threads = 1,
                                           .world_ranks = kRanks, .rank = rank};
  monomoe_context* context = NULL;
  check(monomoe_context_create(&options, &context));
  return context;
}

static void run_rank(int rank, monomoe_workspace_options sizes, void* const* peers) {
  static uint8_t ones[kSize * kSize];  // e4m3
  memset(ones, 0x38, sizeof(ones));
  const float scale = (float)(rank + 1) / kSize, down_scale = 1.0f / kSize;
  const monomoe_matrix up = {MONOMOE_FP8, MONOMOE_SCALE_F32, kSize, kSize, ones, &scale, 0.0f};
  const monomoe_matrix down = {MONOMOE_FP8, MONOMOE_SCALE_F32, kSize, kSize, ones, &down_scale, 0.0f};
  monomoe_expert experts[kRanks];  // the other rank's stays zero: it is not read
  memset(experts, 0, sizeof(experts));
  experts[rank].gate = experts[rank].up = up;
  experts[rank].down = down;

  monomoe_context* context = one_rank(rank);
  const monomoe_layer layer = {.struct_size = sizeof(layer), .num_experts = kRanks, .hidden = kSize, .intermediate = kSize,
                               .experts = experts, .tag = 1};
  monomoe_weights* weights = NULL;
  check(monomoe_weights_create(context, &layer, &weights));
  sizes.max_experts = monomoe_weights_max_local_experts(weights);
  sizes.peers = peers;
  monomoe_workspace* workspace = NULL;
  check(monomoe_workspace_create(context, &sizes, &workspace));  // waits for the other rank

  uint16_t x[kSize], y[kSize];
  for (int i = 0; i < kSize; ++i) x[i] = 0x3F80;  // bf16 one
  const int32_t id = kRanks - 1 - rank;
  const float route_weight = 1.0f;
  const monomoe_tokens tokens = {.struct_size = sizeof(tokens), .x_dtype = MONOMOE_DTYPE_BF16, .num_tokens = 1, .x = x,
                                 .ids_dtype = MONOMOE_DTYPE_I32, .topk_ids = &id, .topk_weights = &route_weight, .y = y};
  check(monomoe_forward_rank(weights, workspace, rank, &tokens, NULL, NULL));

  const uint32_t bits = (uint32_t)y[0] << 16;
  float value = 0.0f;
  memcpy(&value, &bits, sizeof(value));
  printf("rank %d: y[0] = %.4f\n", rank, value);
  fflush(stdout);
  monomoe_workspace_destroy(workspace);
  monomoe_weights_destroy(weights);
  monomoe_context_destroy(context);
}

int main(void) {
  const monomoe_workspace_options sizes = {.struct_size = sizeof(sizes), .topk = 1, .hidden = kSize, .max_intermediate = kSize, .capacity = 1};
  monomoe_context* context = one_rank(0);
  int64_t bytes = 0;
  check(monomoe_symmetric_bytes(context, &sizes, &bytes));
  monomoe_context_destroy(context);

  void* peers[kRanks];
  for (int rank = 0; rank < kRanks; ++rank) {
    peers[rank] = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (peers[rank] == MAP_FAILED) return perror("mmap"), 1;
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    const pid_t child = fork();
    if (child < 0) return perror("fork"), 1;
    if (child == 0) {
      run_rank(rank, sizes, peers);
      _exit(0);
    }
  }
  int failed = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    int status = 0;
    wait(&status);
    if (status != 0) failed = 1;
  }
  return failed;
}
