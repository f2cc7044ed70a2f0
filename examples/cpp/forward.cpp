// One MoE layer from a checkpoint, on four ranks of which one has tokens. Run: forward CHECKPOINT_DIR LAYER
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "monomoe/monomoe.hpp"

namespace moe = monomoe::api;

template <class T>
T take(moe::Expected<T> expected) {
  if (expected) return std::move(expected).value();
  std::fprintf(stderr, "%s: %s\n", monomoe_status_name(expected.failure().status), expected.failure().message.c_str());
  std::exit(expected.failure().status);
}

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: forward CHECKPOINT_DIR LAYER\n"), MONOMOE_USAGE;
  const int layer = std::atoi(argv[2]), topk = 2, num_tokens = 3, num_ranks = 4;

  const moe::Context context = take(moe::Context::create(num_ranks));
  const moe::Checkpoint checkpoint = take(moe::Checkpoint::open(argv[1]));
  const monomoe_layer_info info = take(checkpoint.layer_info(layer));
  const moe::Weights weights = take(checkpoint.weights(context, layer));
  moe::Workspace workspace = take(moe::Workspace::create(
      context, weights, {.topk = topk, .hidden = info.hidden, .intermediate = info.intermediate, .capacity = num_tokens}));

  std::vector<uint16_t> x(num_tokens * info.hidden, 0x3F80), y(x.size());  // ones, as bf16
  const std::vector<int64_t> ids = {0, 1, 1, 0, 0, -1};                    // -1: an empty slot
  const std::vector<float> route_weights(ids.size(), 0.5f);
  std::vector<monomoe_tokens> ranks(num_ranks, moe::tokens({}, {}, {}, {}, topk));
  ranks[0] = moe::tokens(x, ids, route_weights, y, topk);
  take(moe::forward(weights, workspace, ranks));
  std::printf("y[0][0] = 0x%04x (bf16)\n", y[0]);
  return 0;
}
