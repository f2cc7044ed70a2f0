// Calls of the public ABI with GPU memory and streams: what the CUDA tests share.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "contract/abi_layer.hpp"
#include "cuda/devices.hpp"
#include "cuda/status.hpp"
#include "cuda/stream.hpp"

namespace monomoe::cuda_test {

using contract::AbiLayer;
using contract::ContextHandle;
using contract::WeightsHandle;
using contract::WorkspaceHandle;

inline void ok(cudaError_t status) { ASSERT_EQ(status, cudaSuccess) << cudaGetErrorString(status); }

// Every launch there is. Skips without a Hopper GPU.
class GpuTest : public ::testing::TestWithParam<monomoe_launch> {
 protected:
  void SetUp() override {
    monomoe_status status = MONOMOE_OK;
    contract::make_context(1, {"cuda"}, &status);
    if (status == MONOMOE_UNAVAILABLE) GTEST_SKIP() << "backend cuda is not available here: " << monomoe_last_error();
    ASSERT_EQ(status, MONOMOE_OK) << monomoe_last_error();
  }
};

// The GPU the backend gives a rank: one each if there are enough, else the first (all GPUs of a test machine are Hopper GPUs).
inline int gpu_of(int32_t rank, int32_t ranks) {
  int count = 0;
  ok(cudaGetDeviceCount(&count));
  return count >= ranks ? rank : 0;
}

// A stream of a GPU that waits for no other. It is used once before threads launch on streams at once, as monomoe.h says.
class TestStream {
 public:
  explicit TestStream(int gpu) {
    const cuda::CurrentGpu current(gpu);
    auto stream = cuda::make_stream();
    EXPECT_TRUE(stream.ok());
    if (stream) stream_ = stream.take().release();
  }
  TestStream(TestStream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  ~TestStream() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// One rank's tokens in memory of its GPU, with room for `capacity`.
class DeviceTokens {
 public:
  DeviceTokens(const Problem& problem, int64_t capacity, int gpu)
      : problem_(problem), gpu_(gpu), x_(make(capacity * problem.hidden * 2)), ids_(make(capacity * problem.topk * 8)),
        weights_(make(capacity * problem.topk * 4)), y_(make(capacity * problem.hidden * 2)) {}

  // Tokens [first, first + count) of the layer's case. Before any rank is enqueued: it waits for the whole GPU.
  void write(const AbiLayer& layer, int64_t first, int64_t count) {
    const cuda::CurrentGpu current(gpu_);
    ok(cudaMemcpy(x_.data(), layer.random.x.data() + first * problem_.hidden, count * problem_.hidden * 2, cudaMemcpyHostToDevice));
    ok(cudaMemcpy(ids_.data(), layer.random.ids.data() + first * problem_.topk, count * problem_.topk * 8, cudaMemcpyHostToDevice));
    ok(cudaMemcpy(weights_.data(), layer.random.weights.data() + first * problem_.topk, count * problem_.topk * 4, cudaMemcpyHostToDevice));
    ok(cudaMemset(y_.data(), 0xEE, y_.bytes()));
    ok(cudaDeviceSynchronize());
  }
  monomoe_tokens tokens(int64_t count) const {
    monomoe_tokens tokens{};
    tokens.struct_size = sizeof(tokens);
    tokens.x_dtype = MONOMOE_DTYPE_BF16;
    tokens.num_tokens = count;
    tokens.ids_dtype = MONOMOE_DTYPE_I64;
    tokens.x = x_.data();
    tokens.topk_ids = ids_.data();
    tokens.topk_weights = reinterpret_cast<const float*>(weights_.data());
    tokens.y = y_.data();
    return tokens;
  }
  // A call of as many tokens as count holds when the launch begins, at most `most`.
  monomoe_tokens tokens_counted_by(const cuda::DeviceBuffer& count, int64_t most) const {
    monomoe_tokens tokens = this->tokens(most);
    tokens.num_tokens_device = reinterpret_cast<const int64_t*>(count.data());
    return tokens;
  }
  std::vector<uint16_t> output(int64_t count) const {
    std::vector<uint16_t> y(static_cast<size_t>(count * problem_.hidden));
    ok(cudaMemcpy(y.data(), y_.data(), y.size() * 2, cudaMemcpyDeviceToHost));
    return y;
  }
  void set_id(int64_t index, int64_t id) { ok(cudaMemcpy(ids_.data() + index * 8, &id, 8, cudaMemcpyHostToDevice)); }

 private:
  cuda::DeviceBuffer make(int64_t bytes) const {
    const cuda::CurrentGpu current(gpu_);
    auto made = cuda::DeviceBuffer::make(bytes, "a test");
    EXPECT_TRUE(made.ok());
    return made.take();
  }
  Problem problem_;
  int gpu_;
  cuda::DeviceBuffer x_, ids_, weights_, y_;
};

inline const auto kEveryLaunch = ::testing::Values(MONOMOE_LAUNCH_ONE, MONOMOE_LAUNCH_SPLIT, MONOMOE_LAUNCH_UNFUSED);
inline std::string launch_name(const ::testing::TestParamInfo<monomoe_launch>& info) {
  return info.param == MONOMOE_LAUNCH_ONE ? "one" : info.param == MONOMOE_LAUNCH_SPLIT ? "split" : "unfused";
}

// A layer on `ranks` ranks of the CUDA backend, with a stream and GPU tokens a rank.
struct DeviceSession {
  DeviceSession(const AbiLayer& layer, int32_t ranks, int64_t capacity, monomoe_launch launch, uint32_t timeout_ms = 0)
      : context(contract::make_context(ranks, {"cuda", 2, 0, timeout_ms, launch})), weights(layer.weights(context)),
        workspace(layer.workspace(context, weights, capacity)) {
    for (int32_t rank = 0; rank < ranks; ++rank) {
      streams.emplace_back(gpu_of(rank, ranks));
      tokens.emplace_back(layer.c.problem, capacity + 1, gpu_of(rank, ranks));
    }
  }
  monomoe_status enqueue(int32_t rank, int64_t count) {
    const monomoe_tokens call = tokens[rank].tokens(count);
    return monomoe_forward_rank(weights.get(), workspace.get(), rank, &call, streams[rank].get(), nullptr);
  }
  void synchronise() {
    for (const TestStream& stream : streams) ok(cudaStreamSynchronize(stream.get()));
  }

  ContextHandle context;
  WeightsHandle weights;
  WorkspaceHandle workspace;
  std::vector<TestStream> streams;
  std::vector<DeviceTokens> tokens;
};

// The CPU backend's bits of the layer's first tokens.
inline std::vector<uint16_t> cpu_bits(const AbiLayer& layer, int64_t tokens) {
  contract::RunPlan plan;
  plan.rows = {tokens};
  plan.setting.backend = "cpu";
  return contract::run_layer(layer, plan);
}

inline std::vector<uint16_t> rows(const std::vector<uint16_t>& y, int64_t first, int64_t count, int64_t hidden) {
  return {y.begin() + first * hidden, y.begin() + (first + count) * hidden};
}

}  // namespace monomoe::cuda_test
