// What leaves the library: never an exception, always a status and a sentence for this thread.
#include "layer/error_state.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "layer/arguments.hpp"
#include "layer/parallel.hpp"

namespace monomoe::layer {
namespace {

TEST(Guarded, TurnsResultsIntoStatuses) {
  EXPECT_EQ(guarded([]() -> Result<void> { return {}; }), MONOMOE_OK);
  EXPECT_EQ(guarded([]() -> Result<void> { return bad_input("x.safetensors: cut"); }), MONOMOE_BAD_INPUT);
  EXPECT_STREQ(monomoe_last_error(), "x.safetensors: cut");
  EXPECT_EQ(guarded([]() -> Result<void> { return {}; }), MONOMOE_OK);
  EXPECT_STREQ(monomoe_last_error(), "x.safetensors: cut");  // of the last failure, not of the last call
}

TEST(Guarded, CatchesEveryException) {
  EXPECT_EQ(guarded([]() -> Result<void> { throw std::bad_alloc(); }), MONOMOE_UNAVAILABLE);
  EXPECT_NE(std::string(monomoe_last_error()).find("out of memory"), std::string::npos);
  EXPECT_EQ(guarded([]() -> Result<void> { throw std::runtime_error("odd"); }), MONOMOE_INTERNAL);
  EXPECT_NE(std::string(monomoe_last_error()).find("odd"), std::string::npos);
  EXPECT_EQ(guarded([]() -> Result<void> { throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again)); }),
            MONOMOE_UNAVAILABLE);
  EXPECT_NE(std::string(monomoe_last_error()).find("fewer threads or ranks"), std::string::npos) << monomoe_last_error();
  EXPECT_EQ(guarded([]() -> Result<void> { throw std::system_error(std::make_error_code(std::errc::io_error)); }), MONOMOE_INTERNAL);
  EXPECT_EQ(guarded([]() -> Result<void> { throw 7; }), MONOMOE_INTERNAL);
  EXPECT_NE(std::string(monomoe_last_error()), "");
  EXPECT_EQ(guarded([]() -> Result<void> { return usage_error("after a fixed sentence"); }), MONOMOE_USAGE);
  EXPECT_STREQ(monomoe_last_error(), "after a fixed sentence");
}

TEST(LastError, BelongsToItsThread) {
  record_failure(usage_error("here"));
  std::string before, after;
  std::thread([&] {
    before = monomoe_last_error();
    record_failure(bad_input("there"));
    after = monomoe_last_error();
  }).join();
  EXPECT_EQ(before, "");
  EXPECT_EQ(after, "there");
  EXPECT_STREQ(monomoe_last_error(), "here");
}

TEST(Structs, LongerOnesAreTakenOnlyIfTheirUnknownFieldsAreZero) {
  struct Later {
    monomoe_problem known;
    int64_t added;
  } later{};
  later.known.struct_size = sizeof(Later);
  EXPECT_TRUE(require_struct(&later.known, "problem").ok());
  later.added = 1;
  const Result<void> set = require_struct(&later.known, "problem");
  ASSERT_FALSE(set.ok());
  EXPECT_EQ(set.error().status, Status::kUsage);
  later.known.struct_size = sizeof(monomoe_problem) - 1;
  EXPECT_FALSE(require_struct(&later.known, "problem").ok());
}

TEST(ParallelFor, RunsEveryItemOnceAndReportsTheFirstFailure) {
  std::vector<std::atomic<int>> seen(100);
  EXPECT_TRUE(parallel_for(100, 4, [&](int64_t i) -> Result<void> {
                ++seen[static_cast<size_t>(i)];
                return {};
              }).ok());
  for (const auto& count : seen) EXPECT_EQ(count, 1);
  const auto failing = [](int64_t i) -> Result<void> {
    if (i == 3) return bad_input("three");
    return i < 3 ? Result<void>{} : Result<void>(bad_input("later"));
  };
  const Result<void> one_thread = parallel_for(100, 1, failing);
  ASSERT_FALSE(one_thread.ok());
  EXPECT_EQ(one_thread.error().message, "three");
  const Result<void> thrown = parallel_for(5, 2, [](int64_t) -> Result<void> { throw std::bad_alloc(); });
  ASSERT_FALSE(thrown.ok());
  EXPECT_EQ(thrown.error().status, Status::kUnavailable);
  EXPECT_TRUE(parallel_for(0, 4, failing).ok());
}

TEST(Workspace, MoreMemoryThanAnyMachineHasIsUnavailable) {
  monomoe_context_options options{};
  options.struct_size = sizeof(options);
  options.num_ranks = 64;
  monomoe_context* context = nullptr;
  ASSERT_EQ(monomoe_context_create(&options, &context), MONOMOE_OK) << monomoe_last_error();
  monomoe_workspace_options sizes{};
  sizes.struct_size = sizeof(sizes);
  sizes.topk = 32;
  sizes.hidden = 65536;
  sizes.max_intermediate = 65536;
  sizes.max_experts = 1;
  sizes.capacity = 1 << 20;
  monomoe_workspace* workspace = nullptr;
  EXPECT_EQ(monomoe_workspace_create(context, &sizes, &workspace), MONOMOE_UNAVAILABLE);
  EXPECT_EQ(workspace, nullptr);
  monomoe_context_destroy(context);
}

}  // namespace
}  // namespace monomoe::layer
