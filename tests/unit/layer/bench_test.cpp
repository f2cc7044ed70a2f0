// The benchmark without a clock: routes by seed, statistics, the trace, and what its ABI refuses.
#include "layer/bench.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "monomoe/bench.h"
#include "plan/task_order.h"

namespace monomoe::layer {
namespace {

using Json = nlohmann::json;

std::vector<int64_t> count(const std::vector<int32_t>& ids, int64_t experts) {
  std::vector<int64_t> counts(experts, 0);
  for (const int32_t id : ids) ++counts[id];
  return counts;
}

// Every token's ids differ.
void expect_distinct(const std::vector<int32_t>& ids, int64_t topk) {
  for (size_t begin = 0; begin < ids.size(); begin += topk) {
    EXPECT_EQ(std::set<int32_t>(ids.begin() + begin, ids.begin() + begin + topk).size(), static_cast<size_t>(topk)) << "token " << begin / topk;
  }
}

TEST(BenchRoutes, TheSameSeedGivesTheseIds) {
  const std::vector<int32_t> ids = bench_routes({RoutingKind::kUniform, 0}, 32, 6, 2, 1, 0);
  EXPECT_EQ(ids, bench_routes({RoutingKind::kUniform, 0}, 32, 6, 2, 1, 0));
  EXPECT_EQ(ids, (std::vector<int32_t>{25, 8, 0, 7, 24, 30, 6, 7, 30, 2, 1, 24}));
}

TEST(BenchRoutes, SeedAndRankChangeThemAndFewerTokensAreAPrefix) {
  const Routing uniform;
  const std::vector<int32_t> ids = bench_routes(uniform, 32, 6, 64, 1, 0);
  EXPECT_NE(ids, bench_routes(uniform, 32, 6, 64, 2, 0));
  EXPECT_NE(ids, bench_routes(uniform, 32, 6, 64, 1, 1));
  const std::vector<int32_t> few = bench_routes(uniform, 32, 6, 5, 1, 0);
  EXPECT_TRUE(std::equal(few.begin(), few.end(), ids.begin()));
}

TEST(BenchRoutes, UniformSpreadsEvenly) {
  const std::vector<int32_t> ids = bench_routes({}, 32, 6, 4096, 3, 0);
  expect_distinct(ids, 6);
  for (const int64_t tokens : count(ids, 32)) EXPECT_NEAR(tokens, 768, 120);  // 4096 * 6 / 32; five standard deviations of 25
}

TEST(BenchRoutes, ZipfFallsWithTheExponent) {
  const std::vector<int64_t> one = count(bench_routes({RoutingKind::kZipf, 1}, 32, 1, 8192, 3, 0), 32);
  // With one id a token the shares are 1 / (e + 1) over the 32nd harmonic number, 4.0585.
  EXPECT_NEAR(one[0], 8192 / 4.0585, 250);
  EXPECT_NEAR(one[1], 8192 / 4.0585 / 2, 180);
  EXPECT_NEAR(one[31], 8192 / 4.0585 / 32, 45);
  const std::vector<int32_t> several = bench_routes({RoutingKind::kZipf, 1}, 32, 6, 512, 3, 0);
  expect_distinct(several, 6);
  const std::vector<int64_t> none = count(bench_routes({RoutingKind::kZipf, 0}, 32, 1, 8192, 3, 0), 32);
  EXPECT_NEAR(none[0], 256, 80);
  // An exponent so large that all weights but one vanish takes the experts in order.
  EXPECT_EQ(bench_routes({RoutingKind::kZipf, 5000}, 8, 3, 1, 3, 0), (std::vector<int32_t>{0, 1, 2}));
}

TEST(BenchRoutes, TheHotExpertHasItsShareOfAnyFirstTokens) {
  for (const auto& [share, tokens, hot] : std::vector<std::tuple<double, int64_t, int64_t>>{{0.5, 100, 50}, {0.5, 7, 3}, {0, 64, 0}, {1, 64, 64}, {0.25, 10, 2}}) {
    const std::vector<int32_t> ids = bench_routes({RoutingKind::kHot, share}, 32, 6, tokens, 1, 0);
    expect_distinct(ids, 6);
    EXPECT_EQ(count(ids, 32)[0], hot) << share << " of " << tokens;
  }
}

TEST(BenchRoutes, FewerExpertsThanSlotsRepeat) {
  EXPECT_EQ(bench_routes({}, 1, 3, 2, 1, 0), std::vector<int32_t>(6, 0));
  EXPECT_EQ(bench_routes({RoutingKind::kHot, 0}, 1, 1, 2, 1, 0), std::vector<int32_t>(2, 0));
  const std::vector<int32_t> ids = bench_routes({}, 2, 4, 3, 1, 0);
  EXPECT_EQ(count(ids, 2), (std::vector<int64_t>{6, 6}));
}

TEST(BenchTokens, CountWhatEveryRankServes) {
  auto placement = PlacementTable::even(4, 2);
  ASSERT_TRUE(placement.ok());
  const BenchTokens tokens = bench_tokens(placement.value(), {RoutingKind::kHot, 1}, 1, std::vector<int64_t>{8, 8}, 1);
  EXPECT_EQ(tokens.served, (std::vector<int64_t>{16, 0}));  // both ranks' tokens go to expert 0, on rank 0
  EXPECT_EQ(tokens.touched, (std::vector<int64_t>{1, 0}));
  EXPECT_EQ(tokens.largest_expert, 16);
  EXPECT_EQ(tokens.routes(), 16);
  EXPECT_EQ(tokens.touched_experts(), 1);
  for (const std::vector<float>& weights : tokens.weights) {
    ASSERT_EQ(weights.size(), 8u);
    for (const float weight : weights) EXPECT_TRUE(weight >= 0.5f && weight < 1.5f);
  }
}

TEST(BenchTokens, RanksMayHaveDifferentNumbers) {
  auto placement = PlacementTable::even(4, 2);
  ASSERT_TRUE(placement.ok());
  const BenchTokens even = bench_tokens(placement.value(), {}, 2, std::vector<int64_t>{8, 8}, 1);
  const BenchTokens uneven = bench_tokens(placement.value(), {}, 2, std::vector<int64_t>{0, 8}, 1);
  EXPECT_TRUE(uneven.ids[0].empty());
  EXPECT_EQ(uneven.ids[1], even.ids[1]);  // a rank's routes do not depend on the others
  EXPECT_EQ(uneven.weights[1], even.weights[1]);
  EXPECT_EQ(uneven.routes(), 16);
}

TEST(BenchStatistics, MedianAndQuantiles) {
  EXPECT_EQ(median_of({3, 1, 2}), 2);
  EXPECT_EQ(median_of({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(median_of({7}), 7);
  const std::vector<double> ten = {10, 9, 8, 7, 6, 5, 4, 3, 2, 1};
  EXPECT_EQ(quantile_of(ten, 0), 1);
  EXPECT_EQ(quantile_of(ten, 0.1), 1);
  EXPECT_EQ(quantile_of(ten, 0.11), 2);
  EXPECT_EQ(quantile_of(ten, 0.9), 9);
  EXPECT_EQ(quantile_of(ten, 1), 10);
}

TEST(BenchTrace, ATaskIsASliceWithItsPartsInIt) {
  cuda::LaunchTrace trace;
  trace.thread_blocks = 2;
  trace.tasks.push_back({0, 1, static_cast<int32_t>(TaskKind::kGemm1), 3, 17, 5, {2000, 2500, 4500, 5000}});
  trace.tasks.push_back({0, 0, static_cast<int32_t>(TaskKind::kDispatch), 0, 8, 0, {1000, 0, 0, 3000}});
  const Json report = Json::parse(trace_report(trace, "a layer"));
  std::vector<Json> slices;
  for (const Json& event : report["traceEvents"]) {
    if (event["ph"] == "X") slices.push_back(event);
  }
  ASSERT_EQ(slices.size(), 5u);
  EXPECT_EQ(slices[0], (Json{{"name", "gemm1"}, {"ph", "X"}, {"pid", 0}, {"tid", 1}, {"ts", 1.0}, {"dur", 3.0}, {"args", {{"block", 5}, {"tile", 3}, {"count", 17}}}}));
  EXPECT_EQ(slices[1], (Json{{"name", "wait"}, {"ph", "X"}, {"pid", 0}, {"tid", 1}, {"ts", 1.0}, {"dur", 0.5}}));
  EXPECT_EQ(slices[2], (Json{{"name", "main"}, {"ph", "X"}, {"pid", 0}, {"tid", 1}, {"ts", 1.5}, {"dur", 2.0}}));
  EXPECT_EQ(slices[3]["name"], "after");
  EXPECT_EQ(slices[4]["name"], "dispatch");  // has no parts
  const Json& dispatch = report["summary"][0];
  EXPECT_EQ(dispatch["kind"], "dispatch");
  EXPECT_TRUE(dispatch["wait"].is_null());
  const Json& gemm = report["summary"][1];
  EXPECT_EQ(gemm["tasks"], 1);
  EXPECT_DOUBLE_EQ(gemm["first"].get<double>(), 1e-6);
  EXPECT_DOUBLE_EQ(gemm["last"].get<double>(), 4e-6);
  EXPECT_DOUBLE_EQ(gemm["main"].get<double>(), 2e-6);
  EXPECT_DOUBLE_EQ(report["span"].get<double>(), 4e-6);
  EXPECT_DOUBLE_EQ(report["busy"].get<double>(), (3.0 + 2.0) / 4.0 / 2);
  EXPECT_EQ(report["complete"], true);
}

TEST(BenchTrace, NothingIsALegalTrace) {
  const Json report = Json::parse(trace_report({}, "nothing"));
  EXPECT_TRUE(report["traceEvents"].empty());
  EXPECT_EQ(report["span"], 0.0);
}

struct Handles {
  monomoe_context* context = nullptr;
  monomoe_bench* bench = nullptr;
  ~Handles() {
    monomoe_bench_destroy(bench);
    monomoe_context_destroy(context);
  }
};

class BenchAbi : public testing::Test {
 protected:
  void SetUp() override {
    monomoe_context_options options{};
    options.struct_size = sizeof(options);
    options.backend = MONOMOE_BACKEND_CPU;
    options.num_ranks = 2;
    options.num_threads = 2;
    ASSERT_EQ(monomoe_context_create(&options, &handles.context), MONOMOE_OK);
    layer.struct_size = sizeof(layer);
    layer.format = MONOMOE_NVFP4;
    layer.hidden = 256;
    layer.intermediate = 128;
    layer.experts = 6;
    layer.topk = 2;
    layer.capacity = 8;
    layer.seed = 5;
    call.struct_size = sizeof(call);
    call.num_tokens = 4;
    call.repeats = 3;
  }
  void make() { ASSERT_EQ(monomoe_bench_create(handles.context, &layer, &handles.bench), MONOMOE_OK) << monomoe_last_error(); }
  // The sentence of a refusal.
  std::string refused(monomoe_status status) {
    char* json = nullptr;
    EXPECT_EQ(monomoe_bench_run(handles.bench, &call, &json), status);
    EXPECT_EQ(json, nullptr);
    return monomoe_last_error();
  }

  Handles handles;
  monomoe_bench_layer layer{};
  monomoe_bench_call call{};
};

TEST_F(BenchAbi, RunsOnTheCpu) {
  make();
  char* text = nullptr;
  ASSERT_EQ(monomoe_bench_run(handles.bench, &call, &text), MONOMOE_OK) << monomoe_last_error();
  const Json row = Json::parse(text);
  monomoe_free_text(text);
  EXPECT_EQ(row["backend"], "cpu");
  EXPECT_EQ(row["tokens"], 4);
  EXPECT_EQ(row["routes"], 2 * 4 * 2);
  EXPECT_EQ(row["samples"].size(), 3u);
  EXPECT_EQ(row["flops"], 2.0 * 3 * 256 * 128 * 16);
  EXPECT_EQ(row["read"]["bytes"], row["touched_experts"].get<int64_t>() * expert_layout({256, 128, 6, 2, 2, 8, WeightFormat::kNvfp4}).bytes);
  EXPECT_TRUE(row["ratio"].is_null());
  EXPECT_LE(row["min"], row["median"]);
  EXPECT_LE(row["median"], row["p90"]);
}

TEST_F(BenchAbi, NumbersOfEachRank) {
  make();
  const int64_t counts[] = {8, 0};
  call.tokens_per_rank = counts;
  EXPECT_NE(refused(MONOMOE_USAGE).find("call->num_tokens is 4, but call->tokens_per_rank is set; leave it 0"), std::string::npos);
  call.num_tokens = 0;
  char* text = nullptr;
  ASSERT_EQ(monomoe_bench_run(handles.bench, &call, &text), MONOMOE_OK) << monomoe_last_error();
  const Json row = Json::parse(text);
  monomoe_free_text(text);
  EXPECT_EQ(row["tokens"], 8);
  EXPECT_EQ(row["tokens_per_rank"], (Json{8, 0}));
  EXPECT_EQ(row["routes"], 8 * 2);
  EXPECT_TRUE(row["processes"].is_null());
  const int64_t too_many[] = {4, 9}, negative[] = {-1, 4}, none[] = {0, 0};
  call.tokens_per_rank = too_many;
  EXPECT_NE(refused(MONOMOE_USAGE).find("call->tokens_per_rank[1] is 9, wanted 0..8, the capacity"), std::string::npos);
  call.tokens_per_rank = negative;
  EXPECT_NE(refused(MONOMOE_USAGE).find("call->tokens_per_rank[0] is -1, wanted 0..8"), std::string::npos);
  call.tokens_per_rank = none;
  EXPECT_NE(refused(MONOMOE_USAGE).find("is 0 on all ranks"), std::string::npos);
  // A caller of the first header has no such field, and what lies behind its struct is not read.
  call.struct_size = offsetof(monomoe_bench_call, tokens_per_rank);
  call.num_tokens = 3;
  ASSERT_EQ(monomoe_bench_run(handles.bench, &call, &text), MONOMOE_OK) << monomoe_last_error();
  EXPECT_EQ(Json::parse(text)["tokens_per_rank"], (Json{3, 3}));
  monomoe_free_text(text);
}

TEST_F(BenchAbi, RefusesLayers) {
  layer.hidden = 100;
  EXPECT_EQ(monomoe_bench_create(handles.context, &layer, &handles.bench), MONOMOE_USAGE);
  EXPECT_NE(std::string(monomoe_last_error()).find("hidden is 100"), std::string::npos);
  layer.hidden = 256;
  layer.capacity = 0;
  EXPECT_EQ(monomoe_bench_create(handles.context, &layer, &handles.bench), MONOMOE_USAGE);
  EXPECT_NE(std::string(monomoe_last_error()).find("layer->capacity is 0"), std::string::npos);
  layer.capacity = 8;
  layer.swiglu_limit = -1;
  EXPECT_EQ(monomoe_bench_create(handles.context, &layer, &handles.bench), MONOMOE_USAGE);
  layer.swiglu_limit = 0;
  layer.format = MONOMOE_BF16;
  EXPECT_EQ(monomoe_bench_create(handles.context, &layer, &handles.bench), MONOMOE_USAGE);
  EXPECT_EQ(monomoe_bench_create(nullptr, &layer, &handles.bench), MONOMOE_USAGE);
  EXPECT_EQ(handles.bench, nullptr);
}

TEST_F(BenchAbi, RefusesCalls) {
  make();
  call.num_tokens = 9;
  EXPECT_NE(refused(MONOMOE_USAGE).find("call->num_tokens is 9, wanted 1..8"), std::string::npos);
  call.num_tokens = 4;
  call.repeats = -1;
  EXPECT_NE(refused(MONOMOE_USAGE).find("call->repeats is -1"), std::string::npos);
  call.repeats = 3;
  call.mode = MONOMOE_BENCH_GRAPH;
  EXPECT_NE(refused(MONOMOE_USAGE).find("call->mode is graph, which backend cuda alone has"), std::string::npos);
  call.mode = static_cast<monomoe_bench_mode>(7);
  EXPECT_NE(refused(MONOMOE_USAGE).find("call->mode is 7"), std::string::npos);
  call.mode = MONOMOE_BENCH_COLD;
  call.launch = MONOMOE_LAUNCH_SPLIT;
  EXPECT_NE(refused(MONOMOE_USAGE).find("call->launch is split"), std::string::npos);
  call.launch = MONOMOE_LAUNCH_AUTO;
  call.routing_value = 1;
  EXPECT_NE(refused(MONOMOE_USAGE).find("uniform routing has none"), std::string::npos);
  call.routing = MONOMOE_ROUTING_HOT;
  call.routing_value = 1.5;
  EXPECT_NE(refused(MONOMOE_USAGE).find("call->routing_value is 1.5"), std::string::npos);
  call.routing = MONOMOE_ROUTING_ZIPF;
  call.routing_value = -1;
  EXPECT_NE(refused(MONOMOE_USAGE).find("Zipf's exponent"), std::string::npos);
  call.routing_value = 1;
  call.num_tokens = 0;
  alignas(int64_t) const char counts[16] = {};
  call.tokens_per_rank = reinterpret_cast<const int64_t*>(counts + 4);
  EXPECT_NE(refused(MONOMOE_USAGE).find("call->tokens_per_rank is at address"), std::string::npos);
  call.struct_size = 8;
  EXPECT_NE(refused(MONOMOE_USAGE).find("struct_size is 8"), std::string::npos);
}

TEST_F(BenchAbi, ATraceNeedsLaunches) {
  make();
  char* json = nullptr;
  EXPECT_EQ(monomoe_bench_trace(handles.bench, &call, &json), MONOMOE_USAGE);
  EXPECT_NE(std::string(monomoe_last_error()).find("a trace needs backend cuda"), std::string::npos);
}

TEST_F(BenchAbi, CaseLines) {
  int32_t ranks = 0;
  ASSERT_EQ(monomoe_bench_case("ranks=4 experts=16 topk=4 tokens=36 hidden=512 inter=256 w=mxfp4 seed=3 dist=zipf limit=7 capacity=20", &layer, &call, &ranks),
            MONOMOE_OK);
  EXPECT_EQ(ranks, 4);
  EXPECT_EQ(layer.format, MONOMOE_MXFP4);
  EXPECT_EQ(layer.hidden, 512);
  EXPECT_EQ(layer.intermediate, 256);
  EXPECT_EQ(layer.experts, 16);
  EXPECT_EQ(layer.topk, 4);
  EXPECT_EQ(layer.capacity, 20);
  EXPECT_EQ(layer.seed, 3u);
  EXPECT_EQ(layer.swiglu_limit, 7.0f);
  EXPECT_EQ(call.num_tokens, 9);
  EXPECT_EQ(call.routing, MONOMOE_ROUTING_ZIPF);
  EXPECT_EQ(call.routing_value, 1.0);
  EXPECT_EQ(call.repeats, 3);  // as it was
  for (const char* line : {"experts=4 topk=2 tokens=8 hidden=256 inter=128 w=fp8 dist=masked", "experts=4 topk=2 tokens=8 hidden=256 inter=128 w=fp8 placement=random",
                           "experts=4 topk=2 tokens=9 ranks=2 hidden=256 inter=128 w=fp8", "experts=4 topk=2 tokens=0 hidden=256 inter=128 w=fp8", "experts=4"}) {
    EXPECT_EQ(monomoe_bench_case(line, &layer, &call, &ranks), MONOMOE_USAGE) << line;
    EXPECT_EQ(ranks, 4);
  }
}

// A failure is found: outputs that differ are no result.
TEST_F(BenchAbi, DifferentBitsAreFound) {
  make();
  Measured measured;
  measured.samples.first = {std::vector<uint16_t>(4 * 256, 1), std::vector<uint16_t>(4 * 256, 1)};
  measured.samples.last = measured.samples.first;
  EXPECT_TRUE(compare_runs(*handles.bench, measured).ok());
  measured.samples.last[1][2 * 256 + 17] = 2;
  const Result<void> same = compare_runs(*handles.bench, measured);
  ASSERT_FALSE(same.ok());
  EXPECT_EQ(same.error().status, Status::kCheckFailed);
  EXPECT_NE(same.error().message.find("rank 1, token 2, channel 17: y is 0x0002 in the last run, 0x0001"), std::string::npos) << same.error().message;
}

// What backend cuda's output is compared with: the distinct experts alone give the bits of the whole layer.
TEST_F(BenchAbi, TheComparisonWithTheCpuBackendHolds) {
  make();
  const Routing routing;
  const std::vector<int64_t> counts = {4, 4};
  const BenchTokens tokens = bench_tokens(handles.bench->weights->placement, routing, 2, counts, layer.seed);
  char* text = nullptr;
  ASSERT_EQ(monomoe_bench_run(handles.bench, &call, &text), MONOMOE_OK);
  monomoe_free_text(text);
  BenchCall again;
  again.tokens = counts;
  again.repeats = 1;
  auto measured = measure_cpu(*handles.bench, again, tokens);
  ASSERT_TRUE(measured.ok());
  const Result<void> same = compare_with_cpu(*handles.bench, tokens, measured.value());
  EXPECT_TRUE(same.ok()) << same.error().message;
  measured.value().samples.first[1][5] ^= 1;
  EXPECT_FALSE(compare_with_cpu(*handles.bench, tokens, measured.value()).ok());
}

}  // namespace
}  // namespace monomoe::layer
