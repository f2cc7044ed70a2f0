// One rank of a world on the CUDA backend, over memory that its test allocates: shared by the tests with threads and the program that is a
// rank.
#pragma once

#include <unistd.h>

#include "cuda/device_call.hpp"

namespace monomoe::cuda_test {

inline constexpr const char* kExternalLine = "ranks=1 experts=7 topk=3 tokens=60 hidden=512 inter=192 w=nvfp4 seed=421 limit=3 dist=masked";
inline constexpr int64_t kCapacity = 40;

inline monomoe_workspace_options sizes_of(const AbiLayer& layer) {
  monomoe_workspace_options sizes{};
  sizes.struct_size = sizeof(sizes);
  sizes.topk = static_cast<int32_t>(layer.c.problem.topk);
  sizes.hidden = layer.c.problem.hidden;
  sizes.max_intermediate = layer.c.problem.intermediate;
  sizes.capacity = kCapacity;
  return sizes;
}

// One rank: context, weights with its own experts only, workspace over peers, a stream and tokens on the GPU.
struct ExternalRank {
  ExternalRank(const AbiLayer& of, int32_t ranks, int32_t number, uint32_t timeout_ms = 10000)
      : layer(of), rank(number), stream(0), tokens(of.c.problem, kCapacity + 1, 0) {
    monomoe_context_options options{};
    options.struct_size = sizeof(options);
    options.backend = MONOMOE_BACKEND_CUDA;
    options.num_threads = 1;
    options.timeout_ms = timeout_ms;
    options.world_ranks = ranks;
    options.rank = rank;
    options.gpu = 1;
    options.ranks_per_gpu = ranks;
    monomoe_context* raw = nullptr;
    EXPECT_EQ(monomoe_context_create(&options, &raw), MONOMOE_OK) << monomoe_last_error();
    context.reset(raw);
    const auto even = PlacementTable::even(static_cast<int64_t>(layer.experts.size()), ranks);
    std::vector<monomoe_expert> own(layer.experts.size());
    for (int32_t e = 0; e < static_cast<int32_t>(own.size()); ++e) {
      if (even.value().view().has_copy(e, rank)) own[e] = layer.experts[e];
    }
    monomoe_layer description = layer.layer();
    description.experts = own.data();
    description.tag = 5;
    monomoe_weights* raw_weights = nullptr;
    EXPECT_EQ(monomoe_weights_create(context.get(), &description, &raw_weights), MONOMOE_OK) << monomoe_last_error();
    weights.reset(raw_weights);
  }
  int64_t symmetric_bytes() const {
    int64_t bytes = 0;
    const monomoe_workspace_options sizes = sizes_of(layer);
    EXPECT_EQ(monomoe_symmetric_bytes(context.get(), &sizes, &bytes), MONOMOE_OK) << monomoe_last_error();
    return bytes;
  }
  monomoe_status join(const std::vector<void*>& peers, int64_t capacity = kCapacity) {
    monomoe_workspace_options sizes = sizes_of(layer);
    sizes.max_experts = monomoe_weights_max_local_experts(weights.get());
    sizes.peers = peers.data();
    sizes.capacity = capacity;
    monomoe_workspace* raw = nullptr;
    const monomoe_status status = monomoe_workspace_create(context.get(), &sizes, &raw);
    workspace.reset(raw);
    return status;
  }
  monomoe_status forward(const monomoe_tokens& call, bool on_stream) {
    return monomoe_forward_rank(weights.get(), workspace.get(), rank, &call, on_stream ? stream.get() : nullptr, nullptr);
  }
  monomoe_status status() const { return monomoe_workspace_status(workspace.get()); }

  const AbiLayer& layer;
  int32_t rank;
  ContextHandle context;
  WeightsHandle weights;
  WorkspaceHandle workspace;
  TestStream stream;
  DeviceTokens tokens;
};

// The memory of all ranks on GPU 0, zero.
inline std::vector<cuda::DeviceBuffer> zeroed(int32_t ranks, int64_t bytes) {
  std::vector<cuda::DeviceBuffer> buffers;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    auto made = cuda::DeviceBuffer::make(bytes, "a rank's symmetric memory");
    EXPECT_TRUE(made.ok());
    buffers.push_back(made.take());
    ok(cudaMemset(buffers.back().data(), 0, bytes));
  }
  ok(cudaDeviceSynchronize());
  return buffers;
}

inline std::vector<void*> addresses(const std::vector<cuda::DeviceBuffer>& buffers) {
  std::vector<void*> peers;
  for (const cuda::DeviceBuffer& buffer : buffers) peers.push_back(buffer.data());
  return peers;
}

// Whole messages through pipes.
inline bool send(int file, const void* data, size_t bytes) { return write(file, data, bytes) == static_cast<ssize_t>(bytes); }
inline bool receive(int file, void* data, size_t bytes) {
  for (size_t at = 0; at < bytes;) {
    const ssize_t got = read(file, static_cast<char*>(data) + at, bytes - at);
    if (got <= 0) return false;
    at += static_cast<size_t>(got);
  }
  return true;
}

}  // namespace monomoe::cuda_test
