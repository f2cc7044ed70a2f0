// Worlds: ranks that are processes of one machine find each other, choose their GPUs and share the memory a workspace needs. Conventions as
// in monomoe.h. Who has such memory already (torch symmetric memory, NCCL windows, NVSHMEM) needs nothing of this: monomoe_symmetric_bytes.
//
//   monomoe_world_join(&{name, ranks, rank}, &world);            every rank, under one name
//   monomoe_world_place(world, &context_options, NULL);          backend, GPU and rank; then monomoe_context_create, monomoe_weights_create
//   monomoe_symmetric_bytes(context, &workspace_options, &bytes);
//   monomoe_world_memory_create(world, backend, context_options.gpu, bytes, &memory);
//   workspace_options.peers = monomoe_world_memory_peers(memory);  then monomoe_workspace_create and monomoe_forward_rank
//
// Functions marked collective are called by every rank, in the same order, one at a time in a world; they return when all have called, or with
// an error that names the rank to blame. After that the world is useless: every call returns the first error. Leave it, and form a new one under
// another name, from the ranks that are left or with new processes. Nothing stays behind however processes end: sockets and memory have no
// names in any folder.
#ifndef MONOMOE_WORLD_H
#define MONOMOE_WORLD_H

#include "monomoe/monomoe.h"

#ifdef __cplusplus
extern "C" {
#endif

// How processes map each other's GPU memory. AUTO tries file descriptors of virtual memory, which stay valid in whatever order processes end, then
// CUDA IPC handles. Host memory is always an anonymous file.
typedef enum monomoe_sharing { MONOMOE_SHARING_AUTO = 0, MONOMOE_SHARING_FILE = 1, MONOMOE_SHARING_IPC = 2 } monomoe_sharing;

typedef struct monomoe_world_options {
  uint32_t struct_size;
  const char* name;         // 1..64 letters, digits, '.', '_' and '-': the same on all ranks, another for each world of this user on this machine
  int32_t ranks, rank;      // 1..64; 0..ranks-1
  uint32_t timeout_ms;      // longest wait for another rank in each collective function; 0 = 30000
  monomoe_sharing sharing;  // of GPU memory; the same on all ranks
} monomoe_world_options;

typedef struct monomoe_world monomoe_world;
// Collective. Ranks must be processes (or threads) of one user and one machine, in one network namespace. MONOMOE_TIMEOUT names the ranks that
// did not come; MONOMOE_USAGE: ranks differ in library version or number of ranks, naming both, or a rank was started twice.
MONOMOE_API monomoe_status monomoe_world_join(const monomoe_world_options* options, monomoe_world** world);
// Not collective; destroys the handle, after all memory made with it. reason: NULL, or why this rank cannot go on: the others' collective call, now
// or next, returns MONOMOE_REJECTED with "rank R gave up: reason". Where memory was shared by CUDA IPC this waits up to 2 s for the others to leave.
MONOMOE_API void monomoe_world_leave(monomoe_world* world, const char* reason);

// Collective. Completes options for this rank: world_ranks and rank; backend, one for all ranks (AUTO: cuda if every rank can); gpu, unless it is set:
// the only one this process sees, or its share of those it sees, in order; ranks_per_gpu, from the GPUs' UUIDs. *why (may be NULL): a sentence on
// the choice, free with monomoe_free_text. Asked for cuda, a rank without a usable GPU makes all fail, naming it; so does a MIG instance, whose
// memory other processes cannot map. Makes no CUDA context.
MONOMOE_API monomoe_status monomoe_world_place(monomoe_world* world, monomoe_context_options* options, char** why);

// Collective. all: [ranks] pieces of `bytes`, each rank's `mine` in order. 0..32768 bytes, the same on all ranks; 0 is a barrier, both may be NULL.
MONOMOE_API monomoe_status monomoe_world_gather(monomoe_world* world, const void* mine, int64_t bytes, void* all);

typedef struct monomoe_world_memory monomoe_world_memory;
// Collective. Zeroed memory of `bytes` on each rank that all ranks can write: of the host (MONOMOE_BACKEND_CPU) or of a GPU (MONOMOE_BACKEND_CUDA; gpu
// as in monomoe_context_options: counted from 1, 0 = the thread's current one; host: 0). The same backend on all ranks; of different bytes all get the
// most. MONOMOE_UNAVAILABLE lists, by rank, what could not be allocated, shared, reached or mapped. Make it anew for each workspace.
MONOMOE_API monomoe_status monomoe_world_memory_create(monomoe_world* world, monomoe_backend backend, int32_t gpu, int64_t bytes,
                                                       monomoe_world_memory** memory);
// [ranks] addresses in this process; owned by the memory.
MONOMOE_API void* const* monomoe_world_memory_peers(const monomoe_world_memory* memory);
// How it is shared, and why not otherwise: a sentence, owned by the memory.
MONOMOE_API const char* monomoe_world_memory_how(const monomoe_world_memory* memory);
// Not collective, in any order among the ranks, but after this rank's workspace on it.
MONOMOE_API void monomoe_world_memory_destroy(monomoe_world_memory* memory);

// Collective. One case line (docs/cases.md; its ranks must be the world's): random weights and tokens through the ranks of this world, with options
// as completed by monomoe_world_place. Rank 0 holds the output against the CPU backend and the references, and gets the report of
// monomoe_verify_case; the others get {"case","rank"}.
MONOMOE_API monomoe_status monomoe_world_verify_case(monomoe_world* world, const monomoe_context_options* options, const char* line, char** json);

#ifdef __cplusplus
}
#endif
#endif
