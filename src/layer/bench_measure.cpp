// Runs the calls of a benchmark: tokens, caches, clocks, and the comparison of what came out.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>

#include "cpu/executor.hpp"
#include "layer/bench.hpp"
#include "layer/forward.hpp"
#include "layer/parallel.hpp"
#include "reference/random_layer.hpp"

namespace monomoe::layer {
namespace {

constexpr uint64_t kTokenStream = 0x70C, kWeightStream = 0x3E1;  // of random_bits; each rank has its own from here on
constexpr int kWarmUps = 1, kReadSamples = 3;
constexpr int64_t kReadPiece = 1 << 20;
constexpr uint16_t kFirstPoison = 0xFFFF, kLaterPoison = 0;

double now_seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

uint64_t sum_words(const uint64_t* words, int64_t count) {
  uint64_t sum[4] = {};
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (int lane = 0; lane < 4; ++lane) sum[lane] += words[i + lane];
  }
  for (; i < count; ++i) sum[0] += words[i];
  return sum[0] + sum[1] + sum[2] + sum[3];
}

struct MemoryPiece {
  const uint64_t* words;
  int64_t count;
};

void add_pieces(std::vector<MemoryPiece>& pieces, const void* data, int64_t bytes) {
  const auto* begin = static_cast<const uint8_t*>(data);
  for (int64_t at = 0; at < bytes; at += kReadPiece) {
    pieces.push_back({reinterpret_cast<const uint64_t*>(begin + at), std::min(kReadPiece, bytes - at) / 8});
  }
}

// Reads on the context's threads.
Result<void> read_pieces(const std::vector<MemoryPiece>& pieces, int threads) {
  return parallel_for(static_cast<int64_t>(pieces.size()), threads, [&](int64_t i) -> Result<void> {
    volatile uint64_t kept = sum_words(pieces[i].words, pieces[i].count);  // the compiler must not leave the reads out
    (void)kept;
    return {};
  });
}

// Twice the last cache, within reason where the machine says nothing or shares a huge one.
Result<void> flush_caches(monomoe_bench& bench) {
  if (bench.flush.empty()) {
    const int64_t cache = std::max<int64_t>(sysconf(_SC_LEVEL3_CACHE_SIZE), int64_t{16} << 20);
    bench.flush.assign(std::min(2 * cache, int64_t{256} << 20) / 8, 1);  // written: untouched pages would all be one
  }
  std::vector<MemoryPiece> pieces;
  add_pieces(pieces, bench.flush.data(), static_cast<int64_t>(bench.flush.size()) * 8);
  return read_pieces(pieces, bench.context->num_threads);
}

// The rows of the ranks here; those that are there stay.
Result<void> grow_tokens(monomoe_bench& bench, const BenchCall& call) {
  const int64_t hidden = bench.problem.hidden;
  bench.x.resize(bench.ranks_here());
  for (int32_t here = 0; here < bench.ranks_here(); ++here) {
    const int32_t rank = bench.first_rank() + here;
    const int64_t tokens = call.tokens[rank];
    std::vector<uint16_t>& x = bench.x[here];
    const int64_t have = static_cast<int64_t>(x.size()) / hidden;
    if (have >= tokens) continue;
    x.resize(tokens * hidden);
    const auto fill_row = [&](int64_t i) -> Result<void> {
      for (int64_t n = (have + i) * hidden; n < (have + i + 1) * hidden; ++n) {
        uint32_t bits;
        const float value = random_bell(bench.seed, kTokenStream + static_cast<uint64_t>(rank), static_cast<uint64_t>(n));
        std::memcpy(&bits, &value, 4);
        x[n] = static_cast<uint16_t>(bits >> 16);
      }
      return {};
    };
    if (auto done = parallel_for(tokens - have, bench.context->num_threads, fill_row); !done) return done;
  }
  return {};
}

Result<WorkLimits> limits_of_cpu(monomoe_bench& bench, const BenchTokens& tokens) {
  const cpu::CpuWeights& weights = *bench.weights->cpu;
  std::vector<MemoryPiece> pieces;
  WorkLimits limits;
  for (int32_t rank = bench.first_rank(); rank < bench.first_rank() + bench.ranks_here(); ++rank) {
    for (int64_t slot = 0; slot < tokens.touched[rank]; ++slot) add_pieces(pieces, weights.slot_data(rank, slot), weights.layout().bytes);
    limits.bytes += tokens.touched[rank] * weights.layout().bytes;
    limits.routes += tokens.served[rank];
  }
  std::vector<double> seconds;
  for (int i = 0; i < kReadSamples; ++i) {
    if (auto done = flush_caches(bench); !done) return done.error();
    if (auto met = meet(bench); !met) return met.error();
    const double begin = now_seconds();
    if (auto done = read_pieces(pieces, bench.context->num_threads); !done) return done.error();
    seconds.push_back(now_seconds() - begin);
  }
  limits.read_seconds = median_of(seconds);
  return limits;
}

struct CpuCalls {
  std::vector<cpu::RankCall> calls;
  std::vector<std::vector<uint16_t>> y;
};

CpuCalls cpu_calls(const monomoe_bench& bench, const BenchCall& asked, const BenchTokens& tokens) {
  CpuCalls all;
  all.y.resize(bench.ranks_here());
  for (int32_t here = 0; here < bench.ranks_here(); ++here) {
    const int32_t rank = bench.first_rank() + here;
    all.y[here].resize(asked.tokens[rank] * bench.problem.hidden);
    cpu::RankCall call;
    call.num_tokens = asked.tokens[rank];
    call.x = bench.x[here].data();
    call.topk_ids = tokens.ids[rank].data();
    call.topk_weights = tokens.weights[rank].data();
    call.y = all.y[here].data();
    all.calls.push_back(call);
  }
  return all;
}

Result<void> run_on_cpu(monomoe_bench& bench, std::span<const cpu::RankCall> calls) {
  const cpu::CpuWeights& weights = *bench.weights->cpu;
  const cpu::RunOptions options = run_options(*bench.context);
  if (bench.world == nullptr) return cpu::run_all(weights, *bench.workspace->cpu, calls, options, nullptr);
  return cpu::run_rank(weights, *bench.workspace->cpu, bench.first_rank(), calls[0], options, nullptr);
}

// The ranks of a world begin together: sockets bring their processes together, and a call without tokens closer than sockets can.
Result<void> begin_together(monomoe_bench& bench) {
  if (bench.world == nullptr) return {};
  if (auto met = meet(bench); !met) return met;
  const cpu::RankCall nothing;
  return run_on_cpu(bench, std::span(&nothing, 1));
}

// Seconds of a call, the mean of several where many are timed as one.
Result<double> time_on_cpu(monomoe_bench& bench, CpuCalls& all, cuda::BenchMode mode, uint16_t poison) {
  const auto run = [&] { return run_on_cpu(bench, all.calls); };
  for (std::vector<uint16_t>& y : all.y) std::fill(y.begin(), y.end(), poison);
  const bool many = mode == cuda::BenchMode::kBackToBack;
  if (auto done = many ? run() : flush_caches(bench); !done) return done.error();
  if (auto begun = begin_together(bench); !begun) return begun.error();
  const int count = many ? cuda::kBackToBackCalls : 1;
  const double begin = now_seconds();
  for (int i = 0; i < count; ++i) {
    if (auto done = run(); !done) return done.error();
  }
  return (now_seconds() - begin) / count;
}

cuda::BenchRequest cuda_request(monomoe_bench& bench, const BenchCall& call, std::span<const cuda::BenchInput> inputs) {
  World* const world = bench.world == nullptr ? nullptr : bench.world->world.get();
  return {bench.weights->cuda.get(), bench.workspace->cuda.get(), inputs, bench.problem.hidden, call.mode, call.repeats, world};
}

std::vector<cuda::BenchInput> cuda_inputs(const monomoe_bench& bench, const BenchCall& call, const BenchTokens& tokens) {
  std::vector<cuda::BenchInput> inputs;
  for (int32_t here = 0; here < bench.ranks_here(); ++here) {
    const int32_t rank = bench.first_rank() + here;
    const std::span<const uint16_t> rows = std::span(bench.x[here]).first(call.tokens[rank] * bench.problem.hidden);
    inputs.push_back({call.tokens[rank], rows, tokens.ids[rank], tokens.weights[rank], tokens.touched[rank]});
  }
  return inputs;
}

Result<void> make_cuda_bench(monomoe_bench& bench) {
  if (bench.cuda != nullptr) return {};
  auto made = bench.context->cuda->make_bench();
  if (!made) return made.error();
  bench.cuda = made.take();
  return {};
}

Result<void> compare(std::span<const uint16_t> found, std::span<const uint16_t> wanted, int32_t rank, int64_t hidden, const char* what) {
  const auto [at, other] = std::mismatch(found.begin(), found.end(), wanted.begin(), wanted.end());
  if (at == found.end()) return {};
  const int64_t index = at - found.begin();
  return Error{Status::kCheckFailed, fmt::format("rank {}, token {}, channel {}: y is {:#06x} {}, {:#06x} in the first run; the times are of wrong "
                                                 "results", rank, index / hidden, index % hidden, *at, what, *other)};
}

}  // namespace

int64_t BenchTokens::routes() const { return std::accumulate(served.begin(), served.end(), int64_t{0}); }
int64_t BenchTokens::touched_experts() const { return std::accumulate(touched.begin(), touched.end(), int64_t{0}); }

BenchTokens bench_tokens(const PlacementTable& placement, const Routing& routing, int64_t topk, std::span<const int64_t> tokens, uint64_t seed) {
  const PlacementView view = placement.view();
  BenchTokens all;
  std::vector<int64_t> of_expert(placement.experts(), 0);
  for (int32_t rank = 0; rank < placement.ranks(); ++rank) {
    all.ids.push_back(bench_routes(routing, placement.experts(), topk, tokens[rank], seed, rank));
    std::vector<float> weights;
    for (size_t i = 0; i < all.ids.back().size(); ++i) {
      weights.push_back((0.5f + random_uniform(seed, kWeightStream + static_cast<uint64_t>(rank), i)) / static_cast<float>(topk));
    }
    all.weights.push_back(std::move(weights));
    for (const int32_t id : all.ids.back()) ++of_expert[id];
  }
  all.touched.assign(placement.ranks(), 0);
  all.served.assign(placement.ranks(), 0);
  for (int32_t e = 0; e < placement.experts(); ++e) {
    const int32_t rank = view.serving_copy(e, 0).rank;  // one copy of each
    all.served[rank] += of_expert[e];
    all.touched[rank] += of_expert[e] > 0 ? 1 : 0;
    all.largest_expert = std::max(all.largest_expert, of_expert[e]);
  }
  return all;
}

Result<Measured> measure_cpu(monomoe_bench& bench, const BenchCall& call, const BenchTokens& tokens) {
  if (auto grown = grow_tokens(bench, call); !grown) return grown.error();
  Measured measured;
  CpuCalls all = cpu_calls(bench, call, tokens);
  if (auto first = time_on_cpu(bench, all, cuda::BenchMode::kCold, kFirstPoison); !first) return first.error();
  measured.samples.first = all.y;
  for (int i = 0; i < kWarmUps + call.repeats; ++i) {
    auto seconds = time_on_cpu(bench, all, call.mode, kLaterPoison);
    if (!seconds) return seconds.error();
    if (i >= kWarmUps) measured.samples.seconds.push_back(seconds.value());
  }
  measured.samples.last = std::move(all.y);
  auto limits = limits_of_cpu(bench, tokens);
  if (!limits) return limits.error();
  measured.limits = {limits.value()};
  return measured;
}

Result<Measured> measure_cuda(monomoe_bench& bench, const BenchCall& call, const BenchTokens& tokens) {
  if (auto grown = grow_tokens(bench, call); !grown) return grown.error();
  if (auto made = make_cuda_bench(bench); !made) return made.error();
  if (!bench.gemm) bench.gemm = bench.cuda->gemm();
  const std::vector<cuda::BenchInput> inputs = cuda_inputs(bench, call, tokens);
  const cuda::BenchRequest request = cuda_request(bench, call, inputs);
  Measured measured;
  auto samples = bench.cuda->run(request);
  if (!samples) return samples.error();
  measured.samples = samples.take();
  auto reads = bench.cuda->read(request);
  if (!reads) return reads.error();
  for (const cuda::GpuRead& read : reads.value()) {
    WorkLimits limits{read.bytes, 0, median_of(read.seconds), *bench.gemm ? bench.gemm->value().flops_per_second : 0};
    for (int32_t rank = bench.first_rank(); rank < bench.first_rank() + bench.ranks_here(); ++rank)
      limits.routes += bench.workspace->cuda->gpu(rank) == read.gpu ? tokens.served[rank] : 0;
    measured.limits.push_back(limits);
  }
  return measured;
}

Result<cuda::LaunchTrace> trace_cuda(monomoe_bench& bench, const BenchCall& call, const BenchTokens& tokens) {
  if (auto grown = grow_tokens(bench, call); !grown) return grown.error();
  if (auto made = make_cuda_bench(bench); !made) return made.error();
  const std::vector<cuda::BenchInput> inputs = cuda_inputs(bench, call, tokens);
  return bench.cuda->trace(cuda_request(bench, call, inputs));
}

Result<void> compare_runs(const monomoe_bench& bench, const Measured& measured) {
  for (int32_t here = 0; here < bench.ranks_here(); ++here) {
    auto same = compare(measured.samples.last[here], measured.samples.first[here], bench.first_rank() + here, bench.problem.hidden, "in the last run");
    if (!same) return same;
  }
  return {};
}

// Experts repeat, so the CPU backend needs the distinct ones only: the same routes with ids modulo their number give the same bits.
Result<void> compare_with_cpu(const monomoe_bench& bench, const BenchTokens& tokens, const Measured& measured) {
  const auto distinct = static_cast<int32_t>(bench.distinct.size());
  const auto tokens_of = [&](int32_t here) { return static_cast<int64_t>(measured.samples.first[here].size()) / bench.problem.hidden; };
  Problem problem = bench.problem;
  problem.experts = distinct;
  problem.ranks = 1;
  problem.capacity = 0;
  for (int32_t here = 0; here < bench.ranks_here(); ++here) problem.capacity = std::max(problem.capacity, tokens_of(here));
  auto placement = PlacementTable::even(distinct, 1);
  if (!placement) return placement.error();
  auto weights = cpu::CpuWeights::create(problem, placement.take(), bench.weights->swiglu_limit);
  if (!weights) return weights.error();
  for (int32_t e = 0; e < distinct; ++e) std::copy(bench.distinct[e].begin(), bench.distinct[e].end(), weights.value().expert_data(e));
  auto workspace = cpu::CpuWorkspace::create(problem, distinct);
  if (!workspace) return workspace.error();
  for (int32_t here = 0; here < bench.ranks_here(); ++here) {
    const int32_t rank = bench.first_rank() + here;
    std::vector<int32_t> ids = tokens.ids[rank];
    for (int32_t& id : ids) id %= distinct;
    std::vector<uint16_t> y(measured.samples.first[here].size());
    cpu::RankCall call;
    call.num_tokens = tokens_of(here);
    call.x = bench.x[here].data();
    call.topk_ids = ids.data();
    call.topk_weights = tokens.weights[rank].data();
    call.y = y.data();
    const std::span one(&call, 1);
    if (auto done = cpu::run_all(weights.value(), *workspace.value(), one, run_options(*bench.context), nullptr); !done) return done;
    if (auto same = compare(y, measured.samples.first[here], rank, bench.problem.hidden, "on backend cpu"); !same) return same;
  }
  return {};
}

}  // namespace monomoe::layer
