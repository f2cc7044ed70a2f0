// The C ABI in one page: one FP8 expert whose gate and up are 1 for a token of ones, so every channel of y is silu(1) = 0.731.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "monomoe/monomoe.h"

enum { kSize = 128 };

static void check(monomoe_status status) {
  if (status == MONOMOE_OK) return;
  fprintf(stderr, "%s: %s\n", monomoe_status_name(status), monomoe_last_error());
  exit((int)status);
}

int main(void) {
  static uint8_t ones[kSize * kSize];  // e4m3
  memset(ones, 0x38, sizeof(ones));
  const float scale = 1.0f / kSize;
  const monomoe_matrix matrix = {MONOMOE_FP8, MONOMOE_SCALE_F32, kSize, kSize, ones, &scale, 0.0f};
  const monomoe_expert expert = {matrix, matrix, matrix};

  monomoe_context_options options = {.struct_size = sizeof(options), .num_ranks = 1, .num_threads = 1};
  monomoe_context* context = NULL;
  check(monomoe_context_create(&options, &context));

  monomoe_layer layer = {.struct_size = sizeof(layer), .num_experts = 1, .hidden = kSize, .intermediate = kSize, .experts = &expert};
  monomoe_weights* weights = NULL;
  check(monomoe_weights_create(context, &layer, &weights));

  monomoe_workspace_options sizes = {.struct_size = sizeof(sizes), .topk = 1, .hidden = kSize, .max_intermediate = kSize,
                                     .max_experts = monomoe_weights_max_local_experts(weights), .capacity = 1};
  monomoe_workspace* workspace = NULL;
  check(monomoe_workspace_create(context, &sizes, &workspace));

  uint16_t x[kSize], y[kSize];
  for (int i = 0; i < kSize; ++i) x[i] = 0x3F80;  // bf16 one
  const int32_t id = 0;
  const float route_weight = 1.0f;
  monomoe_tokens tokens = {.struct_size = sizeof(tokens), .x_dtype = MONOMOE_DTYPE_BF16, .num_tokens = 1, .x = x, .ids_dtype = MONOMOE_DTYPE_I32,
                           .topk_ids = &id, .topk_weights = &route_weight, .y = y};
  check(monomoe_forward(weights, workspace, &tokens, NULL));

  const uint32_t bits = (uint32_t)y[0] << 16;
  float value = 0.0f;
  memcpy(&value, &bits, sizeof(value));
  printf("monomoe %s: y[0] = %.4f\n", monomoe_version(), value);

  monomoe_workspace_destroy(workspace);
  monomoe_weights_destroy(weights);
  monomoe_context_destroy(context);
  return 0;
}
