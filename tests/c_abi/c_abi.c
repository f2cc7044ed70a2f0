// The whole public ABI from C11, through the shared library: reports, tensor files, a synthetic checkpoint and its layer.
// Usage: c_abi DIRECTORY; leaves a small checkpoint in DIRECTORY/checkpoint. Prints what does not hold; exits 1 then.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "monomoe/bench.h"
#include "monomoe/checkpoint.h"
#include "monomoe/monomoe.h"

static int failures = 0;

#define EXPECT(condition)                                                                                         \
  do {                                                                                                            \
    if (!(condition)) {                                                                                           \
      ++failures;                                                                                                 \
      fprintf(stderr, "line %d: %s does not hold; last error: %s\n", __LINE__, #condition, monomoe_last_error()); \
    }                                                                                                             \
  } while (0)

static void test_names(void) {
  EXPECT(strcmp(monomoe_version(), "0.1.0") == 0);
  EXPECT(monomoe_abi_version() == MONOMOE_ABI_VERSION);
  EXPECT(strcmp(monomoe_last_error(), "") == 0);
  EXPECT(strcmp(monomoe_status_name(MONOMOE_OK), "ok") == 0);
  EXPECT(strcmp(monomoe_status_name(MONOMOE_POISONED), "poisoned") == 0);
  monomoe_free_text(NULL);
  monomoe_context_destroy(NULL);
  monomoe_weights_destroy(NULL);
  monomoe_workspace_destroy(NULL);
  monomoe_checkpoint_close(NULL);
  monomoe_tensor_file_close(NULL);
  monomoe_bench_destroy(NULL);
}

static void test_reports(void) {
  char* json = NULL;
  monomoe_problem problem = {sizeof(problem), MONOMOE_NVFP4, 4096, 2048, 256, 6, 8, 64};
  EXPECT(monomoe_plan(&problem, &json) == MONOMOE_OK);
  EXPECT(json != NULL && strstr(json, "\"legal\":true") != NULL);
  monomoe_free_text(json);
  json = NULL;
  problem.hidden = 100;
  EXPECT(monomoe_plan(&problem, &json) == MONOMOE_OK);
  EXPECT(json != NULL && strstr(json, "\"legal\":false") != NULL && strstr(json, "hidden is 100") != NULL);
  monomoe_free_text(json);
  json = NULL;
  EXPECT(monomoe_plan(NULL, &json) == MONOMOE_USAGE && json == NULL);
  EXPECT(strstr(monomoe_last_error(), "problem") != NULL);
  EXPECT(monomoe_doctor(&json) == MONOMOE_OK);
  EXPECT(json != NULL && strstr(json, "\"cpu\"") != NULL);
  monomoe_free_text(json);
}

static void test_backends(void) {
  monomoe_context_options options = {.struct_size = sizeof(options), .backend = MONOMOE_BACKEND_AUTO, .num_ranks = 2, .num_threads = 2};
  monomoe_context* context = NULL;
  EXPECT(monomoe_context_create(&options, &context) == MONOMOE_OK);
  const char* why = NULL;
  // Where a Hopper GPU is, auto takes it; elsewhere it says why not, and cuda is refused.
  const int has_gpu = monomoe_context_backend(context, &why) == MONOMOE_BACKEND_CUDA;
  EXPECT(why != NULL && strstr(why, has_gpu ? "auto takes cuda" : "auto takes cpu") != NULL);
  monomoe_context_destroy(context);
  context = NULL;
  options.backend = MONOMOE_BACKEND_CUDA;
  const monomoe_status status = monomoe_context_create(&options, &context);
  EXPECT(has_gpu ? status == MONOMOE_OK : status == MONOMOE_UNAVAILABLE && context == NULL);
  EXPECT(has_gpu || strstr(monomoe_last_error(), "use backend cpu or auto") != NULL);
  monomoe_context_destroy(context);
}

static void test_tensor_file(const char* directory) {
  char path[4096];
  snprintf(path, sizeof(path), "%s/tensors.safetensors", directory);
  const float values[6] = {1, 2, 3, 4, 5, 6};
  monomoe_tensor tensor = {"a.b", "F32", 2, {2, 3}, values, sizeof(values)};
  EXPECT(monomoe_tensor_file_write(path, &tensor, 1) == MONOMOE_OK);
  monomoe_tensor_file* file = NULL;
  EXPECT(monomoe_tensor_file_open(path, &file) == MONOMOE_OK);
  EXPECT(monomoe_tensor_file_count(file) == 1);
  monomoe_tensor read;
  memset(&read, 0, sizeof(read));
  EXPECT(monomoe_tensor_file_find(file, "a.b", &read) == MONOMOE_OK);
  EXPECT(strcmp(read.dtype, "F32") == 0 && read.num_dims == 2 && read.dims[0] == 2 && read.dims[1] == 3);
  EXPECT(read.bytes == sizeof(values) && memcmp(read.data, values, sizeof(values)) == 0);
  EXPECT(monomoe_tensor_file_find(file, "absent", &read) == MONOMOE_BAD_INPUT);
  EXPECT(strstr(monomoe_last_error(), "absent") != NULL && strstr(monomoe_last_error(), path) != NULL);
  EXPECT(monomoe_tensor_file_at(file, 1, &read) == MONOMOE_USAGE);
  monomoe_tensor_file_close(file);
  // A wrong write leaves the old file.
  tensor.bytes = 5;
  EXPECT(monomoe_tensor_file_write(path, &tensor, 1) == MONOMOE_USAGE);
  file = NULL;
  EXPECT(monomoe_tensor_file_open(path, &file) == MONOMOE_OK);
  monomoe_tensor_file_close(file);
  // Names: UTF-8 or nothing.
  tensor.bytes = sizeof(values);
  tensor.name = "caf\xe9";
  EXPECT(monomoe_tensor_file_write(path, &tensor, 1) == MONOMOE_USAGE);
  EXPECT(strstr(monomoe_last_error(), "caf\\xe9") != NULL && strstr(monomoe_last_error(), "UTF-8") != NULL);
  tensor.name = "";
  EXPECT(monomoe_tensor_file_write(path, &tensor, 1) == MONOMOE_USAGE);
  tensor.name = "a";
  EXPECT(monomoe_tensor_file_write("", &tensor, 1) == MONOMOE_USAGE && strstr(monomoe_last_error(), "path is empty") != NULL);
  EXPECT(monomoe_synth("", NULL) == MONOMOE_USAGE);
}

// A count that cannot be meant is refused before an entry is read, as are arrays that no int32_t array can be.
static void test_placement(const char* directory) {
  char path[4096];
  snprintf(path, sizeof(path), "%s/checkpoint", directory);
  monomoe_context_options options = {.struct_size = sizeof(options), .backend = MONOMOE_BACKEND_CPU, .num_ranks = 2, .num_threads = 2};
  monomoe_context* context = NULL;
  monomoe_checkpoint* checkpoint = NULL;
  monomoe_weights* weights = NULL;
  EXPECT(monomoe_context_create(&options, &context) == MONOMOE_OK);
  EXPECT(monomoe_checkpoint_open(path, &checkpoint) == MONOMOE_OK);
  int32_t room[9] = {0, 1, 2, 3, 0, 1, 2, 3, 0};
  int32_t ranks[4] = {0, 0, 1, 1}, slots[4] = {0, 1, 0, 1};
  const int64_t wrong[] = {INT64_MIN, -1, 0, 33, 1000000000000, INT64_MAX};
  for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); ++i) {
    const monomoe_placement placement = {wrong[i], room, ranks, slots};
    EXPECT(monomoe_checkpoint_weights(context, checkpoint, 0, &placement, -1, &weights) == MONOMOE_USAGE && weights == NULL);
    EXPECT(strstr(monomoe_last_error(), "there must be 1 to 32") != NULL);
  }
  monomoe_placement placement = {4, (const int32_t*)((const char*)room + 1), ranks, slots};
  EXPECT(monomoe_checkpoint_weights(context, checkpoint, 0, &placement, -1, &weights) == MONOMOE_USAGE);
  EXPECT(strstr(monomoe_last_error(), "placement->expert is at address") != NULL);
  placement.expert = room;
  placement.slot = NULL;
  EXPECT(monomoe_checkpoint_weights(context, checkpoint, 0, &placement, -1, &weights) == MONOMOE_USAGE);
  EXPECT(strstr(monomoe_last_error(), "placement->slot is NULL") != NULL);
  placement.slot = slots;
  EXPECT(monomoe_checkpoint_weights(context, checkpoint, 0, &placement, -1, &weights) == MONOMOE_OK);
  monomoe_weights_destroy(weights);
  monomoe_checkpoint_close(checkpoint);
  monomoe_context_destroy(context);
}

static void test_checkpoint(const char* directory) {
  char path[4096];
  snprintf(path, sizeof(path), "%s/checkpoint", directory);
  monomoe_synth_options options = {sizeof(options), "qwen3-235b", MONOMOE_MXFP4, 1, 4, 3, 7};
  EXPECT(monomoe_synth(path, &options) == MONOMOE_OK);
  EXPECT(monomoe_synth(path, &options) == MONOMOE_USAGE);  // not empty any more
  monomoe_checkpoint* checkpoint = NULL;
  EXPECT(monomoe_checkpoint_open(path, &checkpoint) == MONOMOE_OK);
  if (checkpoint == NULL) return;
  monomoe_layer_info info = {0};
  info.struct_size = sizeof(info);
  EXPECT(monomoe_checkpoint_layer_info(checkpoint, 0, &info) == MONOMOE_OK);
  EXPECT(info.hidden == 4096 && info.intermediate == 1536 && info.num_experts == 4 && info.topk == 4);
  EXPECT(info.format == MONOMOE_MXFP4 && info.has_router && !info.needs_token_ids && !info.has_shared_expert);
  EXPECT(monomoe_checkpoint_layer_info(checkpoint, 1, &info) == MONOMOE_USAGE);
  uint16_t* x = calloc((size_t)(2 * info.hidden), sizeof(uint16_t));
  int64_t ids[8];
  float weights[8];
  EXPECT(monomoe_checkpoint_route(checkpoint, 0, x, 2, NULL, ids, weights) == MONOMOE_OK);
  for (int i = 0; i < 8; ++i) EXPECT(ids[i] == i % 4 && weights[i] == 0.25f);  // all logits are zero
  free(x);
  monomoe_checkpoint_close(checkpoint);
  char* json = NULL;
  EXPECT(monomoe_checkpoint_verify(path, -1, 1, &json) == MONOMOE_OK);
  EXPECT(json != NULL && strstr(json, "\"ok\":true") != NULL);
  monomoe_free_text(json);
}

static void test_bench(void) {
  monomoe_context_options options = {.struct_size = sizeof(options), .backend = MONOMOE_BACKEND_CPU};
  monomoe_bench_layer layer = {.struct_size = sizeof(layer)};
  monomoe_bench_call call = {.struct_size = sizeof(call), .repeats = 2};
  EXPECT(monomoe_bench_case("experts=4 topk=2 tokens=3 hidden=256 inter=128 w=fp8", &layer, &call, &options.num_ranks) == MONOMOE_OK);
  EXPECT(layer.format == MONOMOE_FP8 && call.num_tokens == 3 && options.num_ranks == 1);
  monomoe_context* context = NULL;
  monomoe_bench* bench = NULL;
  char* json = NULL;
  EXPECT(monomoe_context_create(&options, &context) == MONOMOE_OK);
  EXPECT(monomoe_bench_create(context, &layer, &bench) == MONOMOE_OK);
  EXPECT(monomoe_bench_run(bench, &call, &json) == MONOMOE_OK);
  EXPECT(json != NULL && strstr(json, "\"routes\":6") != NULL);
  monomoe_free_text(json);
  json = NULL;
  EXPECT(monomoe_bench_trace(bench, &call, &json) == MONOMOE_USAGE && json == NULL);
  monomoe_bench_destroy(bench);
  monomoe_context_destroy(context);
}

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: c_abi DIRECTORY\n");
    return 2;
  }
  test_names();
  test_reports();
  test_backends();
  test_tensor_file(argv[1]);
  test_checkpoint(argv[1]);
  test_placement(argv[1]);
  test_bench();
  return failures == 0 ? 0 : 1;
}
