// The ABI of worlds: argument checks around src/comm/world.hpp and the files beside this one.
#include <fmt/format.h>

#include <memory>
#include <string>

#include "layer/arguments.hpp"
#include "layer/error_state.hpp"
#include "layer/world.hpp"

namespace monomoe::layer {
namespace {

constexpr uint32_t kDefaultWorldTimeoutMs = 30000;
constexpr uint32_t kLeaveMs = 2000;

Result<std::unique_ptr<monomoe_world>> join_world(const monomoe_world_options& options) {
  if (auto given = require_pointer(options.name, "options->name"); !given) return given.error();
  const int sharing = enum_number(options.sharing);
  if (sharing < MONOMOE_SHARING_AUTO || sharing > MONOMOE_SHARING_IPC)
    return usage_error(fmt::format("options->sharing is {}, wanted 0 auto, 1 file or 2 ipc", sharing));
  auto joined = World::join({options.name, options.ranks, options.rank, options.timeout_ms == 0 ? kDefaultWorldTimeoutMs : options.timeout_ms,
                             monomoe_version()});
  if (!joined) return joined.error();
  auto world = std::make_unique<monomoe_world>();
  world->world = joined.take();
  world->sharing = static_cast<monomoe_sharing>(sharing);
  return world;
}

void leave_world(monomoe_world* world, const char* reason) {
  world->world->leave(reason != nullptr ? reason : "");
  // Memory that another process may still have mapped is kept until this one ends.
  if (!world->retired.empty() && !world->world->await_others_left(kLeaveMs)) {
    for (auto& memory : world->retired) (void)memory.release();
  }
  delete world;
}

}  // namespace
}  // namespace monomoe::layer

using namespace monomoe;
using namespace monomoe::layer;

extern "C" {

monomoe_status monomoe_world_join(const monomoe_world_options* options, monomoe_world** world) {
  return guarded([&]() -> Result<void> {
    auto known = read_struct(options, "options");
    if (!known) return known.error();
    if (auto given = require_pointer(world, "world"); !given) return given;
    auto joined = join_world(known.value());
    if (!joined) return joined.error();
    *world = joined.value().release();
    return {};
  });
}

void monomoe_world_leave(monomoe_world* world, const char* reason) {
  if (world == nullptr) return;
  (void)guarded([&]() -> Result<void> {
    leave_world(world, reason);
    return {};
  });
}

monomoe_status monomoe_world_place(monomoe_world* world, monomoe_context_options* options, char** why) {
  return guarded([&]() -> Result<void> {
    if (auto given = require_pointer(world, "world"); !given) return given;
    if (auto given = require_pointer(options, "options"); !given) return given;
    if (options->struct_size < sizeof(monomoe_context_options))
      return usage_error(fmt::format("options->struct_size is {}, wanted {}: its last fields are written", options->struct_size, sizeof(monomoe_context_options)));
    if (auto given = require_struct(options, "options"); !given) return given;
    std::string sentence;
    if (auto placed = place_rank(*world->world, *options, sentence); !placed) return placed;
    if (why != nullptr) *why = caller_text(sentence);
    return {};
  });
}

monomoe_status monomoe_world_gather(monomoe_world* world, const void* mine, int64_t bytes, void* all) {
  return guarded([&]() -> Result<void> {
    if (auto given = require_pointer(world, "world"); !given) return given;
    if (bytes < 0 || bytes > static_cast<int64_t>(kMaxPayload)) return usage_error(fmt::format("bytes is {}, wanted 0..{}", bytes, kMaxPayload));
    if (bytes > 0) {
      if (auto given = require_pointer(mine, "mine"); !given) return given;
      if (auto given = require_pointer(all, "all"); !given) return given;
    }
    const auto count = static_cast<size_t>(bytes);
    return world->world->gather(WorldStep::kCaller, {static_cast<const std::byte*>(mine), count},
                                {static_cast<std::byte*>(all), count * static_cast<size_t>(world->world->ranks())});
  });
}

monomoe_status monomoe_world_memory_create(monomoe_world* world, monomoe_backend backend, int32_t gpu, int64_t bytes, monomoe_world_memory** memory) {
  return guarded([&]() -> Result<void> {
    if (auto given = require_pointer(world, "world"); !given) return given;
    if (auto given = require_pointer(memory, "memory"); !given) return given;
    const int kind = enum_number(backend);
    if (kind != MONOMOE_BACKEND_CPU && kind != MONOMOE_BACKEND_CUDA) return usage_error(fmt::format("backend is {}, wanted 1 cpu or 2 cuda", kind));
    const bool is_gpu = kind == MONOMOE_BACKEND_CUDA;
    if (gpu < 0 || (!is_gpu && gpu != 0)) return usage_error(fmt::format("gpu is {}, wanted 0 or more, and 0 for host memory", gpu));
    if (bytes < 0) return usage_error(fmt::format("bytes is {}, wanted 0 or more", bytes));
    auto number = is_gpu ? cuda::usable_gpu(gpu - 1) : Result<int>(-1);
    if (!number) return number.error();
    auto made = make_world_memory(*world, is_gpu, number.value(), bytes);
    if (!made) return made.error();
    *memory = made.value().release();
    return {};
  });
}

void* const* monomoe_world_memory_peers(const monomoe_world_memory* memory) { return memory == nullptr ? nullptr : memory->peers.data(); }
const char* monomoe_world_memory_how(const monomoe_world_memory* memory) { return memory == nullptr ? "" : memory->how.c_str(); }
void monomoe_world_memory_destroy(monomoe_world_memory* memory) { delete memory; }

}  // extern "C"
