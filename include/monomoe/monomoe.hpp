// The C++20 face of monomoe.h: handles that destroy themselves, spans instead of pointers, and Expected<T> instead of exceptions.
// Nothing here throws on its own account. A handle must outlive what was made from it (Context > Weights, Workspace); moving is fine.
#ifndef MONOMOE_MONOMOE_HPP
#define MONOMOE_MONOMOE_HPP

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "monomoe/checkpoint.h"
#include "monomoe/monomoe.h"
#include "monomoe/world.h"

namespace monomoe::api {

// Why a call did not succeed: the status and the library's sentence.
struct Failure {
  monomoe_status status = MONOMOE_INTERNAL;
  std::string message;
};

// A value or a Failure. value() wants has_value().
template <class T>
class [[nodiscard]] Expected {
 public:
  Expected(T value) : state_(std::move(value)) {}
  Expected(Failure failure) : state_(std::move(failure)) {}

  bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }
  T& value() & { return *std::get_if<0>(&state_); }
  const T& value() const& { return *std::get_if<0>(&state_); }
  T&& value() && { return std::move(*std::get_if<0>(&state_)); }
  T& operator*() & { return value(); }
  T* operator->() { return std::get_if<0>(&state_); }
  const Failure& failure() const { return *std::get_if<1>(&state_); }

 private:
  std::variant<T, Failure> state_;
};

// Success without a value.
struct Done {};

namespace detail {

template <auto Destroy>
struct Destroyer {
  template <class T>
  void operator()(T* handle) const {
    Destroy(handle);
  }
};
template <class T, auto Destroy>
using Handle = std::unique_ptr<T, Destroyer<Destroy>>;

inline Failure last_failure(monomoe_status status) { return {status, monomoe_last_error()}; }

inline Expected<Done> done(monomoe_status status) {
  if (status != MONOMOE_OK) return last_failure(status);
  return Done{};
}

// Takes over what a C function hands out, as the C++ class Owner around Raw.
template <class Owner, class Raw, class Make>
Expected<Owner> own(Make make) {
  Raw* raw = nullptr;
  const monomoe_status status = make(&raw);
  if (status != MONOMOE_OK) return last_failure(status);
  return Owner(raw);
}

template <class Make>
Expected<std::string> text(Make make) {
  char* raw = nullptr;
  const monomoe_status status = make(&raw);
  if (status != MONOMOE_OK) return last_failure(status);
  const Handle<char, monomoe_free_text> owned(raw);
  return std::string(raw);
}

}  // namespace detail

class Context {
 public:
  static Expected<Context> create(monomoe_context_options options) {
    options.struct_size = sizeof(options);
    return detail::own<Context, monomoe_context>([&](monomoe_context** out) { return monomoe_context_create(&options, out); });
  }
  static Expected<Context> create(int32_t num_ranks) {
    monomoe_context_options options{};
    options.num_ranks = num_ranks;
    return create(options);
  }
  // One rank of a world of `world_ranks`, whose other ranks are other contexts or processes; the workspace gets the memory they share.
  static Expected<Context> create_rank(int32_t world_ranks, int32_t rank, monomoe_context_options options = {}) {
    options.world_ranks = world_ranks;
    options.rank = rank;
    return create(options);
  }
  explicit Context(monomoe_context* raw) : handle_(raw) {}
  monomoe_context* get() const { return handle_.get(); }
  monomoe_backend backend() const { return monomoe_context_backend(get(), nullptr); }
  std::string why() const {
    const char* sentence = "";
    monomoe_context_backend(get(), &sentence);
    return sentence;
  }

 private:
  detail::Handle<monomoe_context, monomoe_context_destroy> handle_;
};

// Ranks that are processes of one machine: see world.h. Leaves when it goes.
class World {
 public:
  // Collective.
  static Expected<World> join(const std::string& name, int32_t ranks, int32_t rank, uint32_t timeout_ms = 0) {
    monomoe_world_options options{};
    options.struct_size = sizeof(options);
    options.name = name.c_str();
    options.ranks = ranks;
    options.rank = rank;
    options.timeout_ms = timeout_ms;
    return detail::own<World, monomoe_world>([&](monomoe_world** out) { return monomoe_world_join(&options, out); });
  }
  explicit World(monomoe_world* raw) : handle_(raw) {}
  monomoe_world* get() const { return handle_.get(); }
  // Collective: the options of this rank's context.
  Expected<monomoe_context_options> place(monomoe_context_options options = {}) const {
    options.struct_size = sizeof(options);
    if (const monomoe_status status = monomoe_world_place(get(), &options, nullptr); status != MONOMOE_OK) return detail::last_failure(status);
    return options;
  }
  Expected<Done> barrier() const { return detail::done(monomoe_world_gather(get(), nullptr, 0, nullptr)); }
  // Tells the others why this rank cannot go on.
  void leave(const std::string& reason) { monomoe_world_leave(handle_.release(), reason.c_str()); }

 private:
  static void leave_silently(monomoe_world* world) { monomoe_world_leave(world, nullptr); }
  detail::Handle<monomoe_world, leave_silently> handle_;
};

// Memory of each rank that all ranks write, for one workspace.
class WorldMemory {
 public:
  // Collective. options: as placed by the world; they say whose memory.
  static Expected<WorldMemory> create(const World& world, const monomoe_context_options& options, int64_t bytes) {
    return detail::own<WorldMemory, monomoe_world_memory>(
        [&](monomoe_world_memory** out) { return monomoe_world_memory_create(world.get(), options.backend, options.gpu, bytes, out); });
  }
  explicit WorldMemory(monomoe_world_memory* raw) : handle_(raw) {}
  monomoe_world_memory* get() const { return handle_.get(); }
  std::span<void* const> peers(int32_t ranks) const { return {monomoe_world_memory_peers(get()), static_cast<size_t>(ranks)}; }
  std::string how() const { return monomoe_world_memory_how(get()); }

 private:
  detail::Handle<monomoe_world_memory, monomoe_world_memory_destroy> handle_;
};

class Weights {
 public:
  static Expected<Weights> create(const Context& context, monomoe_layer layer) {
    layer.struct_size = sizeof(layer);
    return detail::own<Weights, monomoe_weights>([&](monomoe_weights** out) { return monomoe_weights_create(context.get(), &layer, out); });
  }
  explicit Weights(monomoe_weights* raw) : handle_(raw) {}
  monomoe_weights* get() const { return handle_.get(); }
  int32_t max_local_experts() const { return monomoe_weights_max_local_experts(get()); }
  Expected<Done> replace_expert(int32_t expert, const monomoe_expert& source) {
    return detail::done(monomoe_weights_replace_expert(get(), expert, &source));
  }
  // A rank's packed experts where they are; they may be moved as whole rows.
  Expected<monomoe_packed_experts> packed_experts(int32_t rank) {
    monomoe_packed_experts packed{};
    packed.struct_size = sizeof(packed);
    if (const monomoe_status status = monomoe_weights_packed_experts(get(), rank, &packed); status != MONOMOE_OK)
      return detail::last_failure(status);
    return packed;
  }

 private:
  detail::Handle<monomoe_weights, monomoe_weights_destroy> handle_;
};

// What a workspace for one layer is sized by; capacity is per rank.
struct WorkspaceSize {
  int32_t topk = 1;
  int64_t hidden = 0, intermediate = 0, capacity = 0;
  monomoe_launch launch = MONOMOE_LAUNCH_AUTO;
};

class Workspace {
 public:
  // peers: with a context of one rank of a world only, every rank's symmetric memory as this process sees it; then creation is collective.
  static Expected<Workspace> create(const Context& context, const Weights& weights, const WorkspaceSize& size, std::span<void* const> peers = {}) {
    monomoe_workspace_options options = options_of(size);
    options.max_experts = weights.max_local_experts();
    options.peers = peers.data();
    return create(context, options);
  }
  // Bytes of symmetric memory that each rank of a world brings.
  static Expected<int64_t> symmetric_bytes(const Context& context, const WorkspaceSize& size) {
    const monomoe_workspace_options options = options_of(size);
    int64_t bytes = 0;
    if (const monomoe_status status = monomoe_symmetric_bytes(context.get(), &options, &bytes); status != MONOMOE_OK)
      return detail::last_failure(status);
    return bytes;
  }
  static Expected<Workspace> create(const Context& context, monomoe_workspace_options options) {
    options.struct_size = sizeof(options);
    return detail::own<Workspace, monomoe_workspace>(
        [&](monomoe_workspace** out) { return monomoe_workspace_create(context.get(), &options, out); });
  }
  explicit Workspace(monomoe_workspace* raw) : handle_(raw) {}
  monomoe_workspace* get() const { return handle_.get(); }
  // Whether an earlier call, also one on a stream, left it poisoned, and why.
  Expected<Done> status() const { return detail::done(monomoe_workspace_status(get())); }

 private:
  static monomoe_workspace_options options_of(const WorkspaceSize& size) {
    monomoe_workspace_options options{};
    options.struct_size = sizeof(options);
    options.topk = size.topk;
    options.hidden = size.hidden;
    options.max_intermediate = size.intermediate;
    options.capacity = size.capacity;
    return options;
  }
  detail::Handle<monomoe_workspace, monomoe_workspace_destroy> handle_;
};

// One rank's tokens from spans; num_tokens follows from topk_ids.size() / topk. bf16 values are their 16 bits.
inline monomoe_tokens tokens(std::span<const uint16_t> x, std::span<const int64_t> topk_ids, std::span<const float> topk_weights,
                             std::span<uint16_t> y, int64_t topk) {
  monomoe_tokens out{};
  out.struct_size = sizeof(out);
  out.x_dtype = MONOMOE_DTYPE_BF16;
  out.num_tokens = topk > 0 ? static_cast<int64_t>(topk_ids.size()) / topk : 0;
  out.x = x.data();
  out.ids_dtype = MONOMOE_DTYPE_I64;
  out.topk_ids = topk_ids.data();
  out.topk_weights = topk_weights.data();
  out.y = y.data();
  return out;
}

// All ranks of the context in one call: ranks[i] is rank i's.
inline Expected<Done> forward(const Weights& weights, Workspace& workspace, std::span<const monomoe_tokens> ranks,
                              monomoe_times* times = nullptr) {
  return detail::done(monomoe_forward(weights.get(), workspace.get(), ranks.data(), times));
}

// One rank's part of a call, from its own thread or process; stream: NULL blocks, else a cudaStream_t of the rank's GPU.
inline Expected<Done> forward_rank(const Weights& weights, Workspace& workspace, int32_t rank, monomoe_tokens tokens, void* stream = nullptr,
                                   monomoe_times* times = nullptr) {
  tokens.struct_size = sizeof(tokens);
  return detail::done(monomoe_forward_rank(weights.get(), workspace.get(), rank, &tokens, stream, times));
}

class Checkpoint {
 public:
  static Expected<Checkpoint> open(const std::string& directory) {
    return detail::own<Checkpoint, monomoe_checkpoint>(
        [&](monomoe_checkpoint** out) { return monomoe_checkpoint_open(directory.c_str(), out); });
  }
  explicit Checkpoint(monomoe_checkpoint* raw) : handle_(raw) {}
  monomoe_checkpoint* get() const { return handle_.get(); }
  Expected<monomoe_layer_info> layer_info(int32_t layer) const {
    monomoe_layer_info info{};
    info.struct_size = sizeof(info);
    const monomoe_status status = monomoe_checkpoint_layer_info(get(), layer, &info);
    if (status != MONOMOE_OK) return detail::last_failure(status);
    return info;
  }
  // swiglu_limit < 0: as config.json says.
  Expected<Weights> weights(const Context& context, int32_t layer, const monomoe_placement* placement = nullptr,
                            float swiglu_limit = -1.0f) const {
    return detail::own<Weights, monomoe_weights>(
        [&](monomoe_weights** out) { return monomoe_checkpoint_weights(context.get(), get(), layer, placement, swiglu_limit, out); });
  }

 private:
  detail::Handle<monomoe_checkpoint, monomoe_checkpoint_close> handle_;
};

// JSON reports.
inline Expected<std::string> plan(monomoe_problem problem) {
  problem.struct_size = sizeof(problem);
  return detail::text([&](char** out) { return monomoe_plan(&problem, out); });
}
inline Expected<std::string> doctor() {
  return detail::text([](char** out) { return monomoe_doctor(out); });
}

}  // namespace monomoe::api
#endif
