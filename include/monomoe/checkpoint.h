// Checkpoints and tensor files: what the command line and other engines need around the layer. Conventions as in monomoe.h.
#ifndef MONOMOE_CHECKPOINT_H
#define MONOMOE_CHECKPOINT_H

#include "monomoe/monomoe.h"

#ifdef __cplusplus
extern "C" {
#endif

// Tensor files and checkpoints are mapped while their handles are open. A file that another program makes shorter meanwhile raises
// SIGBUS where its lost part is read. The library installs no signal handler: replace files by renaming, never in place, or handle
// the signal in the program.

// ---- Tensor files (safetensors) ------------------------------------------------------------------------------------------------

typedef struct monomoe_tensor {
  const char* name;
  const char* dtype;     // as in the file: "BF16", "F32", "I32", "I64", "F8_E4M3", ...
  int32_t num_dims;
  int64_t dims[8];
  const void* data;      // into the mapped file: may be unaligned
  uint64_t bytes;
} monomoe_tensor;

typedef struct monomoe_tensor_file monomoe_tensor_file;
MONOMOE_API monomoe_status monomoe_tensor_file_open(const char* path, monomoe_tensor_file** file);
MONOMOE_API void monomoe_tensor_file_close(monomoe_tensor_file* file);
MONOMOE_API int64_t monomoe_tensor_file_count(const monomoe_tensor_file* file);
// Pointers in *tensor live as long as the file.
MONOMOE_API monomoe_status monomoe_tensor_file_at(const monomoe_tensor_file* file, int64_t index, monomoe_tensor* tensor);
// MONOMOE_BAD_INPUT naming file and tensor if absent.
MONOMOE_API monomoe_status monomoe_tensor_file_find(const monomoe_tensor_file* file, const char* name, monomoe_tensor* tensor);
// Writes a file that appears whole or not at all; an older file of that name stays until then.
MONOMOE_API monomoe_status monomoe_tensor_file_write(const char* path, const monomoe_tensor* tensors, int64_t count);

// ---- Checkpoints ----------------------------------------------------------------------------------------------------------------

typedef struct monomoe_checkpoint monomoe_checkpoint;
MONOMOE_API monomoe_status monomoe_checkpoint_open(const char* directory, monomoe_checkpoint** checkpoint);
MONOMOE_API void monomoe_checkpoint_close(monomoe_checkpoint* checkpoint);

// What one layer is. Fields config.json does not give are -1 (or NAN for floats).
typedef struct monomoe_layer_info {
  uint32_t struct_size;
  monomoe_format format;
  int64_t hidden, intermediate;
  int32_t num_experts;
  int32_t topk;               // of config.json
  int32_t has_router;         // a gate is there: monomoe_checkpoint_route works
  int32_t needs_token_ids;    // a hash layer
  int32_t has_shared_expert;
  float swiglu_limit;         // of config.json; 0 = none
  float routed_scaling_factor;
  int64_t shared_intermediate;  // of the shared expert(s) taken as one; 0 = none
} monomoe_layer_info;
MONOMOE_API monomoe_status monomoe_checkpoint_layer_info(const monomoe_checkpoint* checkpoint, int32_t layer, monomoe_layer_info* info);

// Packs a layer's routed experts, or its shared expert(s) as one expert. swiglu_limit: < 0 = config.json's (none if absent).
// All of the layer's tensors are checked first; every bad one is listed.
MONOMOE_API monomoe_status monomoe_checkpoint_weights(monomoe_context* context, const monomoe_checkpoint* checkpoint, int32_t layer,
                                                      const monomoe_placement* placement, float swiglu_limit, monomoe_weights** weights);
MONOMOE_API monomoe_status monomoe_checkpoint_shared_weights(monomoe_context* context, const monomoe_checkpoint* checkpoint,
                                                             int32_t layer, float swiglu_limit, monomoe_weights** weights);
// The checkpoint's router: x bf16 [num_tokens, hidden]; token_ids I64 [num_tokens] for hash layers, else NULL.
// Out: topk_ids I64 [num_tokens, topk], topk_weights F32 [num_tokens, topk], scaling factor included.
MONOMOE_API monomoe_status monomoe_checkpoint_route(const monomoe_checkpoint* checkpoint, int32_t layer, const void* x, int64_t num_tokens,
                                                    const int64_t* token_ids, int64_t* topk_ids, float* topk_weights);

// Reports (JSON; free with monomoe_free_text). layer -1 = all. read_values 0: headers, index and settings alone are read, which takes
// seconds and little memory for the largest checkpoint; 1: codes and scales too, where they tell something.
// inspect: {"directory", "values_read", "layers":[{"layer","usable","format","hidden","intermediate","experts","topk","router":{...},
//           "shared_expert":{...},"num_matrices","matrices":[{"tensor","format","rows","cols",...}],...}]}. "matrices" is there with values or
//           of one layer; with values each has its "conversion":"exact|rounded","worst_relative_error","rms_relative_error",...
MONOMOE_API monomoe_status monomoe_checkpoint_inspect(const char* directory, int32_t layer, int32_t read_values, char** json);
// verify: {"ok":bool,"values_read","layers","problems":[{"file","tensor","where","what"}...],"notes":[...]}: every problem is listed;
// problems are a report, not an error.
MONOMOE_API monomoe_status monomoe_checkpoint_verify(const char* directory, int32_t layer, int32_t read_values, char** json);

// The layer against the float64 reference of the rounded weights (with the derived bound) and against exact dequantisation (information).
// tokens as for monomoe_forward (y may be NULL: verify uses its own memory); placement may be NULL.
// {"ok","stages":[{"stage","elements","outside_bound","unjudged","worst":{...}}],"first_diverging_stage","unjudged","cosine","calc_diff","worst":{...},
//  "bitwise":{"checked","equal" or "why_not",...}, "exact_dequantisation":{"cosine","calc_diff","worst"}, "times":{...}}
// unjudged: elements whose bound is infinite though a number is wanted (docs/bounds.md); top level: of the output. cosine, calc_diff: null where no element is
// finite on both sides. bitwise: every stage against the contract's scalar code, where that takes seconds at most. A check that does not hold is "ok": false,
// not an error.
MONOMOE_API monomoe_status monomoe_checkpoint_verify_run(monomoe_context* context, const monomoe_checkpoint* checkpoint, int32_t layer,
                                                         const monomoe_placement* placement, float swiglu_limit, int32_t topk,
                                                         const monomoe_tokens* tokens, char** json);
// The same for an output that was computed elsewhere, e.g. by ranks in several processes: y of each rank's tokens is given, not written, and held
// against the CPU backend's bits and the references. context: of backend cpu, all ranks. computed_by: for the report.
MONOMOE_API monomoe_status monomoe_checkpoint_verify_output(monomoe_context* context, const monomoe_checkpoint* checkpoint, int32_t layer,
                                                            const monomoe_placement* placement, float swiglu_limit, int32_t topk,
                                                            const monomoe_tokens* tokens, monomoe_backend computed_by, char** json);
// One case line (its ranks replace options->num_ranks), e.g. "ranks=4 experts=16 topk=4 tokens=37 hidden=512 inter=256 w=nvfp4 seed=3": random weights and tokens, the same checks.
// Keys: docs/cases.md. The same report as verify_run, with "case".
MONOMOE_API monomoe_status monomoe_verify_case(const monomoe_context_options* options, const char* line, char** json);

// ---- Converting and packing -----------------------------------------------------------------------------------------------------

typedef struct monomoe_pack_progress {
  uint32_t struct_size;
  int64_t shards_done, shards, shards_resumed;  // resumed: were there from an earlier run
  uint64_t bytes_done, bytes;                   // of tensors
  const char* layer;                            // of the shard being written: "3", "mtp.0", or "" for tensors outside MoE layers
} monomoe_pack_progress;
typedef void (*monomoe_pack_callback)(const monomoe_pack_progress* progress, void* user);

typedef struct monomoe_pack_options {
  uint32_t struct_size;
  int32_t allow_rounding;          // 0: refused (MONOMOE_CHECK_FAILED) if any weight would change its value
  const char* to;                  // "fp8", "nvfp4", "mxfp4", or "packed": the layout of the kernel
  const char* layers;              // "0,3..5,mtp.0"; NULL = all
  const char* experts;             // "0..15,20": these alone, numbered anew from 0; NULL = all
  int32_t num_threads;             // 0 = one per core
  monomoe_pack_callback callback;  // called from the calling thread after each piece of output; may be NULL
  void* user;                      // handed to callback
} monomoe_pack_options;
// Writes a new checkpoint directory `out` from `directory`: the routed experts converted or packed, routers and shared experts beside them
// and, when neither packed nor reduced, every other tensor and file as it is. Opened like any checkpoint by the functions above; of packed
// ones each expert's checksum is compared when it is loaded. Memory: a few experts, whatever the size of the checkpoint.
// Until the end everything is in out.partial, which a call with the same arguments takes up where a killed one stopped; one process at a
// time. Report: {"output","to","layers":[..],"experts","shards","shards_resumed","bytes","weights":{"converted","changed","underflows",
// "worst_relative_error","rms_relative_error"},"notes":[..]}; docs/checkpoints.md.
MONOMOE_API monomoe_status monomoe_pack(const char* directory, const char* out, const monomoe_pack_options* options, char** json);

// ---- Synthetic checkpoints ------------------------------------------------------------------------------------------------------

typedef struct monomoe_synth_options {
  uint32_t struct_size;
  const char* geometry;   // "deepseek-v4-flash", ...: monomoe_synth_geometries lists them
  monomoe_format format;
  int32_t num_layers;     // 0 = 1
  int32_t num_experts;    // 0 = the geometry's
  int64_t num_tokens;     // rows of the input file OUT/input.safetensors; 0 = 64
  uint64_t seed;
} monomoe_synth_options;
// Writes directory (must not exist, or be empty): config.json, index, shards of at most 2 GB, input.safetensors. Complete or not at all.
// input.safetensors holds x BF16 [num_tokens, hidden] and, for models with hash layers, token_ids I64 [num_tokens]: the checkpoint's
// own router decides, so its tensors are there too. Layers are numbered from 0 and all sparse; the first layers of DeepSeek-V4 are hash layers.
MONOMOE_API monomoe_status monomoe_synth(const char* directory, const monomoe_synth_options* options);
MONOMOE_API const char* const* monomoe_synth_geometries(void);  // NULL-terminated
// The model's top-k, -1 for an unknown name. A checkpoint with fewer experts than that gets a top-k of its number of experts.
MONOMOE_API int32_t monomoe_synth_topk(const char* geometry);

#ifdef __cplusplus
}
#endif
#endif
