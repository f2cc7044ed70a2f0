// A benchmark whose ranks are processes: what they must agree on, where they meet, and one row of all their figures.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "layer/bench.hpp"

namespace monomoe::layer {
namespace {

// What a rank was asked for, in words of 8 bytes, so that there is no padding to differ.
struct LayerWords {
  int64_t format, hidden, intermediate, experts, topk, capacity;
  double swiglu_limit;
  uint64_t seed;
};
struct CallWords {
  std::array<int64_t, kMaxRanks> tokens;
  int64_t launch, mode, routing, repeats, check;
  double routing_value;
};

template <class Words>
Result<void> require_same(World& world, const Words& mine, const char* what) {
  auto all = gather(world, WorldStep::kBench, mine);
  if (!all) return all.error();
  for (int32_t rank = 1; rank < world.ranks(); ++rank) {
    if (std::memcmp(&all.value()[rank], &all.value()[0], sizeof(Words)) != 0)
      return usage_error(
          fmt::format("rank {} was given another {} than rank 0; give every rank of world '{}' the same", rank, what, world.name()));
  }
  return {};
}

// [ranks] every rank's samples, as many on each.
Result<std::vector<std::vector<double>>> all_samples(World& world, std::span<const double> mine) {
  constexpr size_t kPiece = kMaxPayload / sizeof(double);
  const auto ranks = static_cast<size_t>(world.ranks());
  std::vector<std::vector<double>> all(ranks);
  for (size_t begin = 0; begin < mine.size(); begin += kPiece) {
    const std::span<const double> piece = mine.subspan(begin, std::min(kPiece, mine.size() - begin));
    std::vector<double> pieces(piece.size() * ranks);
    auto done = world.gather(WorldStep::kBench, std::as_bytes(piece), std::as_writable_bytes(std::span(pieces)));
    if (!done) return done.error();
    for (size_t rank = 0; rank < ranks; ++rank) {
      const auto first = pieces.begin() + static_cast<std::ptrdiff_t>(rank * piece.size());
      all[rank].insert(all[rank].end(), first, first + static_cast<std::ptrdiff_t>(piece.size()));
    }
  }
  return all;
}

}  // namespace

Result<void> require_same_layer(World& world, const monomoe_bench_layer& layer) {
  const LayerWords words{layer.format, layer.hidden,   layer.intermediate, layer.experts,
                         layer.topk,   layer.capacity, layer.swiglu_limit, layer.seed};
  return require_same(world, words, "layer");
}

Result<void> require_same_call(World& world, const BenchCall& call) {
  CallWords words{{},
                  static_cast<int64_t>(call.launch),
                  static_cast<int64_t>(call.mode),
                  static_cast<int64_t>(call.routing.kind),
                  call.repeats,
                  call.check,
                  call.routing.value};
  std::ranges::copy(call.tokens, words.tokens.begin());
  return require_same(world, words, "call");
}

Result<void> meet(const monomoe_bench& bench) {
  return bench.world == nullptr ? Result<void>{} : bench.world->world->gather(WorldStep::kBench, {}, {});
}

Result<void> combine_ranks(World& world, Measured& measured) {
  auto samples = all_samples(world, measured.samples.seconds);
  if (!samples) return samples.error();
  auto limits = gather(world, WorldStep::kBench, measured.limits.front());
  if (!limits) return limits.error();
  measured.limits = limits.take();
  measured.medians.clear();
  for (const std::vector<double>& one : samples.value()) measured.medians.push_back(median_of(one));
  const auto slowest = std::ranges::max_element(measured.medians) - measured.medians.begin();
  measured.samples.seconds = std::move(samples.value()[static_cast<size_t>(slowest)]);
  return {};
}

}  // namespace monomoe::layer
