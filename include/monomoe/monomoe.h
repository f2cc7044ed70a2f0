// monomoe: one expert-parallel Mixture-of-Experts layer (quantise, dispatch, GEMM1, clamped SwiGLU, requantise, GEMM2, combine).
//
// C ABI. Conventions:
//  - A function that can fail returns monomoe_status; monomoe_last_error() then holds a sentence for the calling thread. Nothing is
//    printed, nothing aborts, no exception leaves the library. On failure output parameters are unchanged.
//  - Handles are opaque. Who creates, destroys; a handle must outlive what was made from it (context > weights, workspace).
//  - Structs given by pointer begin with struct_size = sizeof(struct): later versions may append fields, which are 0 for callers with an
//    earlier header. Zero-initialise them. In an array of such structs the elements lie struct_size apart.
//  - Tensors are row-major and contiguous; [A, B] is a shape; bf16 is the upper half of an fp32.
//  - The arithmetic is a contract (docs/numerics.md): the same inputs give the same bits on every backend, for any number of
//    ranks, any placement, capacity, batch position, thread count and vector width.
#ifndef MONOMOE_MONOMOE_H
#define MONOMOE_MONOMOE_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define MONOMOE_API
#else
#define MONOMOE_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define MONOMOE_ABI_VERSION 2

typedef enum monomoe_status {
  MONOMOE_OK = 0,
  MONOMOE_CHECK_FAILED = 1,  // a comparison did not hold
  MONOMOE_USAGE = 2,         // an argument is wrong
  MONOMOE_BAD_INPUT = 3,     // a file or tensor is wrong
  MONOMOE_UNAVAILABLE = 4,   // not possible on this machine
  MONOMOE_INTERNAL = 5,      // a fault of the library
  MONOMOE_TIMEOUT = 6,       // a rank did not arrive in time; the workspace is poisoned: destroy and create it anew
  MONOMOE_REJECTED = 7,      // another rank refused this call's arguments; nothing was computed, the next call may succeed
  MONOMOE_POISONED = 8       // an earlier call failed in the middle: destroy the workspace and create it anew
} monomoe_status;

// The sentence of the calling thread's last failure; "" if none. Valid until the thread's next call into the library.
MONOMOE_API const char* monomoe_last_error(void);
// One word for a status, e.g. "bad input". Static.
MONOMOE_API const char* monomoe_status_name(monomoe_status status);
// Version of the library, "0.1.0", and of the ABI it was built with (compare with MONOMOE_ABI_VERSION). Static.
MONOMOE_API const char* monomoe_version(void);
MONOMOE_API uint32_t monomoe_abi_version(void);

// ---- Context: a backend and the ranks of this process ------------------------------------------------------------------------
//
// Either all ranks are in this process (world_ranks 0), or the context is one rank of a world whose other ranks are other contexts, as a rule
// in other processes. Then the caller brings the memory the ranks share (monomoe_workspace_options.peers), and monomoe_forward_rank is the call.

typedef enum monomoe_backend { MONOMOE_BACKEND_AUTO = 0, MONOMOE_BACKEND_CPU = 1, MONOMOE_BACKEND_CUDA = 2 } monomoe_backend;

// How a call becomes launches on the CUDA backend; the bits are the same. The choice is made here and never depends on a call's tokens.
//  - ONE: one launch does the whole call. AUTO takes it.
//  - SPLIT: the same kernel twice on the stream, up to GEMM1 and from GEMM2 on, so that other streams' work gets multiprocessors between them.
//  - UNFUSED: a kernel a step, simple on purpose: something to check and measure the others against. Needs ranks * capacity * topk *
//    max(2 * intermediate, hidden) * 4 bytes more memory a rank.
// The CPU backend takes AUTO and ONE. Calls of SPLIT and UNFUSED on caller's streams: ranks that share a GPU must not share a hardware queue
// (the environment's CUDA_DEVICE_MAX_CONNECTIONS streams, 8 by default, have one each), for a launch in it can wait for one behind it.
typedef enum monomoe_launch {
  MONOMOE_LAUNCH_AUTO = 0, MONOMOE_LAUNCH_ONE = 1, MONOMOE_LAUNCH_SPLIT = 2, MONOMOE_LAUNCH_UNFUSED = 3
} monomoe_launch;

typedef struct monomoe_context_options {
  uint32_t struct_size;
  monomoe_backend backend;  // AUTO takes the best this machine runs; monomoe_context_backend says which and why
  int32_t num_ranks;        // 1..64, all in this process; 0 = 1. With world_ranks: 0 or 1
  int32_t num_threads;      // CPU threads over all ranks; 0 = one per core. At least one per rank is used
  int32_t vector_bits;      // CPU vectors: 0 = widest the machine has, or 128, 256, 512. The bits of the result do not change
  uint32_t timeout_ms;      // longest wait for another rank; 0 = 30000
  monomoe_launch launch;    // of workspaces whose own launch is AUTO
  int32_t world_ranks;      // 0: all ranks are in this process. 1..64: ranks of the world, of which this context is one
  int32_t rank;             // which one: 0..world_ranks-1; with world_ranks only
  int32_t gpu;              // CUDA, with world_ranks: the rank's GPU as CUDA numbers it, plus one; 0 = the calling thread's current one
  int32_t ranks_per_gpu;    // CUDA, with world_ranks: ranks that run on this GPU at the same time and share its multiprocessors; 0 = 1
} monomoe_context_options;

typedef struct monomoe_context monomoe_context;
MONOMOE_API monomoe_status monomoe_context_create(const monomoe_context_options* options, monomoe_context** context);
MONOMOE_API void monomoe_context_destroy(monomoe_context* context);  // NULL is allowed, as for every destroy
// The backend taken; *why (optional) is a sentence owned by the context.
MONOMOE_API monomoe_backend monomoe_context_backend(const monomoe_context* context, const char** why);

// ---- Weights: the experts of one layer, packed ---------------------------------------------------------------------------------

typedef enum monomoe_format { MONOMOE_FP8 = 0, MONOMOE_NVFP4 = 1, MONOMOE_MXFP4 = 2, MONOMOE_BF16 = 3 } monomoe_format;
typedef enum monomoe_scale_type {
  MONOMOE_SCALE_NONE = 0, MONOMOE_SCALE_F32 = 1, MONOMOE_SCALE_BF16 = 2, MONOMOE_SCALE_E8M0 = 3, MONOMOE_SCALE_E4M3 = 4
} monomoe_scale_type;

// A matrix [rows, cols] as checkpoints hold it (rows: output channels). Pointers are host memory, any alignment, read during the call only.
//   FP8    codes e4m3 [rows, cols]; scales [ceil(rows/128), ceil(cols/128)] F32, BF16 or E8M0: any finite value >= 0
//   NVFP4  codes [rows, cols/2], low nibble = even column; scales E4M3 [rows, cols/16]; global_scale = weight_scale_2
//   MXFP4  codes [rows, cols/2], low nibble = even column; scales E8M0 [rows, cols/32]
typedef struct monomoe_matrix {
  monomoe_format format;
  monomoe_scale_type scale_type;
  int64_t rows, cols;
  const void* codes;
  const void* scales;
  float global_scale;  // NVFP4 only
} monomoe_matrix;

typedef struct monomoe_expert {
  monomoe_matrix gate, up;  // [intermediate, hidden]
  monomoe_matrix down;      // [hidden, intermediate]
} monomoe_expert;

// Where experts live. count entries: expert[i] is held by rank[i] in slot[i] (slots of a rank: 0..n-1, each once). Every expert needs at
// least one entry; more are redundant copies, at most 4 * num_ranks of an expert. A rank may hold none.
typedef struct monomoe_placement {
  int64_t count;
  const int32_t* expert;
  const int32_t* rank;
  const int32_t* slot;
} monomoe_placement;

typedef struct monomoe_layer {
  uint32_t struct_size;
  int32_t num_experts;                // 1..1024
  int64_t hidden;                     // multiple of 128
  int64_t intermediate;               // multiple of 32
  const monomoe_expert* experts;      // [num_experts], all in one format. In a context of one rank of a world only the experts placed on
                                      // that rank are read, the others may be all zero; NULL is legal for a rank that holds none
  const monomoe_placement* placement; // of the whole world. NULL: expert e on ranks in order, as even as possible
  float swiglu_limit;                 // clamp of gate (above) and up (both sides); 0 or +inf = none; negative or NaN is refused
  uint64_t tag;                       // ranks of a world: any number, the same on all ranks and another for each layer, e.g. its number in
                                      // the model. Ranks notice if they run different layers, by shape, placement, clamp and tag
} monomoe_layer;

typedef struct monomoe_weights monomoe_weights;
// Checks every code and scale (NaN codes, negative or non-finite scales are refused, naming expert, matrix and position) and packs. Thread-safe.
MONOMOE_API monomoe_status monomoe_weights_create(monomoe_context* context, const monomoe_layer* layer, monomoe_weights** weights);
MONOMOE_API void monomoe_weights_destroy(monomoe_weights* weights);
// Replaces one expert in all its copies of this process. Not while a forward uses the weights. On failure the old expert stays. An expert that
// lives on other ranks only is refused: its ranks replace it.
MONOMOE_API monomoe_status monomoe_weights_replace_expert(monomoe_weights* weights, int32_t expert, const monomoe_expert* source);

// The packed experts of one rank where they are, for whoever moves experts between ranks or layers: data is num_experts rows of
// expert_bytes, one for each slot in order, host memory or, with the CUDA backend, memory of the rank's GPU. A row is a whole expert,
// scales and factors included: a copy of it in any other slot of a layer of the same format, hidden and intermediate size (and library
// version) is that expert. The bytes are not looked at again, so write nothing but such rows. Rows are written while no forward uses the
// weights, or on its stream.
typedef struct monomoe_packed_experts {
  uint32_t struct_size;
  int32_t num_experts;   // 0: the rank holds none, data is NULL
  void* data;            // lives as long as the weights
  int64_t expert_bytes;  // a multiple of 1024
  int32_t gpu;           // whose memory it is, as CUDA numbers GPUs; -1: host memory
} monomoe_packed_experts;
// rank: one of this process. Refused if an expert of the rank has other copies, which would stay as they are: number copies as experts.
MONOMOE_API monomoe_status monomoe_weights_packed_experts(monomoe_weights* weights, int32_t rank, monomoe_packed_experts* packed);

// ---- Workspace: symmetric memory, local memory and flags of all ranks -------------------------------------------------------------

typedef struct monomoe_workspace_options {
  uint32_t struct_size;
  int32_t topk;              // slots per token, 1..32
  int64_t hidden;            // of the layers that will use it
  int64_t max_intermediate;  // largest of those layers
  int32_t max_experts;       // largest number of experts one rank holds in those layers, see monomoe_weights_max_local_experts
  int64_t capacity;          // most tokens one rank may bring in one call; 0 is legal
  monomoe_launch launch;     // of every call of every rank; AUTO: the context's
  void* const* peers;        // [world_ranks], with world_ranks only and needed there: each rank's symmetric memory, see below
} monomoe_workspace_options;

typedef struct monomoe_workspace monomoe_workspace;
// One set of weights may be used with several workspaces and one workspace with several layers, one call at a time per workspace.
MONOMOE_API monomoe_status monomoe_workspace_create(monomoe_context* context, const monomoe_workspace_options* options,
                                                    monomoe_workspace** workspace);
MONOMOE_API void monomoe_workspace_destroy(monomoe_workspace* workspace);  // waits for calls on streams
// The largest number of experts one rank holds, over all ranks of the world.
MONOMOE_API int32_t monomoe_weights_max_local_experts(const monomoe_weights* weights);

// Symmetric memory from outside, for the ranks of a world. Every rank brings monomoe_symmetric_bytes of memory that the others can write, and
// gives each workspace the addresses, in its own process, of the memory of all ranks: peers[rank] its own, peers[r] where rank r's is mapped.
//  - CPU: memory shared between the processes (mmap MAP_SHARED). CUDA: memory of the rank's GPU, mapped for the others with write access
//    (CUDA IPC, virtual memory, torch symmetric memory, an NCCL window, NVSHMEM). Addresses are multiples of 256.
//  - It is zero when the addresses are handed out, and nobody else writes it. It serves one workspace a rank: zero it before the next one.
//  - It stays the caller's and must stay mapped until every rank has ended its last call: a fast rank's flags may still arrive.
// monomoe_workspace_create is collective there: every rank calls it, and it returns when all have, or with MONOMOE_TIMEOUT, naming who did not
// come. The ranks exchange fingerprints through the memory (version, backend, ranks, hidden, intermediate, topk, capacity); ranks that differ get
// MONOMOE_USAGE with the values of both. peers is read during the call only. After a failure zero the memory before the next attempt.
MONOMOE_API monomoe_status monomoe_symmetric_bytes(const monomoe_context* context, const monomoe_workspace_options* options, int64_t* bytes);
// Fills all regions of this process's ranks that are not flags with a byte: results must not depend on it. Not during a call. For tests.
MONOMOE_API monomoe_status monomoe_workspace_poison(monomoe_workspace* workspace, uint8_t byte);
// MONOMOE_OK, or MONOMOE_POISONED with the cause. Does not wait: it tells how a call on a stream ended once the stream was synchronised.
MONOMOE_API monomoe_status monomoe_workspace_status(const monomoe_workspace* workspace);

// ---- Forward -----------------------------------------------------------------------------------------------------------------------

typedef enum monomoe_dtype {
  MONOMOE_DTYPE_BF16 = 0, MONOMOE_DTYPE_F32 = 1, MONOMOE_DTYPE_I32 = 2, MONOMOE_DTYPE_I64 = 3, MONOMOE_DTYPE_E4M3 = 4
} monomoe_dtype;

// One rank's tokens. Pointers may be NULL where num_tokens is 0. They must be aligned to their element.
// CUDA backend: each may be host memory, which is copied, or memory of the rank's GPU, which is used as it is, must be ready when the call is
// made, and where x and y must be aligned to 16 bytes. Ids in GPU memory are checked by the launch: a bad one poisons the workspace. A call
// that fails while it runs (timeout, such an id) may have written part of a y in GPU memory; a y in host memory stays as it was.
typedef struct monomoe_tokens {
  uint32_t struct_size;
  monomoe_dtype x_dtype;      // BF16, or E4M3 for rows that are already quantised (then x_scales is needed)
  int64_t num_tokens;         // 0..capacity; ranks need not agree. With num_tokens_device: the most it may hold
  const void* x;              // [num_tokens, hidden]
  const float* x_scales;      // [num_tokens, hidden/128], E4M3 only
  monomoe_dtype ids_dtype;    // I32 or I64
  const void* topk_ids;       // [num_tokens, topk]; negative: the slot is dropped, its weight is not read; >= num_experts is refused
  const float* topk_weights;  // [num_tokens, topk], used as they are: no renormalisation, no scaling factor
  void* y;                    // out, bf16 [num_tokens, hidden]; written only on success
  const int64_t* num_tokens_device;  // NULL, or GPU memory from which the launch reads the number of tokens: CUDA with a stream only, so that
                                     // one graph serves changing numbers. Unchanged until the launch has ended. A value outside
                                     // 0..num_tokens poisons the workspace, nothing is read or written beyond
} monomoe_tokens;

// Thread time by stage, summed over workers, in seconds, and the wall time of the call. CUDA backend: wall only, the stages are 0.
typedef struct monomoe_times {
  uint32_t struct_size;
  double wall, dispatch, routes, gemm1, gemm2, combine, wait;
} monomoe_times;

// One call for all ranks of the context: tokens[num_ranks]. times may be NULL. Returns when y is written. Refused in a context of one
// rank of a world.
MONOMOE_API monomoe_status monomoe_forward(const monomoe_weights* weights, monomoe_workspace* workspace, const monomoe_tokens* tokens,
                                           monomoe_times* times);
// The same for one rank: collective, every rank of the context or world calls it, from its own thread or process. With stream NULL the call blocks: a rank whose
// arguments are refused returns MONOMOE_USAGE, the others MONOMOE_REJECTED; a rank that never comes makes the others return MONOMOE_TIMEOUT
// after timeout_ms, naming it.
// CUDA backend, stream: a cudaStream_t of the rank's GPU (the default stream is cudaStreamLegacy here). The launch, or the launches, are enqueued there: no wait,
// no allocation, times 0, every pointer GPU memory; it may be captured in a CUDA graph from the first call on. All ranks of a call give a
// stream, ranks of one GPU different ones and none hundreds of launches ahead of the others, for they share the GPU's launch queue. A rank that
// is refused returns MONOMOE_USAGE and takes part without tokens, so the others' call is whole; while its stream is captured it enqueues
// nothing. What fails later is told by monomoe_workspace_status and the next call. Ranks of a world do the same with stream NULL: no rank
// knows of a refusal before it launches, so none returns MONOMOE_REJECTED; and a blocking rank may meet others on streams.
MONOMOE_API monomoe_status monomoe_forward_rank(const monomoe_weights* weights, monomoe_workspace* workspace, int32_t rank,
                                                const monomoe_tokens* tokens, void* stream, monomoe_times* times);

// ---- Plan -------------------------------------------------------------------------------------------------------------------------------

typedef struct monomoe_problem {
  uint32_t struct_size;
  monomoe_format format;
  int64_t hidden, intermediate, experts, topk, ranks, capacity;
} monomoe_problem;

// Reports are JSON text owned by the caller: free with monomoe_free_text.
// {"legal": bool, "rule": sentence if not, "bytes_per_rank": {"symmetric","workspace","weights","total"}, "regions": {...}, "tiles": {...}}
// An illegal problem is a report, not an error.
MONOMOE_API monomoe_status monomoe_plan(const monomoe_problem* problem, char** json);
// What one call cannot take less than: per GPU (H100, H200, H20) the time to read the touched experts, for the products and on the links, and
// the largest of them; and what it is expected to take, from what was measured on an H200. tokens: of each rank, at most the capacity; routing is taken as uniform. {"tokens","routes_per_rank","touched_experts",
// "weight_bytes","flops","link_bytes","gpus":[{"gpu","measured_rates","thread_blocks","read_seconds","product_seconds","link_seconds",
// "bound_seconds","bound_by","expected_seconds"}]}. An illegal problem is an error here.
MONOMOE_API monomoe_status monomoe_plan_time(const monomoe_problem* problem, int64_t tokens, char** json);
// What this machine can run and why not the rest: {"backends": {"cpu": {...}, "cuda": {...}}, ...}
MONOMOE_API monomoe_status monomoe_doctor(char** json);
MONOMOE_API void monomoe_free_text(char* text);

#ifdef __cplusplus
}
#endif
#endif
