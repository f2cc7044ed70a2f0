// monomoe_pack through the ABI: arguments refused by name, the callback's numbers, the packed checkpoint opened by the other functions.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "monomoe/checkpoint.h"
#include "unit/weights/checkpoint_builder.hpp"

namespace monomoe::layer {
namespace pack_test {

using test_support::CheckpointBuilder;
using test_support::Packing;
using test_support::TempDir;

monomoe_pack_options options_to(const char* to) {
  monomoe_pack_options options{};
  options.struct_size = sizeof(options);
  options.to = to;
  options.num_threads = 2;
  return options;
}

void write_source(const TempDir& dir) {
  CheckpointBuilder builder;
  for (const char* prefix : {"layers.0.ffn.", "layers.3.ffn.", "mtp.0.ffn."}) builder.add_experts(prefix, Packing::kMxfp4, 3, 256, 96);
  builder.write(dir);
}

struct Told {
  int64_t calls = 0, shards = 0;
  uint64_t bytes = 0;
  std::vector<std::string> layers;
};

void tell(const monomoe_pack_progress* progress, void* user) {
  auto& told = *static_cast<Told*>(user);
  ++told.calls;
  EXPECT_GE(progress->bytes_done, told.bytes);
  EXPECT_GE(progress->shards_done, told.shards);
  told.bytes = progress->bytes_done;
  told.shards = progress->shards_done;
  EXPECT_LE(progress->bytes_done, progress->bytes);
  EXPECT_EQ(progress->shards, 3);
  if (told.layers.empty() || told.layers.back() != progress->layer) told.layers.push_back(progress->layer);
}

TEST(Pack, WritesACheckpointThatOpensAndTellsItsProgress) {
  const TempDir dir;
  write_source(dir);
  Told told;
  monomoe_pack_options options = options_to("packed");
  options.callback = tell;
  options.user = &told;
  char* text = nullptr;
  const std::string out = dir.file("out.d/packed");  // below the directory would be inside it
  const TempDir elsewhere;
  const std::string target = elsewhere.file("a/b/packed");
  EXPECT_EQ(monomoe_pack(dir.path().c_str(), out.c_str(), &options, &text), MONOMOE_USAGE);
  ASSERT_EQ(monomoe_pack(dir.path().c_str(), target.c_str(), &options, &text), MONOMOE_OK) << monomoe_last_error();
  const auto report = nlohmann::json::parse(text);
  monomoe_free_text(text);
  EXPECT_EQ(report["layers"], (nlohmann::json{"0", "3", "mtp.0"}));
  EXPECT_EQ(told.layers, (std::vector<std::string>{"0", "3", "mtp.0"}));
  EXPECT_EQ(told.shards, 3);
  EXPECT_EQ(told.bytes, report["bytes"]);

  monomoe_checkpoint* checkpoint = nullptr;
  ASSERT_EQ(monomoe_checkpoint_open(target.c_str(), &checkpoint), MONOMOE_OK) << monomoe_last_error();
  monomoe_layer_info info{};
  info.struct_size = sizeof(info);
  ASSERT_EQ(monomoe_checkpoint_layer_info(checkpoint, 3, &info), MONOMOE_OK);
  EXPECT_EQ(info.format, MONOMOE_MXFP4);
  EXPECT_EQ(info.num_experts, 3);
  EXPECT_EQ(info.hidden, 256);
  EXPECT_EQ(info.intermediate, 96);
  monomoe_context_options context_options{};
  context_options.struct_size = sizeof(context_options);
  context_options.backend = MONOMOE_BACKEND_CPU;
  monomoe_context* context = nullptr;
  ASSERT_EQ(monomoe_context_create(&context_options, &context), MONOMOE_OK);
  monomoe_weights* weights = nullptr;
  EXPECT_EQ(monomoe_checkpoint_weights(context, checkpoint, 3, nullptr, -1, &weights), MONOMOE_OK) << monomoe_last_error();
  monomoe_weights_destroy(weights);
  monomoe_context_destroy(context);
  monomoe_checkpoint_close(checkpoint);
}

TEST(Pack, ArgumentsAreRefusedByName) {
  const TempDir dir, elsewhere;
  write_source(dir);
  const std::string out = elsewhere.file("out");
  char* text = nullptr;
  const auto refused = [&](const monomoe_pack_options* options, const char* word) {
    EXPECT_EQ(monomoe_pack(dir.path().c_str(), out.c_str(), options, &text), MONOMOE_USAGE) << word;
    EXPECT_NE(std::string(monomoe_last_error()).find(word), std::string::npos) << monomoe_last_error();
    EXPECT_FALSE(std::filesystem::exists(out));
    EXPECT_FALSE(std::filesystem::exists(out + ".partial"));
  };
  refused(nullptr, "options");
  monomoe_pack_options options = options_to("packed");
  options.struct_size = 4;
  refused(&options, "struct_size");
  for (const char* to : {"bf16", "", "FP8"}) {
    options = options_to(to);
    refused(&options, "options->to");
  }
  options = options_to(nullptr);
  refused(&options, "options->to");
  options = options_to("packed");
  options.num_threads = -1;
  refused(&options, "options->num_threads");
  options = options_to("packed");
  options.layers = "mtp.1";
  refused(&options, "mtp.1");
  EXPECT_EQ(monomoe_pack(dir.path().c_str(), "", &options, &text), MONOMOE_USAGE);
  EXPECT_EQ(text, nullptr);
}

}  // namespace pack_test
}  // namespace monomoe::layer
