// Times the layer over R processes, a process a GPU: world_layer WORLD RANKS RANK nvfp4|fp8 [faults]. 32 experts a rank of the Flash shape (hidden 4096,
// intermediate 2048, top-6), M tokens a rank, routed over all ranks. A CUDA graph a call; cold: L2 is overwritten before the call that is timed,
// and a call before that brings the ranks together; b2b: calls follow each other. The slowest rank counts, medians over calls. Rank 0 prints one JSON object.
// faults: rank 1 is killed in the middle of a call; the others say whom they miss, and go on in a world without it.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reference/random_layer.hpp"
#include "world_rank.hpp"

using namespace monomoe::bench;
using monomoe::random_bits;

namespace {

constexpr int64_t kHidden = 4096, kIntermediate = 2048, kTopk = 6, kExpertsPerRank = 32, kCapacity = 8192;
constexpr int kCalls = 15, kWarmUp = 3, kInARow = 40;

using Context = std::unique_ptr<monomoe_context, Destroyer<monomoe_context_destroy>>;
using Weights = std::unique_ptr<monomoe_weights, Destroyer<monomoe_weights_destroy>>;
using Workspace = std::unique_ptr<monomoe_workspace, Destroyer<monomoe_workspace_destroy>>;

monomoe_matrix view(const monomoe::RandomMatrix& matrix, monomoe_format format, int64_t rows, int64_t cols) {
  const monomoe_scale_type scale = format == MONOMOE_NVFP4 ? MONOMOE_SCALE_E4M3 : static_cast<monomoe_scale_type>(matrix.matrix.scale_type);
  return {format, scale, rows, cols, matrix.codes.data(), matrix.scales.data(), matrix.matrix.global_scale};
}

// Two experts that differ; the others repeat them at other addresses.
struct Layer {
  Context context;
  Weights weights;
  MemoryHandle memory;
  Workspace workspace;  // first to go
};

Layer make_layer(const WorldRank& self, monomoe_format format) {
  const auto kind = format == MONOMOE_NVFP4 ? monomoe::WeightFormat::kNvfp4 : monomoe::WeightFormat::kFp8;
  Layer layer;
  monomoe_context* context = nullptr;
  must(monomoe_context_create(&self.options, &context));
  layer.context.reset(context);
  std::vector<monomoe::RandomMatrix> matrices;
  for (uint64_t i = 0; i < 6; ++i) {
    matrices.push_back(i % 3 == 2 ? monomoe::random_matrix(kind, kHidden, kIntermediate, 1, i) : monomoe::random_matrix(kind, kIntermediate, kHidden, 1, i));
  }
  std::vector<monomoe_expert> experts(static_cast<size_t>(kExpertsPerRank * self.ranks));
  for (int64_t e = self.rank * kExpertsPerRank; e < (self.rank + 1) * kExpertsPerRank; ++e) {
    const size_t first = static_cast<size_t>(e % 2) * 3;
    experts[static_cast<size_t>(e)] = {view(matrices[first], format, kIntermediate, kHidden), view(matrices[first + 1], format, kIntermediate, kHidden),
                                       view(matrices[first + 2], format, kHidden, kIntermediate)};
  }
  monomoe_layer description = {};
  description.struct_size = sizeof(description);
  description.num_experts = static_cast<int32_t>(experts.size());
  description.hidden = kHidden;
  description.intermediate = kIntermediate;
  description.experts = experts.data();
  description.swiglu_limit = 10;
  monomoe_weights* weights = nullptr;
  must(monomoe_weights_create(context, &description, &weights));
  layer.weights.reset(weights);
  monomoe_workspace_options sizes = {};
  sizes.struct_size = sizeof(sizes);
  sizes.topk = kTopk;
  sizes.hidden = kHidden;
  sizes.max_intermediate = kIntermediate;
  sizes.max_experts = monomoe_weights_max_local_experts(weights);
  sizes.capacity = kCapacity;
  int64_t bytes = 0;
  must(monomoe_symmetric_bytes(context, &sizes, &bytes));
  layer.memory = self.memory(bytes);
  sizes.peers = monomoe_world_memory_peers(layer.memory.get());
  monomoe_workspace* workspace = nullptr;
  must(monomoe_workspace_create(context, &sizes, &workspace));
  layer.workspace.reset(workspace);
  return layer;
}

struct Tokens {
  void *x = nullptr, *ids = nullptr, *weights = nullptr, *y = nullptr;
};

template <class T>
void* upload(const std::vector<T>& values) {
  void* data = nullptr;
  must(cudaMalloc(&data, values.size() * sizeof(T)), "allocating tokens");
  must(cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "copying tokens");
  return data;
}

// Experts of a token: all alike, or expert e with weight 1 / (e + 1) in an order of their own; ids of a token differ.
std::vector<int32_t> draw_ids(const WorldRank& self, bool skewed) {
  const int64_t experts = kExpertsPerRank * self.ranks;
  std::vector<double> sums;
  for (int64_t e = 0; e < experts; ++e) sums.push_back((sums.empty() ? 0 : sums.back()) + (skewed ? 1.0 / static_cast<double>(e + 1) : 1.0));
  std::vector<int32_t> ids(static_cast<size_t>(kCapacity * kTopk));
  for (int64_t token = 0; token < kCapacity; ++token) {
    uint64_t draw = 0;
    for (int64_t slot = 0; slot < kTopk; ++slot) {
      int32_t* const chosen = ids.data() + token * kTopk;
      do {
        const double at = static_cast<double>(random_bits(9 + static_cast<uint64_t>(self.rank), static_cast<uint64_t>(token), draw++) >> 11) * 0x1p-53 * sums.back();
        const auto place = static_cast<int64_t>(std::upper_bound(sums.begin(), sums.end(), at) - sums.begin());
        chosen[slot] = static_cast<int32_t>(std::min(place, experts - 1) * 37 % experts);
      } while (std::find(chosen, chosen + slot, chosen[slot]) != chosen + slot);
    }
  }
  return ids;
}

Tokens make_tokens(const WorldRank& self) {
  std::vector<uint16_t> x(static_cast<size_t>(kCapacity * kHidden));
  for (size_t i = 0; i < x.size(); ++i) {
    const float value = monomoe::random_bell(7, static_cast<uint64_t>(self.rank), i);
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    x[i] = static_cast<uint16_t>(bits >> 16);
  }
  return {upload(x), nullptr, upload(std::vector<float>(static_cast<size_t>(kCapacity * kTopk), 0.25f)), upload(std::vector<uint16_t>(x.size()))};
}

monomoe_tokens call_of(const Tokens& tokens, int64_t count) {
  monomoe_tokens call = {};
  call.struct_size = sizeof(call);
  call.x_dtype = MONOMOE_DTYPE_BF16;
  call.num_tokens = count;
  call.x = tokens.x;
  call.ids_dtype = MONOMOE_DTYPE_I32;
  call.topk_ids = tokens.ids;
  call.topk_weights = static_cast<const float*>(tokens.weights);
  call.y = tokens.y;
  return call;
}

struct Timing {
  double cold_us = 0, b2b_us = 0;
};

// Medians of this rank; one CUDA graph, replayed.
Timing time_calls(const WorldRank& self, const Layer& layer, const monomoe_tokens& call, void* flush, size_t flush_bytes, cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning a graph");
  must(monomoe_forward_rank(layer.weights.get(), layer.workspace.get(), self.rank, &call, stream, nullptr));
  must(cudaStreamEndCapture(stream, &graph), "ending a graph");
  must(cudaGraphInstantiate(&replay, graph, 0), "making a graph");
  must(cudaEventCreate(&begin), "making an event");
  must(cudaEventCreate(&end), "making an event");
  std::vector<float> us;
  for (int i = 0; i < kCalls + kWarmUp; ++i) {
    self.barrier();
    // A call before brings the ranks together, closer than their processes can; overwriting L2 takes all of them equally long.
    must(cudaGraphLaunch(replay, stream), "launching a graph");
    must(cudaMemsetAsync(flush, i, flush_bytes, stream), "clearing L2");
    must(cudaEventRecord(begin, stream), "recording an event");
    must(cudaGraphLaunch(replay, stream), "launching a graph");
    must(cudaEventRecord(end, stream), "recording an event");
    must(cudaEventSynchronize(end), "running the layer");
    float ms = 0;
    must(cudaEventElapsedTime(&ms, begin, end), "reading an event");
    if (i >= kWarmUp) us.push_back(ms * 1000);
  }
  std::sort(us.begin(), us.end());
  self.barrier();
  must(cudaEventRecord(begin, stream), "recording an event");
  for (int i = 0; i < kInARow; ++i) must(cudaGraphLaunch(replay, stream), "launching a graph");
  must(cudaEventRecord(end, stream), "recording an event");
  must(cudaEventSynchronize(end), "running the layer");
  float ms = 0;
  must(cudaEventElapsedTime(&ms, begin, end), "reading an event");
  must(monomoe_workspace_status(layer.workspace.get()));
  must(cudaGraphExecDestroy(replay), "destroying a graph");
  must(cudaGraphDestroy(graph), "destroying a graph");
  must(cudaEventDestroy(begin), "destroying an event");
  must(cudaEventDestroy(end), "destroying an event");
  return {us[us.size() / 2], ms * 1000 / kInARow};
}

// Tokens of a rank when the ranks' numbers differ: half as many, as many, none, twice as many ... of `each`.
int64_t count_of(const std::string& load, int64_t each, int32_t rank) {
  if (load == "idle") return rank == 1 ? 0 : each;
  if (load != "uneven") return each;
  constexpr int64_t kHalves[] = {1, 2, 0, 4};
  return std::min(each * kHalves[rank % 4] / 2, kCapacity);
}

nlohmann::ordered_json bench(const WorldRank& self, const Layer& layer, Tokens tokens, const std::string& format) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  cudaStream_t stream = nullptr;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
  void* flush = nullptr;
  constexpr size_t kFlush = size_t{256} << 20;
  must(cudaMalloc(&flush, kFlush), "allocating memory");
  void* const uniform = upload(draw_ids(self, false));
  void* const skewed = upload(draw_ids(self, true));
  for (const std::string load : {"uniform", "skewed", "uneven", "idle"}) {
    tokens.ids = load == "skewed" ? skewed : uniform;
    for (const int64_t each : {8, 64, 256, 1024, 4096, 8192}) {
      const int64_t count = count_of(load, each, self.rank);
      const Timing mine = time_calls(self, layer, call_of(tokens, count), flush, kFlush, stream);
      const std::vector<double> cold = self.gather(mine.cold_us), b2b = self.gather(mine.b2b_us), counts = self.gather(static_cast<double>(count));
      rows.push_back({{"format", format}, {"load", load}, {"tokens", each}, {"tokens_per_rank", counts}, {"cold_us", *std::max_element(cold.begin(), cold.end())},
                      {"b2b_us", *std::max_element(b2b.begin(), b2b.end())}, {"cold_us_of_ranks", cold}});
      if (self.rank == 0) std::fprintf(stderr, "%s %s M=%lld cold %.1f us, back to back %.1f us\n", format.c_str(), load.c_str(), static_cast<long long>(each),
                                       rows.back()["cold_us"].get<double>(), rows.back()["b2b_us"].get<double>());
    }
  }
  return rows;
}

// Rank 1 dies while the others' launches wait for it.
int faults(const std::string& name, int32_t ranks, int32_t rank, monomoe_format format) {
  nlohmann::ordered_json report;
  bool named = false;
  {
    const WorldRank self = join(name, ranks, rank, MONOMOE_SHARING_AUTO, 3000);
    const Layer layer = make_layer(self, format);
    Tokens tokens = make_tokens(self);
    tokens.ids = upload(draw_ids(self, false));
    const monomoe_tokens call = call_of(tokens, 64);
    must(monomoe_forward_rank(layer.weights.get(), layer.workspace.get(), rank, &call, nullptr, nullptr));
    self.barrier();
    if (rank == 1) kill(getpid(), SIGKILL);
    const monomoe_status status = monomoe_forward_rank(layer.weights.get(), layer.workspace.get(), rank, &call, nullptr, nullptr);
    const std::string sentence = monomoe_last_error();
    named = status != MONOMOE_OK && sentence.find("rank 1") != std::string::npos;
    report["sentence"] = sentence;
    report["gather"] = monomoe_world_gather(self.world.get(), nullptr, 0, nullptr) == MONOMOE_OK ? "it still answers" : monomoe_last_error();
  }
  const WorldRank self = join(name + "-2", ranks - 1, rank == 0 ? 0 : rank - 1, MONOMOE_SHARING_AUTO, 20000);
  const Layer layer = make_layer(self, format);
  Tokens tokens = make_tokens(self);
  tokens.ids = upload(draw_ids(self, false));
  const monomoe_tokens call = call_of(tokens, 64);
  must(monomoe_forward_rank(layer.weights.get(), layer.workspace.get(), self.rank, &call, nullptr, nullptr));
  report["named"] = named;
  report["went_on"] = true;
  if (rank == 0) std::printf("%s\n", report.dump().c_str());
  self.barrier();
  return named ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) fail("usage: world_layer WORLD RANKS RANK nvfp4|fp8 [faults]");
  const std::string word = argv[4];
  const monomoe_format format = word == "fp8" ? MONOMOE_FP8 : MONOMOE_NVFP4;
  if (argc > 5 && std::strcmp(argv[5], "faults") == 0) return faults(argv[1], std::atoi(argv[2]), std::atoi(argv[3]), format);
  const WorldRank self = join(argv[1], std::atoi(argv[2]), std::atoi(argv[3]), MONOMOE_SHARING_AUTO, 60000);
  const Layer layer = make_layer(self, format);
  nlohmann::ordered_json report = {{"ranks", self.ranks}, {"why", self.why}, {"memory", monomoe_world_memory_how(layer.memory.get())}};
  report["rows"] = bench(self, layer, make_tokens(self), word);
  if (self.rank == 0) std::printf("%s\n", report.dump().c_str());
  self.barrier();
  return 0;
}
