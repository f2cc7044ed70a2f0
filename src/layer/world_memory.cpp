// The exchange of memory between the ranks of a world. Every decision is made from what all ranks have told, so all make the same one.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "layer/cuda_probe.hpp"
#include "layer/world.hpp"

namespace monomoe::layer {
namespace {

enum class Method : int32_t { kHost = 1, kFile = 2, kIpc = 3 };

const char* method_name(Method method) {
  switch (method) {
    case Method::kHost: return "an anonymous file of the host's memory";
    case Method::kFile: return "file descriptors of virtual GPU memory";
    case Method::kIpc: return "CUDA IPC handles";
  }
  return "";
}

struct Sentence {
  char text[480] = {};
  void set(const std::string& value) { std::strncpy(text, value.c_str(), sizeof(text) - 1); }
};

// What a rank tells about its memory.
struct Offer {
  int64_t mapped_bytes = 0;
  uint8_t uuid[16] = {};    // of its GPU
  uint8_t handle[64] = {};
  Sentence problem;
};

// What the caller of each rank asks for. Ranks that want different sizes all get the largest: their workspaces then say in what they differ.
struct Wish {
  int64_t bytes = 0;
  int32_t is_gpu = 0, sharing = 0;
};

Result<int64_t> agreed_bytes(World& world, const Wish& mine) {
  auto wishes = gather(world, WorldStep::kMemory, mine);
  if (!wishes) return wishes.error();
  int64_t most = 0;
  for (size_t rank = 0; rank < wishes.value().size(); ++rank) {
    const Wish& first = wishes.value().front();
    const Wish& wish = wishes.value()[rank];
    most = std::max(most, wish.bytes);
    if (wish.is_gpu != first.is_gpu)
      return usage_error(fmt::format("rank 0 wants memory of {} and rank {} of {}; all ranks of a world take the same backend", first.is_gpu ? "a GPU" : "the host",
                                     rank, wish.is_gpu ? "a GPU" : "the host"));
    if (wish.sharing != first.sharing)
      return usage_error(fmt::format("options->sharing is {} on rank 0 and {} on rank {} (0 auto, 1 file, 2 ipc); all ranks of a world take the same",
                                     first.sharing, wish.sharing, rank));
  }
  return most;
}

// "rank 1: ...; rank 2: ..."; "" if there is none.
template <class T>
std::string problems_of(const std::vector<T>& told, const Sentence& (*sentence)(const T&)) {
  std::string text;
  for (size_t rank = 0; rank < told.size(); ++rank) {
    if (sentence(told[rank]).text[0] == '\0') continue;
    text += fmt::format("{}rank {}: {}", text.empty() ? "" : "; ", rank, sentence(told[rank]).text);
  }
  return text;
}

Result<std::unique_ptr<ShareableMemory>> make_own(Method method, int gpu, int64_t bytes) {
  if (method == Method::kHost) return make_shared_pages(bytes);
  return cuda::make_shareable_memory(method == Method::kFile ? cuda::MemorySharing::kFile : cuda::MemorySharing::kIpc, gpu, bytes);
}

void copy_uuid(int gpu, Offer& offer) {
  const CudaProbe probe = probe_cuda();
  if (gpu >= 0 && static_cast<size_t>(gpu) < probe.devices.size()) std::memcpy(offer.uuid, probe.devices[gpu].uuid.data(), sizeof(offer.uuid));
}

std::string missing_peer_access(int gpu, const std::vector<Offer>& offers) {
  std::string text;
  for (size_t rank = 0; rank < offers.size(); ++rank) {
    const std::string why = cuda::why_no_peer_access(gpu, {reinterpret_cast<const char*>(offers[rank].uuid), sizeof(offers[rank].uuid)});
    if (!why.empty()) text += fmt::format("{}{} (rank {})", text.empty() ? "" : ", ", why, rank);
  }
  return text;
}

struct Attempt {
  std::unique_ptr<monomoe_world_memory> memory;  // null: this method does not work, for the reason
  std::string reason;
};

// This rank's mappings of all others; what does not work is told to all.
Result<void> map_peers(World& world, std::vector<Offer>& offers, std::vector<FileDescriptor>& files, monomoe_world_memory& memory) {
  for (int32_t rank = 0; rank < world.ranks(); ++rank) {
    if (rank == world.rank()) continue;
    ExportedMemory theirs;
    theirs.bytes = offers[rank].mapped_bytes;
    std::copy(std::begin(offers[rank].handle), std::end(offers[rank].handle), theirs.handle.begin());
    if (!files.empty()) theirs.file = std::move(files[rank]);
    auto mapped = memory.memory->map(theirs);
    if (!mapped) return Error{mapped.error().status, fmt::format("memory of rank {}: {}", rank, mapped.error().message)};
    memory.peers[rank] = mapped.value();
  }
  return {};
}

// Three exchanges: what each has, the files, how mapping went.
Result<Attempt> attempt(monomoe_world& handle, Method method, int gpu, int64_t bytes) {
  World& world = *handle.world;
  const Sentence& (*of_offer)(const Offer&) = [](const Offer& offer) -> const Sentence& { return offer.problem; };
  const Sentence& (*of_sentence)(const Sentence&) = [](const Sentence& sentence) -> const Sentence& { return sentence; };
  Offer mine;
  if (method != Method::kHost) copy_uuid(gpu, mine);
  ExportedMemory exported;
  std::unique_ptr<monomoe_world_memory> memory(new monomoe_world_memory{&handle, {}, std::vector<void*>(static_cast<size_t>(world.ranks())), method_name(method)});
  if (auto own = make_own(method, gpu, bytes); own) {
    memory->memory = own.take();
    memory->peers[world.rank()] = memory->memory->own();
    if (auto told = world.ranks() > 1 ? memory->memory->export_own() : Result<ExportedMemory>(ExportedMemory{}); told) exported = told.take();
    else mine.problem.set(told.error().message);
  } else {
    mine.problem.set(own.error().message);
  }
  mine.mapped_bytes = exported.bytes;
  std::copy(exported.handle.begin(), exported.handle.end(), mine.handle);
  auto offers = gather(world, WorldStep::kMemory, mine);
  if (!offers) return offers.error();
  if (std::string problems = problems_of(offers.value(), of_offer); !problems.empty()) return Attempt{nullptr, std::move(problems)};
  std::vector<FileDescriptor> files;
  if (method != Method::kIpc) {
    auto got = world.exchange_files(WorldStep::kMap, exported.file.get());
    if (!got) return got.error();
    files = got.take();
  }
  Sentence verdict;
  if (method != Method::kHost) verdict.set(missing_peer_access(gpu, offers.value()));
  if (verdict.text[0] == '\0') {
    if (auto mapped = map_peers(world, offers.value(), files, *memory); !mapped) verdict.set(mapped.error().message);
  }
  auto verdicts = gather(world, WorldStep::kMapped, verdict);
  if (!verdicts) return verdicts.error();
  if (std::string problems = problems_of(verdicts.value(), of_sentence); !problems.empty()) return Attempt{nullptr, std::move(problems)};
  return Attempt{std::move(memory), {}};
}

}  // namespace

Result<std::unique_ptr<monomoe_world_memory>> make_world_memory(monomoe_world& world, bool is_gpu, int gpu, int64_t bytes) {
  auto agreed = agreed_bytes(*world.world, {bytes, is_gpu, world.sharing});
  if (!agreed) return agreed.error();
  bytes = agreed.value();
  std::vector<Method> methods = {Method::kHost};
  if (is_gpu) {
    methods.clear();
    if (world.sharing != MONOMOE_SHARING_IPC) methods.push_back(Method::kFile);
    if (world.sharing != MONOMOE_SHARING_FILE) methods.push_back(Method::kIpc);
  }
  std::string reasons;
  for (const Method method : methods) {
    auto tried = attempt(world, method, gpu, bytes);
    if (!tried) return tried.error();
    if (tried.value().memory != nullptr) {
      if (!reasons.empty()) tried.value().memory->how += fmt::format(", since they cannot share {}", reasons);
      return std::move(tried.value().memory);
    }
    reasons += fmt::format("{}{} ({})", reasons.empty() ? "" : " nor ", method_name(method), tried.value().reason);
  }
  return unavailable(fmt::format("the ranks of world '{}' cannot share {}; lower the capacity if memory is short, or take GPUs joined by NVLink, in "
                                 "processes that may share them",
                                 world.world->name(), reasons));
}

}  // namespace monomoe::layer

monomoe_world_memory::~monomoe_world_memory() {
  if (memory == nullptr) return;
  memory->unmap_peers();
  if (!memory->outlives_owner()) world->retired.push_back(std::move(memory));
}
