// Where the tokens of a benchmark go: by seed, the same on every platform.
#pragma once

#include <cstdint>
#include <vector>

namespace monomoe::layer {

enum class RoutingKind : uint8_t { kUniform, kZipf, kHot };

struct Routing {
  RoutingKind kind = RoutingKind::kUniform;
  double value = 0;  // Zipf's exponent; the hot expert's share of the tokens
};

// Ids [tokens, topk] of one rank. Those of a token differ as long as there are experts left. Under kHot, expert 0 is the first id of `value` of
// the tokens, evenly spread, and of no others as long as there are other experts. The first tokens do not depend on how many follow.
std::vector<int32_t> bench_routes(const Routing& routing, int64_t experts, int64_t topk, int64_t tokens, uint64_t seed, int32_t rank);

}  // namespace monomoe::layer
