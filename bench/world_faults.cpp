// What the ranks of a world see when one of their processes dies, a process a GPU: world_faults WORLD RANKS RANK. Rank 1 is killed while
// the others' launches wait for it; they must say whom they miss, and go on in a world without it, with the right bits. Rank 0 prints one
// JSON object.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reference/random_layer.hpp"
#include "world_rank.hpp"

using namespace monomoe::bench;

namespace {

constexpr int64_t kHidden = 1024, kIntermediate = 512, kTopk = 4, kExpertsPerRank = 8, kTokens = 64;
constexpr uint32_t kMissedAfterMs = 3000, kTimeoutMs = 20000;

using Context = std::unique_ptr<monomoe_context, Destroyer<monomoe_context_destroy>>;
using Weights = std::unique_ptr<monomoe_weights, Destroyer<monomoe_weights_destroy>>;
using Workspace = std::unique_ptr<monomoe_workspace, Destroyer<monomoe_workspace_destroy>>;

struct Layer {
  Context context;
  Weights weights;
  MemoryHandle memory;
  Workspace workspace;  // first to go
};

monomoe_matrix view(const monomoe::RandomMatrix& matrix, int64_t rows, int64_t cols) {
  return {MONOMOE_NVFP4, MONOMOE_SCALE_E4M3, rows, cols, matrix.codes.data(), matrix.scales.data(), matrix.matrix.global_scale};
}

// All experts are alike.
Weights make_weights(const WorldRank& self, monomoe_context* context) {
  constexpr auto kNvfp4 = monomoe::WeightFormat::kNvfp4;
  const monomoe::RandomMatrix gate = monomoe::random_matrix(kNvfp4, kIntermediate, kHidden, 1, 0),
                              up = monomoe::random_matrix(kNvfp4, kIntermediate, kHidden, 1, 1);
  const monomoe::RandomMatrix down = monomoe::random_matrix(kNvfp4, kHidden, kIntermediate, 1, 2);
  const monomoe_expert expert = {view(gate, kIntermediate, kHidden), view(up, kIntermediate, kHidden), view(down, kHidden, kIntermediate)};
  const std::vector<monomoe_expert> experts(static_cast<size_t>(kExpertsPerRank * self.ranks), expert);
  monomoe_layer description = {};
  description.struct_size = sizeof(description);
  description.num_experts = static_cast<int32_t>(experts.size());
  description.hidden = kHidden;
  description.intermediate = kIntermediate;
  description.experts = experts.data();
  description.swiglu_limit = 10;
  monomoe_weights* weights = nullptr;
  must(monomoe_weights_create(context, &description, &weights));
  return Weights(weights);
}

Layer make_layer(const WorldRank& self) {
  Layer layer;
  monomoe_context* context = nullptr;
  must(monomoe_context_create(&self.options, &context));
  layer.context.reset(context);
  layer.weights = make_weights(self, context);
  monomoe_workspace_options sizes = {};
  sizes.struct_size = sizeof(sizes);
  sizes.topk = kTopk;
  sizes.hidden = kHidden;
  sizes.max_intermediate = kIntermediate;
  sizes.max_experts = monomoe_weights_max_local_experts(layer.weights.get());
  sizes.capacity = kTokens;
  int64_t bytes = 0;
  must(monomoe_symmetric_bytes(context, &sizes, &bytes));
  layer.memory = self.memory(bytes);
  sizes.peers = monomoe_world_memory_peers(layer.memory.get());
  monomoe_workspace* workspace = nullptr;
  must(monomoe_workspace_create(context, &sizes, &workspace));
  layer.workspace.reset(workspace);
  return layer;
}

// One blocking call; every token has experts of all ranks in turn.
monomoe_status forward(const WorldRank& self, const Layer& layer) {
  const std::vector<uint16_t> x(static_cast<size_t>(kTokens * kHidden), 0x3F80);  // 1.0
  std::vector<uint16_t> y(x.size());
  std::vector<int32_t> ids(static_cast<size_t>(kTokens * kTopk));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>(i * kExpertsPerRank % static_cast<size_t>(kExpertsPerRank * self.ranks));
  const std::vector<float> weights(ids.size(), 0.25f);
  monomoe_tokens call = {};
  call.struct_size = sizeof(call);
  call.x_dtype = MONOMOE_DTYPE_BF16;
  call.num_tokens = kTokens;
  call.x = x.data();
  call.ids_dtype = MONOMOE_DTYPE_I32;
  call.topk_ids = ids.data();
  call.topk_weights = weights.data();
  call.y = y.data();
  return monomoe_forward_rank(layer.weights.get(), layer.workspace.get(), self.rank, &call, nullptr, nullptr);
}

// What this rank is told when rank 1 does not come any more.
nlohmann::ordered_json lose_rank_one(const std::string& name, int32_t ranks, int32_t rank) {
  const WorldRank self = join(name, ranks, rank, MONOMOE_SHARING_AUTO, kMissedAfterMs);
  const Layer layer = make_layer(self);
  must(forward(self, layer));
  self.barrier();
  if (rank == 1) kill(getpid(), SIGKILL);
  const monomoe_status status = forward(self, layer);
  const std::string sentence = monomoe_last_error();
  nlohmann::ordered_json report = {{"named", status != MONOMOE_OK && sentence.find("rank 1") != std::string::npos}, {"sentence", sentence}};
  report["gather"] = monomoe_world_gather(self.world.get(), nullptr, 0, nullptr) == MONOMOE_OK ? "it still answers" : monomoe_last_error();
  return report;
}

// The ranks that are left compute a case of their own number; rank 0 gets the verdict on its bits.
bool go_on(const std::string& name, int32_t ranks, int32_t rank) {
  const WorldRank self = join(name, ranks, rank, MONOMOE_SHARING_AUTO, kTimeoutMs);
  const std::string line = "ranks=" + std::to_string(ranks) + " experts=" + std::to_string(4 * ranks) +
                           " topk=4 tokens=" + std::to_string(32 * ranks) + " hidden=512 inter=256 w=nvfp4 seed=1";
  char* report = nullptr;
  must(monomoe_world_verify_case(self.world.get(), &self.options, line.c_str(), &report));
  const bool ok = nlohmann::json::parse(report).value("ok", true);
  monomoe_free_text(report);
  self.barrier();
  return ok;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) fail("usage: world_faults WORLD RANKS RANK");
  const int32_t ranks = std::atoi(argv[2]), rank = std::atoi(argv[3]);
  nlohmann::ordered_json report = lose_rank_one(argv[1], ranks, rank);
  report["went_on"] = go_on(std::string(argv[1]) + "-2", ranks - 1, rank == 0 ? 0 : rank - 1);
  if (rank == 0) std::printf("%s\n", report.dump().c_str());
  return report["named"] == true && report["went_on"] == true ? 0 : 1;
}
