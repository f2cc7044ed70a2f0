// verify, inspect and verify_case: what holds is reported as holding, and each kind of damage is found and named.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "layer/verify_layer.hpp"
#include "monomoe/checkpoint.h"
#include "reference/random_layer.hpp"
#include "weights/safetensors_writer.hpp"

namespace monomoe::layer {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

monomoe_context_options two_threads() {
  monomoe_context_options options{};
  options.struct_size = sizeof(options);
  options.num_threads = 2;
  return options;
}

Json verified_case(const char* line) {
  const monomoe_context_options options = two_threads();
  char* text = nullptr;
  EXPECT_EQ(monomoe_verify_case(&options, line, &text), MONOMOE_OK) << monomoe_last_error();
  const Json report = text == nullptr ? Json() : Json::parse(text);
  monomoe_free_text(text);
  return report;
}

TEST(VerifyCase, HoldsInEveryFormatAndSaysWhatItCompared) {
  for (const char* format : {"fp8", "nvfp4", "mxfp4"}) {
    const std::string line = std::string("ranks=3 experts=5 topk=2 tokens=13 hidden=256 inter=160 seed=9 limit=2 dist=masked w=") + format;
    const Json report = verified_case(line.c_str());
    EXPECT_EQ(report["ok"], true) << report.dump(2);
    EXPECT_EQ(report["case"], line);
    ASSERT_EQ(report["stages"].size(), 4u);
    EXPECT_EQ(report["stages"][1]["elements"], 13 * 2 * 160);
    EXPECT_EQ(report["stages"][3]["elements"], 13 * 256);
    EXPECT_TRUE(report["first_diverging_stage"].is_null());
    EXPECT_EQ(report["bitwise"]["checked"], true);
    EXPECT_EQ(report["bitwise"]["equal"], true);
    EXPECT_GT(report["cosine"].get<double>(), 0.999);
    EXPECT_GT(report["exact_dequantisation"]["cosine"].get<double>(), 0.99);
    EXPECT_LT(report["exact_dequantisation"]["cosine"].get<double>(), 1.0);
  }
}

TEST(VerifyCase, WithoutTokensNothingFails) {
  EXPECT_EQ(verified_case("ranks=2 experts=2 topk=1 tokens=0 hidden=128 inter=32 w=fp8 seed=1")["ok"], true);
}

TEST(VerifyCase, ABadLineIsAUsageError) {
  const monomoe_context_options options = two_threads();
  char* text = nullptr;
  EXPECT_EQ(monomoe_verify_case(&options, "ranks=2 experts=2 colour=red", &text), MONOMOE_USAGE);
  EXPECT_NE(std::string(monomoe_last_error()).find("colour"), std::string::npos);
  EXPECT_EQ(text, nullptr);
}

// The check can fail: packed from one layer, compared with another whose down matrices differ.
TEST(VerifyLayer, NamesTheFirstStageThatDiverges) {
  auto parsed = parse_case("ranks=1 experts=2 topk=1 tokens=6 hidden=128 inter=64 w=fp8 seed=4");
  ASSERT_TRUE(parsed.ok());
  const Case& c = parsed.value();
  Case other_case = c;
  other_case.seed = 5;
  const RandomLayer random = random_layer(c), other = random_layer(other_case);
  monomoe_context_options options = two_threads();
  monomoe_context* context = nullptr;
  ASSERT_EQ(monomoe_context_create(&options, &context), MONOMOE_OK);
  std::vector<SourceExpert> experts = random.sources();
  auto placement = PlacementTable::even(2, 1);
  ASSERT_TRUE(placement.ok());
  auto weights = pack_weights(*context, {128, 64, WeightFormat::kFp8, experts, 0, true}, placement.take());
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  monomoe_tokens tokens{};
  tokens.struct_size = sizeof(tokens);
  tokens.num_tokens = 6;
  tokens.x = random.x.data();
  tokens.ids_dtype = MONOMOE_DTYPE_I64;
  tokens.topk_ids = random.ids.data();
  tokens.topk_weights = random.weights.data();
  const std::vector<SourceExpert> others = other.sources();
  for (SourceExpert& expert : experts) expert.down = others[0].down;
  auto report = verify_layer({*context, *weights.value(), experts, 1, 0, &tokens, ""});
  ASSERT_TRUE(report.ok()) << report.error().message;
  const Json json = Json::parse(report.value());
  EXPECT_EQ(json["ok"], false);
  EXPECT_EQ(json["first_diverging_stage"], "contributions");
  EXPECT_EQ(json["stages"][1]["outside_bound"], 0);
  EXPECT_GT(json["stages"][2]["outside_bound"], 0);
  EXPECT_EQ(json["bitwise"]["equal"], false);
  weights.value().reset();
  monomoe_context_destroy(context);
}

// A small synthetic checkpoint that tests may damage.
class VerifyCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "monomoe_verify_XXXXXX").string();
    root_ = mkdtemp(pattern.data());
    directory_ = (root_ / "checkpoint").string();
    monomoe_synth_options options{};
    options.struct_size = sizeof(options);
    options.geometry = "qwen3-235b";
    options.format = MONOMOE_NVFP4;
    options.num_experts = 2;
    options.num_tokens = 4;
    ASSERT_EQ(monomoe_synth(directory_.c_str(), &options), MONOMOE_OK) << monomoe_last_error();
  }
  void TearDown() override { fs::remove_all(root_); }

  Json verified(int32_t read_values = 1) const {
    char* text = nullptr;
    EXPECT_EQ(monomoe_checkpoint_verify(directory_.c_str(), -1, read_values, &text), MONOMOE_OK) << monomoe_last_error();
    const Json report = Json::parse(text);
    monomoe_free_text(text);
    return report;
  }
  // Overwrites bytes of a tensor in the only shard.
  void damage(const std::string& tensor, int64_t at, uint8_t byte) const {
    const std::string shard = directory_ + "/model-00001-of-00001.safetensors";
    monomoe_tensor_file* file = nullptr;
    ASSERT_EQ(monomoe_tensor_file_open(shard.c_str(), &file), MONOMOE_OK) << monomoe_last_error();
    monomoe_tensor first{}, found{};
    ASSERT_EQ(monomoe_tensor_file_at(file, 0, &first), MONOMOE_OK);
    ASSERT_EQ(monomoe_tensor_file_find(file, tensor.c_str(), &found), MONOMOE_OK) << monomoe_last_error();
    std::ifstream header(shard, std::ios::binary);
    uint64_t header_bytes = 0;
    header.read(reinterpret_cast<char*>(&header_bytes), 8);
    const int64_t offset =
        static_cast<int64_t>(8 + header_bytes) + (static_cast<const uint8_t*>(found.data) - static_cast<const uint8_t*>(first.data)) + at;
    monomoe_tensor_file_close(file);
    std::fstream out(shard, std::ios::binary | std::ios::in | std::ios::out);
    out.seekp(offset);
    out.put(static_cast<char>(byte));
    ASSERT_TRUE(out.good());
  }

  fs::path root_;
  std::string directory_;
};

TEST_F(VerifyCheckpoint, ListsEveryBadValueWithTensorAndFile) {
  EXPECT_EQ(verified()["ok"], true);
  const std::string gate = "model.layers.0.mlp.experts.0.gate_proj.weight_scale",
                    down = "model.layers.0.mlp.experts.1.down_proj.weight_scale";
  damage(gate, 256 + 3, 0x7F);  // hidden 4096: 256 scales a row
  damage(down, 5, 0x80 | 0x38);
  const Json report = verified();
  EXPECT_EQ(report["ok"], false);
  ASSERT_EQ(report["problems"].size(), 2u) << report.dump(2);
  EXPECT_EQ(report["problems"][0]["tensor"], gate);
  EXPECT_EQ(report["problems"][0]["file"], "model-00001-of-00001.safetensors");
  EXPECT_NE(report["problems"][0]["what"].get<std::string>().find("row 1, column 3"), std::string::npos) << report.dump(2);
  EXPECT_EQ(report["problems"][1]["tensor"], down);
  EXPECT_EQ(report["values_read"], true);
  EXPECT_EQ(verified(0)["ok"], true);  // of the structure nothing is wrong
  EXPECT_EQ(verified(0)["values_read"], false);
  // The layer is refused although no token would need the bad expert.
  monomoe_checkpoint* checkpoint = nullptr;
  monomoe_context* context = nullptr;
  const monomoe_context_options options = two_threads();
  ASSERT_EQ(monomoe_checkpoint_open(directory_.c_str(), &checkpoint), MONOMOE_OK);
  ASSERT_EQ(monomoe_context_create(&options, &context), MONOMOE_OK);
  monomoe_weights* weights = nullptr;
  EXPECT_EQ(monomoe_checkpoint_weights(context, checkpoint, 0, nullptr, -1, &weights), MONOMOE_BAD_INPUT);
  EXPECT_NE(std::string(monomoe_last_error()).find(down), std::string::npos) << monomoe_last_error();
  EXPECT_EQ(weights, nullptr);
  monomoe_context_destroy(context);
  monomoe_checkpoint_close(checkpoint);
}

TEST_F(VerifyCheckpoint, AMissingShardIsAProblem) {
  fs::remove(directory_ + "/model-00001-of-00001.safetensors");
  const Json report = verified();
  EXPECT_EQ(report["ok"], false);
  EXPECT_NE(report["problems"].dump().find("model-00001-of-00001.safetensors"), std::string::npos);
}

TEST_F(VerifyCheckpoint, StructureAloneTellsWhatHeadersSay) {
  char* text = nullptr;
  ASSERT_EQ(monomoe_checkpoint_inspect(directory_.c_str(), -1, 0, &text), MONOMOE_OK) << monomoe_last_error();
  const Json all = Json::parse(text);
  monomoe_free_text(text);
  EXPECT_EQ(all["values_read"], false);
  const Json& layer = all["layers"][0];
  EXPECT_EQ(layer["usable"], true);
  EXPECT_EQ(layer["format"], "nvfp4");
  EXPECT_EQ(layer["num_matrices"], 6);
  EXPECT_FALSE(layer.contains("matrices"));
  EXPECT_TRUE(layer["notes"].empty()) << layer["notes"];  // none about global scales, which were not read
  ASSERT_EQ(monomoe_checkpoint_inspect(directory_.c_str(), 0, 0, &text), MONOMOE_OK) << monomoe_last_error();
  const Json one = Json::parse(text);
  monomoe_free_text(text);
  ASSERT_EQ(one["layers"][0]["matrices"].size(), 6u);
  EXPECT_EQ(one["layers"][0]["matrices"][2]["rows"], 4096);
  EXPECT_EQ(one["layers"][0]["matrices"][2]["cols"], 1536);
  EXPECT_FALSE(one["layers"][0]["matrices"][2].contains("conversion"));
  text = nullptr;
  EXPECT_EQ(monomoe_checkpoint_inspect(directory_.c_str(), 0, 2, &text), MONOMOE_USAGE);
  EXPECT_EQ(monomoe_checkpoint_verify(directory_.c_str(), 0, -1, &text), MONOMOE_USAGE);
  EXPECT_NE(std::string(monomoe_last_error()).find("read_values is -1, wanted 0 or 1"), std::string::npos) << monomoe_last_error();
}

TEST_F(VerifyCheckpoint, AFileWrittenToMeanwhileIsRefused) {
  monomoe_checkpoint* checkpoint = nullptr;
  monomoe_context* context = nullptr;
  const monomoe_context_options options = two_threads();
  ASSERT_EQ(monomoe_checkpoint_open(directory_.c_str(), &checkpoint), MONOMOE_OK);
  ASSERT_EQ(monomoe_context_create(&options, &context), MONOMOE_OK);
  const std::string shard = directory_ + "/model-00001-of-00001.safetensors";
  const auto before = fs::last_write_time(shard);
  monomoe_weights* weights = nullptr;
  ASSERT_EQ(monomoe_checkpoint_weights(context, checkpoint, 0, nullptr, -1, &weights), MONOMOE_OK) << monomoe_last_error();
  monomoe_weights_destroy(weights);
  weights = nullptr;
  fs::last_write_time(shard, before + std::chrono::seconds(5));
  EXPECT_EQ(monomoe_checkpoint_weights(context, checkpoint, 0, nullptr, -1, &weights), MONOMOE_BAD_INPUT);
  EXPECT_EQ(weights, nullptr);
  EXPECT_NE(std::string(monomoe_last_error()).find(shard + ": was written to while it was read"), std::string::npos) << monomoe_last_error();
  // Another file under its name is no change: the map keeps the old one.
  fs::copy_file(shard, shard + ".new");
  fs::rename(shard + ".new", shard);
  EXPECT_EQ(monomoe_checkpoint_weights(context, checkpoint, 0, nullptr, -1, &weights), MONOMOE_OK) << monomoe_last_error();
  monomoe_weights_destroy(weights);
  monomoe_context_destroy(context);
  monomoe_checkpoint_close(checkpoint);
}

TEST_F(VerifyCheckpoint, InspectStatesTheConversionOfEachMatrix) {
  char* text = nullptr;
  ASSERT_EQ(monomoe_checkpoint_inspect(directory_.c_str(), -1, 1, &text), MONOMOE_OK) << monomoe_last_error();
  const Json report = Json::parse(text);
  monomoe_free_text(text);
  ASSERT_EQ(report["layers"].size(), 1u);
  const Json& layer = report["layers"][0];
  EXPECT_EQ(layer["format"], "nvfp4");
  EXPECT_EQ(layer["experts"], 2);
  EXPECT_EQ(layer["router"]["scoring"], "softmax");
  EXPECT_TRUE(layer["shared_expert"].is_null());
  ASSERT_EQ(layer["matrices"].size(), 6u);
  EXPECT_EQ(layer["matrices"][0]["tensor"], "model.layers.0.mlp.experts.0.gate_proj.weight");
  EXPECT_EQ(layer["matrices"][0]["conversion"], "rounded");
  EXPECT_GT(layer["matrices"][0]["worst_relative_error"].get<double>(), 0.04);
  EXPECT_LT(layer["matrices"][0]["worst_relative_error"].get<double>(), 0.0626);
  EXPECT_EQ(layer["matrices"][0]["weights"], 1536 * 4096);
  text = nullptr;
  EXPECT_EQ(monomoe_checkpoint_inspect(directory_.c_str(), 3, 0, &text), MONOMOE_USAGE);
  EXPECT_EQ(text, nullptr);
}

TEST_F(VerifyCheckpoint, ARunFromHiddenStatesHolds) {
  monomoe_checkpoint* checkpoint = nullptr;
  monomoe_context* context = nullptr;
  monomoe_context_options options = two_threads();
  options.num_ranks = 2;
  ASSERT_EQ(monomoe_checkpoint_open(directory_.c_str(), &checkpoint), MONOMOE_OK);
  ASSERT_EQ(monomoe_context_create(&options, &context), MONOMOE_OK);
  monomoe_tensor_file* input = nullptr;
  monomoe_tensor x{};
  ASSERT_EQ(monomoe_tensor_file_open((directory_ + "/input.safetensors").c_str(), &input), MONOMOE_OK);
  ASSERT_EQ(monomoe_tensor_file_find(input, "x", &x), MONOMOE_OK);
  std::vector<uint16_t> rows(4 * 4096);
  std::memcpy(rows.data(), x.data, rows.size() * 2);
  std::vector<int64_t> ids(4 * 2);
  std::vector<float> weights(4 * 2);
  ASSERT_EQ(monomoe_checkpoint_route(checkpoint, 0, rows.data(), 4, nullptr, ids.data(), weights.data()), MONOMOE_OK)
      << monomoe_last_error();
  std::vector<monomoe_tokens> tokens(2);
  for (int rank = 0; rank < 2; ++rank) {
    tokens[rank].struct_size = sizeof(monomoe_tokens);
    tokens[rank].num_tokens = 2;
    tokens[rank].x = rows.data() + rank * 2 * 4096;
    tokens[rank].ids_dtype = MONOMOE_DTYPE_I64;
    tokens[rank].topk_ids = ids.data() + rank * 4;
    tokens[rank].topk_weights = weights.data() + rank * 4;
  }
  char* text = nullptr;
  ASSERT_EQ(monomoe_checkpoint_verify_run(context, checkpoint, 0, nullptr, -1, 2, tokens.data(), &text), MONOMOE_OK)
      << monomoe_last_error();
  const Json report = Json::parse(text);
  monomoe_free_text(text);
  EXPECT_EQ(report["ok"], true) << report.dump(2);
  EXPECT_GT(report["exact_dequantisation"]["cosine"].get<double>(), 0.99);
  monomoe_tensor_file_close(input);
  monomoe_context_destroy(context);
  monomoe_checkpoint_close(checkpoint);
}

}  // namespace
}  // namespace monomoe::layer
