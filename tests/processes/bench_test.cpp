// Benchmarks whose ranks are contexts of their own in a world: here each in a thread. No test depends on how long anything took.
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "layer/bench.hpp"
#include "monomoe/bench.h"
#include "processes/world.hpp"

namespace monomoe::processes {
namespace {

using Json = nlohmann::json;
constexpr int32_t kRanks = 2;

// How a rank's last call ended.
struct Ended {
  monomoe_status status = MONOMOE_INTERNAL;
  std::string sentence, report;
};

struct Rank {
  int32_t number = 0;
  monomoe_bench_layer layer = {};
  monomoe_bench_call call = {};
  monomoe_world* world = nullptr;
  monomoe_context* context = nullptr;
  monomoe_bench* bench = nullptr;

  Ended ended(monomoe_status status, char* report = nullptr) const {
    Ended end{status, status == MONOMOE_OK ? "" : monomoe_last_error(), report == nullptr ? "" : report};
    monomoe_free_text(report);
    return end;
  }
  Ended create() { return ended(monomoe_world_bench_create(world, context, &layer, &bench)); }
  Ended run() {
    char* report = nullptr;
    const monomoe_status status = monomoe_bench_run(bench, &call, &report);
    return ended(status, report);
  }
};

class WorldBench : public testing::Test {
 protected:
  // body is each rank's, in a world that it has joined.
  std::vector<Ended> each_rank(const std::function<Ended(Rank&)>& body) {
    static int count = 0;
    const std::string name = "bench-" + std::to_string(getpid()) + "-" + std::to_string(count++);
    std::vector<Ended> ends(kRanks);
    std::vector<std::thread> threads;
    for (int32_t rank = 0; rank < kRanks; ++rank)
      threads.emplace_back([&, rank] { ends[static_cast<size_t>(rank)] = as_rank(name, rank, body); });
    for (std::thread& thread : threads) thread.join();
    return ends;
  }

 private:
  static Ended as_rank(const std::string& name, int32_t number, const std::function<Ended(Rank&)>& body) {
    Rank rank;
    rank.number = number;
    rank.layer = {sizeof(rank.layer), MONOMOE_NVFP4, 256, 128, 6, 2, 8, 10.0f, 5};
    rank.call.struct_size = sizeof(rank.call);
    rank.call.num_tokens = 4;
    rank.call.repeats = 3;
    monomoe_world_options join = {};
    join.struct_size = sizeof(join);
    join.name = name.c_str();
    join.ranks = kRanks;
    join.rank = number;
    join.timeout_ms = 20000;
    monomoe_context_options options = {};
    options.struct_size = sizeof(options);
    options.backend = MONOMOE_BACKEND_CPU;
    options.num_threads = 1;
    Ended end;
    for (const monomoe_status status : {monomoe_world_join(&join, &rank.world), monomoe_world_place(rank.world, &options, nullptr),
                                        monomoe_context_create(&options, &rank.context)}) {
      if (status != MONOMOE_OK) end = rank.ended(status);
    }
    if (end.sentence.empty()) end = body(rank);
    monomoe_bench_destroy(rank.bench);
    monomoe_context_destroy(rank.context);
    monomoe_world_leave(rank.world, nullptr);
    return end;
  }
};

TEST_F(WorldBench, AllRanksGetTheRowOfTheSlowest) {
  const std::vector<Ended> ends = each_rank([](Rank& rank) {
    if (const Ended created = rank.create(); created.status != MONOMOE_OK) return created;
    return rank.run();
  });
  for (const Ended& end : ends) ASSERT_EQ(end.status, MONOMOE_OK) << end.sentence;
  const Json row = Json::parse(ends[0].report), other = Json::parse(ends[1].report);
  for (const char* key : {"median", "samples", "read", "processes", "routes"}) EXPECT_EQ(row[key], other[key]) << key;
  EXPECT_EQ(row["ranks"], 2);
  EXPECT_EQ(row["tokens_per_rank"], (Json{4, 4}));
  EXPECT_EQ(row["routes"], 2 * 4 * 2);
  EXPECT_EQ(row["processes"]["memory"], "an anonymous file of the host's memory");
  const auto medians = row["processes"]["medians"].get<std::vector<double>>();
  ASSERT_EQ(medians.size(), 2u);
  EXPECT_EQ(row["median"].get<double>(), std::max(medians[0], medians[1]));
  auto samples = row["samples"].get<std::vector<double>>();
  ASSERT_EQ(samples.size(), 3u);
  std::sort(samples.begin(), samples.end());
  EXPECT_EQ(row["median"].get<double>(), samples[1]);
  EXPECT_GT(std::min(medians[0], medians[1]), 0);
}

// More samples than one exchange of a world can carry; rank 1's are the slower ones.
TEST_F(WorldBench, ManySamplesArriveWhole) {
  constexpr int kSamples = 10000;
  const auto sample = [](int32_t rank, int i) { return rank + 1 + i * 1e-6; };
  const std::vector<Ended> ends = each_rank([&](Rank& rank) {
    layer::Measured measured;
    for (int i = 0; i < kSamples; ++i) measured.samples.seconds.push_back(sample(rank.number, i));
    measured.limits = {{100 + rank.number, 10, 0.5, 0}};
    auto combined = layer::combine_ranks(*rank.world->world, measured);
    if (!combined) return Ended{MONOMOE_INTERNAL, combined.error().message, ""};
    for (int i = 0; i < kSamples; ++i) {
      if (measured.samples.seconds[static_cast<size_t>(i)] != sample(1, i))
        return Ended{MONOMOE_CHECK_FAILED, "sample " + std::to_string(i), ""};
    }
    const Json told = {measured.samples.seconds.size(), measured.medians, measured.limits[0].bytes, measured.limits[1].bytes,
                       measured.limits.size()};
    return Ended{MONOMOE_OK, "", told.dump()};
  });
  const double half = (kSamples - 1) * 1e-6 / 2;
  for (const Ended& end : ends) {
    ASSERT_EQ(end.status, MONOMOE_OK) << end.sentence;
    const Json told = Json::parse(end.report);
    EXPECT_EQ(told[0], kSamples);
    EXPECT_NEAR(told[1][0].get<double>(), 1 + half, 1e-9);
    EXPECT_NEAR(told[1][1].get<double>(), 2 + half, 1e-9);
    EXPECT_EQ(told[2], 100);
    EXPECT_EQ(told[3], 101);
    EXPECT_EQ(told[4], 2);
  }
}

TEST_F(WorldBench, RanksThatWereGivenOtherThingsAreRefused) {
  std::vector<Ended> ends = each_rank([](Rank& rank) {
    if (rank.number == 1) rank.layer.seed = 6;
    return rank.create();
  });
  for (const Ended& end : ends) {
    EXPECT_EQ(end.status, MONOMOE_USAGE);
    EXPECT_NE(end.sentence.find("layer->seed is 5 on rank 0 and 6 on rank 1; give every rank of world 'bench-"), std::string::npos)
        << end.sentence;
  }
  ends = each_rank([](Rank& rank) {
    if (const Ended created = rank.create(); created.status != MONOMOE_OK) return created;
    const int64_t counts[] = {4, 3 + rank.number};
    rank.call.num_tokens = 0;
    rank.call.tokens_per_rank = counts;
    return rank.run();
  });
  for (const Ended& end : ends) {
    EXPECT_EQ(end.status, MONOMOE_USAGE);
    EXPECT_NE(end.sentence.find("the tokens of rank 1 is 3 on rank 0 and 4 on rank 1"), std::string::npos) << end.sentence;
  }
}

TEST_F(WorldBench, WhatOneRankRefusesTheOthersAreTold) {
  const std::vector<Ended> ends = each_rank([](Rank& rank) {
    if (const Ended created = rank.create(); created.status != MONOMOE_OK) return created;
    if (rank.number == 1) rank.call.repeats = -1;
    return rank.run();
  });
  EXPECT_EQ(ends[1].status, MONOMOE_USAGE);
  EXPECT_NE(ends[1].sentence.find("call->repeats is -1"), std::string::npos) << ends[1].sentence;
  EXPECT_EQ(ends[0].status, MONOMOE_REJECTED);
  EXPECT_NE(ends[0].sentence.find("rank 1 gave up: call->repeats is -1"), std::string::npos) << ends[0].sentence;
}

// Also what is refused before the call is looked at; and a rank that failed says why whenever it is asked again.
TEST_F(WorldBench, WhatHasNoCallIsToldToo) {
  for (const bool without_json : {false, true}) {
    const std::vector<Ended> ends = each_rank([&](Rank& rank) {
      if (const Ended created = rank.create(); created.status != MONOMOE_OK) return created;
      if (rank.number == 0) return rank.run();
      char* json = nullptr;
      const monomoe_status status =
          without_json ? monomoe_bench_run(rank.bench, &rank.call, nullptr) : monomoe_bench_run(rank.bench, nullptr, &json);
      EXPECT_EQ(status, MONOMOE_USAGE);
      return rank.run();
    });
    const std::string reason = without_json ? "json is NULL" : "call is NULL";
    EXPECT_EQ(ends[0].status, MONOMOE_REJECTED);
    EXPECT_NE(ends[0].sentence.find("rank 1 gave up: " + reason), std::string::npos) << ends[0].sentence;
    EXPECT_EQ(ends[1].status, MONOMOE_USAGE);
    EXPECT_NE(ends[1].sentence.find(reason), std::string::npos) << ends[1].sentence;
  }
}

TEST_F(WorldBench, TheContextIsTheRankOfTheWorld) {
  const std::vector<Ended> ends = each_rank([](Rank& rank) {
    monomoe_context_destroy(rank.context);
    monomoe_context_options options = {};
    options.struct_size = sizeof(options);
    options.backend = MONOMOE_BACKEND_CPU;
    options.num_ranks = kRanks;
    const monomoe_status made = monomoe_context_create(&options, &rank.context);
    return made == MONOMOE_OK ? rank.create() : rank.ended(made);
  });
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    EXPECT_EQ(ends[rank].status, MONOMOE_USAGE);
    EXPECT_NE(ends[rank].sentence.find("the context is all ranks of a process, but this is rank " + std::to_string(rank) + " of 2"),
              std::string::npos)
        << ends[rank].sentence;
  }
}

TEST_F(WorldBench, ATraceShowsRanksOfOneProcess) {
  const std::vector<Ended> ends = each_rank([](Rank& rank) {
    if (const Ended created = rank.create(); created.status != MONOMOE_OK) return created;
    char* json = nullptr;
    return rank.ended(monomoe_bench_trace(rank.bench, &rank.call, &json));
  });
  for (const Ended& end : ends) {
    EXPECT_EQ(end.status, MONOMOE_USAGE);
    EXPECT_NE(end.sentence.find("a trace shows ranks of one process"), std::string::npos) << end.sentence;
  }
}

TEST(WorldBenchRefusals, AWorldsContextNeedsTheWorld) {
  monomoe_context_options options = {};
  options.struct_size = sizeof(options);
  options.backend = MONOMOE_BACKEND_CPU;
  options.world_ranks = kRanks;
  options.rank = 1;
  monomoe_context* context = nullptr;
  ASSERT_EQ(monomoe_context_create(&options, &context), MONOMOE_OK);
  const monomoe_bench_layer layer = {sizeof(layer), MONOMOE_NVFP4, 256, 128, 6, 2, 8, 10.0f, 5};
  monomoe_bench* bench = nullptr;
  EXPECT_EQ(monomoe_bench_create(context, &layer, &bench), MONOMOE_USAGE);
  EXPECT_NE(std::string(monomoe_last_error()).find("the context is rank 1 of 2; call monomoe_world_bench_create"), std::string::npos)
      << monomoe_last_error();
  EXPECT_EQ(monomoe_world_bench_create(nullptr, context, &layer, &bench), MONOMOE_USAGE);
  EXPECT_EQ(bench, nullptr);
  monomoe_context_destroy(context);
}

}  // namespace
}  // namespace monomoe::processes
