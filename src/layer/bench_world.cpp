// A benchmark whose ranks are processes: what they must agree on, where they meet, and one row of all their figures.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>

#include "layer/arguments.hpp"
#include "layer/bench.hpp"

namespace monomoe::layer {
namespace {

// What a rank was asked for. Fractions are compared by their bits.
constexpr const char* kLayerFields[] = {"format", "hidden", "intermediate", "experts", "topk", "capacity", "swiglu_limit", "seed"};
constexpr const char* kCallFields[] = {"launch", "mode", "routing", "routing_value", "repeats", "check"};  // and the tokens of each rank
using LayerWords = std::array<uint64_t, std::size(kLayerFields)>;
using CallWords = std::array<uint64_t, std::size(kCallFields) + kMaxRanks>;

uint64_t word_of(int64_t number) { return static_cast<uint64_t>(number); }
uint64_t word_of_fraction(double value) { return std::bit_cast<uint64_t>(value); }

std::string text_of(const std::string& field, uint64_t word) {
  if (field.ends_with("swiglu_limit") || field.ends_with("routing_value")) return fmt::format("{}", std::bit_cast<double>(word));
  return field.ends_with("seed") ? fmt::format("{}", word) : fmt::format("{}", static_cast<int64_t>(word));
}

template <class Words>
Result<void> require_same(World& world, const Words& mine, std::string (*name)(size_t)) {
  auto all = gather(world, WorldStep::kBench, mine);
  if (!all) return all.error();
  const Words& first = all.value()[0];
  for (int32_t rank = 1; rank < world.ranks(); ++rank) {
    const Words& other = all.value()[rank];
    const auto field = static_cast<size_t>(std::ranges::mismatch(first, other).in1 - first.begin());
    if (field == first.size()) continue;
    return usage_error(fmt::format("{} is {} on rank 0 and {} on rank {}; give every rank of world '{}' the same", name(field),
                                   text_of(name(field), first[field]), text_of(name(field), other[field]), rank, world.name()));
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
  const LayerWords words{word_of(enum_number(layer.format)), word_of(layer.hidden),   word_of(layer.intermediate),          word_of(layer.experts),
                         word_of(layer.topk),                word_of(layer.capacity), word_of_fraction(layer.swiglu_limit), layer.seed};
  return require_same(world, words, [](size_t field) { return std::string("layer->") + kLayerFields[field]; });
}

Result<void> require_same_call(World& world, const BenchCall& call) {
  CallWords words{word_of(static_cast<int64_t>(call.launch)),
                  word_of(static_cast<int64_t>(call.mode)),
                  word_of(static_cast<int64_t>(call.routing.kind)),
                  word_of_fraction(call.routing.value),
                  word_of(call.repeats),
                  word_of(call.check ? 1 : 0)};
  std::ranges::transform(call.tokens, words.begin() + std::size(kCallFields), word_of);
  return require_same(world, words, [](size_t field) {
    return field < std::size(kCallFields) ? std::string("call->") + kCallFields[field] : fmt::format("the tokens of rank {}", field - std::size(kCallFields));
  });
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
