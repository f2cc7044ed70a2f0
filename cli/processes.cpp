// One process a rank, seen from inside it. The library does the rest: include/monomoe/world.h.
#include "processes.hpp"

#include <fmt/format.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <thread>

namespace monomoe::cli {
namespace {

WorldHandle join(const std::string& name, int32_t ranks, int32_t rank, uint32_t timeout_ms) {
  monomoe_world_options options = {};
  options.struct_size = sizeof(options);
  options.name = name.c_str();
  options.ranks = ranks;
  options.rank = rank;
  options.timeout_ms = timeout_ms;
  monomoe_world* world = nullptr;
  check(monomoe_world_join(&options, &world));
  return WorldHandle(world);
}

constexpr size_t kMostName = 64;  // of a world, see world.h

}  // namespace

std::string world_of_part(const std::string& world, int64_t part) {
  std::string name = fmt::format("{}.{}", world, part);
  if (name.size() > kMostName)
    usage_error(fmt::format("--world {} has {} characters; the ranks meet anew for each part of the run, here as {}, and {} are the most; give a name of at most {}",
                            world, world.size(), name, kMostName, kMostName - (name.size() - world.size())));
  return name;
}

RankWorld::RankWorld(const std::string& name, int32_t ranks, int32_t rank, const ContextOptions& options) : ranks_(ranks), rank_(rank) {
  placed_ = options.view(0);
  world_ = join(name, ranks, rank, placed_.timeout_ms);
  // The threads are shared out; of cores that were not asked for, the library would give all to every rank.
  const int64_t threads = options.threads > 0 ? options.threads : static_cast<int64_t>(std::max(1u, std::thread::hardware_concurrency()));
  placed_.num_threads = static_cast<int32_t>(std::max<int64_t>(1, threads / ranks + (rank < threads % ranks ? 1 : 0)));
  char* why = nullptr;
  check(monomoe_world_place(handle(), &placed_, &why));
  const Text text(why);
  why_ = why;
}

Context RankWorld::create_context() const {
  monomoe_context* context = nullptr;
  check(monomoe_context_create(&placed_, &context));
  return Context(context);
}

void RankWorld::barrier() const { check(monomoe_world_gather(handle(), nullptr, 0, nullptr)); }

WorldMemory RankWorld::memory(monomoe_backend backend, int32_t gpu, int64_t bytes) const {
  monomoe_world_memory* memory = nullptr;
  check(monomoe_world_memory_create(handle(), backend, gpu, bytes, &memory));
  return WorldMemory(memory);
}

void RankWorld::outlive_parent() const { prctl(PR_SET_PDEATHSIG, 0); }

ExitCode as_rank(const ProcessOptions& options, int32_t ranks, const ContextOptions& context, const std::function<ExitCode(RankWorld&)>& body) {
  if (options.rank >= ranks) usage_error(fmt::format("--rank {} of --ranks {}: wanted 0 to {}", options.rank, ranks, ranks - 1));
  RankWorld world(options.world, ranks, options.rank, context);
  try {
    return body(world);
  } catch (const std::exception& error) {
    if (world.handle() != nullptr) world.leave(error.what());
    throw;
  }
}

}  // namespace monomoe::cli
