// The checkpoint's router: hidden states -> expert ids and weights. One written-down sequence of operations per token, so that a
// token's routing does not depend on its batch.
//
//   logit   sum over k ascending of x[k] * w[e][k], products and sums in double, rounded once to fp32
//   score   softmax | sigmoid | sqrt(softplus), in double from the fp32 logit, rounded once to fp32
//   choice  score + bias in fp32 (one rounding); the largest first, equal ones by lower expert id; with groups only experts of the
//           topk_groups best groups compete (group score: the sum, or the larger, of its best scores)
//   weight  the score without bias; divided by (sum of the chosen in slot order + 1e-20) if norm_topk_prob; times
//           routed_scaling_factor, exactly once; all in double, rounded once to fp32
// A hash layer takes its ids from tid2eid[token id] and its weights from the learned gate. A row with a non-finite logit (or a NaN
// choice, from a NaN bias) gets experts 0..K-1 (a hash layer: its table's) and NaN weights; no other row changes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "weights/config.hpp"
#include "weights/dtype.hpp"

namespace monomoe {

struct RouterTensors {
  int64_t experts = 0, hidden = 0;
  DType weight_type = DType::BF16;  // BF16 or F32, [experts, hidden]
  const uint8_t* weight = nullptr;
  DType bias_type = DType::F32;    // F32 or BF16, [experts]
  const uint8_t* bias = nullptr;   // nullptr: none
  DType table_type = DType::I64;   // I64 or I32, [vocabulary, table_topk]
  const uint8_t* table = nullptr;  // tid2eid; nullptr: not a hash layer
  int64_t vocabulary = 0, table_topk = 0;
};

struct RouterConfig {
  Scoring scoring = Scoring::kSoftmax;
  int64_t topk = 0;
  bool norm_topk_prob = false;
  double routed_scaling_factor = 1.0;
  int64_t groups = 1, topk_groups = 1;
  int best_per_group = 2;  // scores that add up to a group's score: 2 (noaux_tc) or 1 (group_limited_greedy)
};

struct Routing {
  int64_t tokens = 0, topk = 0;
  std::vector<int64_t> ids;    // [tokens, topk]
  std::vector<float> weights;  // [tokens, topk]
};

// Entry `index` of the hash table, row by row.
int64_t hash_table_entry(const RouterTensors& tensors, int64_t index);

// x: bf16 [tokens, hidden]. token_ids: [tokens], needed by hash layers only.
Result<Routing> route(const RouterTensors& tensors, const RouterConfig& config, std::span<const uint16_t> x, int64_t tokens,
                      std::span<const int64_t> token_ids = {});

}  // namespace monomoe
