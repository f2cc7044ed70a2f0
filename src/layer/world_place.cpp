// Which backend the ranks of a world take, and which GPU each of them: decided by all from what all have told.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "layer/arguments.hpp"
#include "layer/cuda_probe.hpp"
#include "layer/world.hpp"

namespace monomoe::layer {
namespace {

// What a rank tells of itself.
struct Place {
  int32_t asked = 0;         // monomoe_backend
  int32_t can_cuda = 0;
  int32_t gpu = -1;          // as this process numbers it
  uint8_t uuid[16] = {};
  char name[96] = {};        // of the GPU
  char why_not[400] = {};
};

void set(char* to, size_t bytes, const std::string& text) { std::strncpy(to, text.c_str(), bytes - 1); }

// The Hopper GPU of a rank among those its process sees: its own number, the only one, or the rank's share of them.
std::optional<int> gpu_of(const CudaProbe& probe, int asked, int32_t rank, int32_t ranks) {
  std::vector<int> hoppers;
  for (size_t i = 0; i < probe.devices.size(); ++i) {
    if (probe.devices[i].major == 9 && probe.devices[i].minor == 0) hoppers.push_back(static_cast<int>(i));
  }
  if (asked >= 0) return std::ranges::count(hoppers, asked) != 0 ? std::optional(asked) : std::nullopt;
  if (hoppers.empty()) return std::nullopt;
  const auto seen = static_cast<int32_t>(hoppers.size());
  return hoppers[seen >= ranks ? rank : rank * seen / ranks];
}

Place place_of(const World& world, const monomoe_context_options& options) {
  Place place;
  place.asked = enum_number(options.backend);
  if (place.asked == MONOMOE_BACKEND_CPU) return place;
  const CudaProbe probe = probe_cuda();
  const auto refuse = [&](const std::string& why) {
    set(place.why_not, sizeof(place.why_not), why);
    return place;
  };
  if (const std::string why = cuda_unavailable_reason(probe); !why.empty()) return refuse(why);
  const auto gpu = gpu_of(probe, options.gpu - 1, world.rank(), world.ranks());
  if (!gpu) return refuse(fmt::format("GPU {} (options->gpu is {}, counted from 1) is not a Hopper GPU that this process sees", options.gpu - 1, options.gpu));
  const CudaDevice& device = probe.devices[*gpu];
  if (device.is_mig() && world.ranks() > 1)
    return refuse(fmt::format("GPU {} is a MIG instance ({}), whose memory no other process can map; give the ranks whole GPUs", *gpu, device.name));
  place.can_cuda = 1;
  place.gpu = *gpu;
  std::copy(device.uuid.begin(), device.uuid.end(), place.uuid);
  set(place.name, sizeof(place.name), device.name);
  return place;
}

bool same_gpu(const Place& a, const Place& b) { return std::equal(std::begin(a.uuid), std::end(a.uuid), std::begin(b.uuid)); }

// All ranks' choice.
Result<bool> takes_cuda(const std::vector<Place>& places, std::string& why) {
  for (size_t rank = 1; rank < places.size(); ++rank) {
    if (places[rank].asked != places[0].asked)
      return usage_error(fmt::format("options->backend is {} on rank 0 and {} on rank {} (0 auto, 1 cpu, 2 cuda); all ranks of a world take the same",
                                     places[0].asked, places[rank].asked, rank));
  }
  why = "cpu was asked for";
  if (places[0].asked == MONOMOE_BACKEND_CPU) return false;
  const auto unable = std::ranges::find(places, 0, &Place::can_cuda);
  if (unable == places.end()) return true;
  const std::string reason = fmt::format("rank {}: {}", unable - places.begin(), unable->why_not);
  if (places[0].asked == MONOMOE_BACKEND_CUDA) return unavailable(fmt::format("backend cuda: {}; use backend cpu or auto", reason));
  why = "auto takes cpu: " + reason;
  return false;
}

}  // namespace

Result<void> place_rank(World& world, monomoe_context_options& options, std::string& why) {
  const int asked = enum_number(options.backend);
  if (asked < MONOMOE_BACKEND_AUTO || asked > MONOMOE_BACKEND_CUDA)
    return usage_error(fmt::format("options->backend is {}, wanted 0 auto, 1 cpu or 2 cuda", asked));
  if (options.gpu < 0) return usage_error(fmt::format("options->gpu is {}, wanted 0 or more", options.gpu));
  const Place mine = place_of(world, options);
  auto told = gather(world, WorldStep::kPlace, mine);
  if (!told) return told.error();
  const std::vector<Place>& places = told.value();
  auto cuda = takes_cuda(places, why);
  if (!cuda) return cuda.error();
  options.num_ranks = 0;
  options.world_ranks = world.ranks();
  options.rank = world.rank();
  options.backend = cuda.value() ? MONOMOE_BACKEND_CUDA : MONOMOE_BACKEND_CPU;
  options.gpu = options.ranks_per_gpu = 0;
  if (!cuda.value()) {
    why += fmt::format("; {} processes", world.ranks());
    return {};
  }
  options.gpu = mine.gpu + 1;
  options.ranks_per_gpu = static_cast<int32_t>(std::ranges::count_if(places, [&](const Place& place) { return same_gpu(place, mine); }));
  int64_t gpus = 0;
  for (auto place = places.begin(); place != places.end(); ++place)
    gpus += std::none_of(places.begin(), place, [&](const Place& before) { return same_gpu(before, *place); });
  why = fmt::format("{}: {} processes on {} GPU{} ({})", asked == MONOMOE_BACKEND_CUDA ? "cuda was asked for" : "auto takes cuda", world.ranks(), gpus,
                    gpus == 1 ? "" : "s", mine.name);
  return {};
}

}  // namespace monomoe::layer
