// Reads own rows, intermediates by each rank's route lists, and contributions.
#include "layer/backend_stages.hpp"

#include <algorithm>

#include "numerics/tensor_core.h"

namespace monomoe::layer {
namespace {

// Undoes the permutation of K inside each block of 128.
void copy_to_logical(const uint8_t* physical, int64_t count, uint8_t* logical) {
  for (int64_t k = 0; k < count; ++k) logical[k] = physical[k / kBlockK * kBlockK + permuted_k(static_cast<int>(k % kBlockK))];
}

// Sizes and where each rank's tokens begin.
struct Frame {
  const cpu::CpuWeights& weights;
  const cpu::CpuWorkspace& workspace;
  int64_t hidden, topk, padded_intermediate, intermediate_blocks;
  std::vector<int64_t> first_token;  // [ranks + 1]

  int64_t route(const Route& r) const { return (first_token[r.src] + r.token) * topk + r.topk_slot; }
};

void read_tokens(const Frame& f, int32_t rank, BackendStages& out) {
  const cpu::LocalView local = f.workspace.local_view(rank);
  const int64_t blocks = f.hidden / kBlockK;
  for (int64_t token = f.first_token[rank]; token < f.first_token[rank + 1]; ++token) {
    if (!out.token_staged[token]) continue;
    const int64_t row = token - f.first_token[rank];
    copy_to_logical(local.own_codes + row * f.hidden, f.hidden, out.tokens.codes.data() + token * f.hidden);
    std::copy_n(local.own_scales + row * blocks, blocks, out.tokens.scales.data() + token * blocks);
  }
}

// The routes this rank's experts served: their intermediates here, their contributions at the tokens' ranks.
void read_routes(const Frame& f, int32_t rank, BackendStages& out) {
  const cpu::LocalView local = f.workspace.local_view(rank);
  const int64_t count = f.weights.num_slots(rank) == 0 ? 0 : local.expert_begin[f.weights.num_slots(rank)];
  for (int64_t i = 0; i < count; ++i) {
    const Route& served = local.routes[i];
    const int64_t route = f.route(served);
    out.token_staged[route / f.topk] = 1;
    copy_to_logical(local.mid_codes + i * f.padded_intermediate, f.padded_intermediate,
                    out.mid_codes.data() + route * f.padded_intermediate);
    std::copy_n(local.mid_scales + i * f.intermediate_blocks, f.intermediate_blocks, out.mid_scales.data() + route * f.intermediate_blocks);
    const uint16_t* arrived = f.workspace.symmetric_view(served.src).contributions + (served.token * f.topk + served.topk_slot) * f.hidden;
    std::copy_n(arrived, f.hidden, out.contributions.data() + route * f.hidden);
  }
}

}  // namespace

BackendStages read_stages(const cpu::CpuWeights& weights, const cpu::CpuWorkspace& workspace, std::span<const int64_t> rows) {
  const Problem& problem = weights.problem();
  Frame f{weights, workspace, problem.hidden, workspace.problem().topk, problem.padded_intermediate(), problem.intermediate_blocks(), {0}};
  for (const int64_t count : rows) f.first_token.push_back(f.first_token.back() + count);
  const int64_t tokens = f.first_token.back(), routes = tokens * f.topk;
  BackendStages out;
  out.tokens.codes.resize(tokens * f.hidden);
  out.tokens.scales.resize(tokens * f.hidden / kBlockK);
  out.token_staged.resize(tokens);
  out.mid_codes.resize(routes * f.padded_intermediate);
  out.mid_scales.resize(routes * f.intermediate_blocks);
  out.contributions.resize(routes * f.hidden);
  for (int32_t rank = 0; rank < static_cast<int32_t>(rows.size()); ++rank) read_routes(f, rank, out);
  for (int32_t rank = 0; rank < static_cast<int32_t>(rows.size()); ++rank) read_tokens(f, rank, out);
  return out;
}

}  // namespace monomoe::layer
