// Synthetic checkpoints: what is written is what the loader finds, for every model and format.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "layer/synth_fill.hpp"
#include "layer/synth_geometry.hpp"
#include "layer/synth_tensors.hpp"
#include "monomoe/checkpoint.h"
#include "numerics/bf16.h"
#include "numerics/e4m3.h"
#include "weights/checkpoint.hpp"

namespace monomoe::layer {
namespace {

namespace fs = std::filesystem;

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (fs::temp_directory_path() / "monomoe_synth_XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

monomoe_synth_options options_for(const char* geometry, monomoe_format format) {
  monomoe_synth_options options{};
  options.struct_size = sizeof(options);
  options.geometry = geometry;
  options.format = format;
  options.num_experts = 2;
  options.num_tokens = 3;
  options.seed = 5;
  return options;
}

nlohmann::json verified(const std::string& directory) {
  char* json = nullptr;
  EXPECT_EQ(monomoe_checkpoint_verify(directory.c_str(), -1, 1, &json), MONOMOE_OK) << monomoe_last_error();
  const auto report = nlohmann::json::parse(json);
  monomoe_free_text(json);
  return report;
}

TEST(Synth, EveryModelInEveryFormatLoadsWithoutAProblem) {
  for (int run = 0; run < 3 * static_cast<int>(geometries().size()); ++run) {
    const Geometry& geometry = geometries()[static_cast<size_t>(run / 3)];
    const monomoe_format format = static_cast<monomoe_format>(run % 3);
    SCOPED_TRACE(std::string(geometry.name) + " format " + std::to_string(format));
    TemporaryDirectory scratch;
    const std::string directory = scratch / "out";
    const monomoe_synth_options options = options_for(geometry.name, format);
    ASSERT_EQ(monomoe_synth(directory.c_str(), &options), MONOMOE_OK) << monomoe_last_error();
    const auto report = verified(directory);
    EXPECT_EQ(report["ok"], true) << report.dump(2);
    EXPECT_EQ(report["layers"], nlohmann::json({"0"}));
    // input.safetensors stands beside the shards and is no part of the checkpoint.
    for (const auto& note : report["notes"]) EXPECT_NE(note.get<std::string>().find(note.get<std::string>().starts_with("unused") ? "input.safetensors" : "different global scales"), std::string::npos) << note;
    auto opened = Checkpoint::open(directory);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    auto layer = opened.value().load_layer(0);
    ASSERT_TRUE(layer.ok()) << layer.error().message;
    EXPECT_EQ(static_cast<int>(layer.value().format), static_cast<int>(format));
    EXPECT_EQ(layer.value().hidden, geometry.hidden);
    EXPECT_EQ(layer.value().intermediate, geometry.intermediate);
    EXPECT_EQ(layer.value().experts.size(), 2u);
    EXPECT_EQ(layer.value().shared.has_value(), geometry.shared_experts > 0);
    EXPECT_EQ(opened.value().config().swiglu_limit.value_or(0), geometry.swiglu_limit);
    auto router = opened.value().router_config(layer.value());
    ASSERT_TRUE(router.ok()) << router.error().message;
    EXPECT_EQ(router.value().scoring, geometry.scoring);
    EXPECT_EQ(router.value().routed_scaling_factor, geometry.scaling_factor == 0 ? 1.0 : geometry.scaling_factor);
    EXPECT_TRUE(router.value().norm_topk_prob);
    EXPECT_EQ(layer.value().router->table != nullptr, geometry.hash_layers > 0);
    EXPECT_EQ(layer.value().router->bias != nullptr, geometry.has_bias && geometry.hash_layers == 0);
  }
}

int64_t entries(const fs::path& directory) { return std::distance(fs::directory_iterator(directory), fs::directory_iterator()); }

TEST(Synth, TouchesNothingItDidNotMake) {
  TemporaryDirectory scratch;
  fs::create_directory(scratch / "out.partial");
  std::ofstream(scratch / "out.partial/file") << "kept";
  fs::create_directory(scratch / "real");
  fs::create_directory_symlink("real", scratch / "link");
  fs::create_directory_symlink("nowhere", scratch / "dangling");
  monomoe_synth_options options = options_for("qwen3-235b", MONOMOE_MXFP4);
  options.num_experts = 1;
  ASSERT_EQ(monomoe_synth((scratch / "out").c_str(), &options), MONOMOE_OK) << monomoe_last_error();
  EXPECT_TRUE(fs::exists(scratch / "out.partial/file"));
  ASSERT_EQ(monomoe_synth((scratch / "link").c_str(), &options), MONOMOE_OK) << monomoe_last_error();
  EXPECT_TRUE(fs::is_symlink(scratch / "link"));
  EXPECT_TRUE(fs::exists(scratch / "real/config.json"));
  EXPECT_EQ(monomoe_synth((scratch / "dangling").c_str(), &options), MONOMOE_USAGE);
  EXPECT_NE(std::string(monomoe_last_error()).find("link to nothing"), std::string::npos) << monomoe_last_error();
  EXPECT_EQ(entries(scratch / ""), 5);  // out, out.partial, real, link, dangling
}

TEST(Synth, RefusesWhatIsThereAndWhatIsUnknown) {
  TemporaryDirectory scratch;
  const std::string directory = scratch / "out";
  fs::create_directory(directory);
  std::ofstream(directory + "/file") << "kept";
  monomoe_synth_options options = options_for("glm-4.5", MONOMOE_FP8);
  EXPECT_EQ(monomoe_synth(directory.c_str(), &options), MONOMOE_USAGE);
  EXPECT_NE(std::string(monomoe_last_error()).find("not an empty directory"), std::string::npos) << monomoe_last_error();
  EXPECT_TRUE(fs::exists(directory + "/file"));
  EXPECT_EQ(entries(scratch / ""), 1);
  options.geometry = "gpt-5";
  EXPECT_EQ(monomoe_synth((scratch / "new").c_str(), &options), MONOMOE_USAGE);
  EXPECT_NE(std::string(monomoe_last_error()).find("deepseek-v4-flash"), std::string::npos) << monomoe_last_error();
  options.geometry = "glm-4.5";
  options.format = MONOMOE_BF16;
  EXPECT_EQ(monomoe_synth((scratch / "new").c_str(), &options), MONOMOE_USAGE);
  EXPECT_FALSE(fs::exists(scratch / "new"));
}

TEST(Synth, GeometriesAreListed) {
  std::set<std::string> names;
  for (const char* const* name = monomoe_synth_geometries(); *name != nullptr; ++name) names.insert(*name);
  EXPECT_EQ(names, (std::set<std::string>{"deepseek-v4-flash", "deepseek-v4-pro", "mimo-v2.5-pro", "deepseek-v3", "kimi-k2", "glm-4.5",
                                          "qwen3-235b"}));
}

std::vector<uint8_t> filled(const FillSpec& spec, uint64_t key, uint64_t bytes) {
  std::vector<uint8_t> out;
  const auto result = fill_tensor(spec, key, bytes, [&](std::span<const uint8_t> piece) -> Result<void> {
    out.insert(out.end(), piece.begin(), piece.end());
    return {};
  });
  EXPECT_TRUE(result.ok());
  EXPECT_EQ(out.size(), bytes);
  return out;
}

TEST(Fill, E4m3CodesAreAllNumbersWithTheStatedDeviation) {
  const std::vector<uint8_t> codes = filled({Fill::kE4m3Codes}, 1, (1 << 21) + 3);
  double square = 0;
  std::set<uint8_t> seen;
  for (const uint8_t code : codes) {
    ASSERT_NE(code & 0x7F, 0x7F);
    seen.insert(code);
    square += std::pow(e4m3_decode(code), 2);
  }
  EXPECT_EQ(seen.size(), 254u);
  EXPECT_NEAR(std::sqrt(square / static_cast<double>(codes.size())), kE4m3CodeDeviation, 0.5);
}

TEST(Fill, PiecesDoNotShowAndKeysDiffer) {
  const std::vector<uint8_t> two_pieces = filled({Fill::kFp4Codes}, 1, (1 << 20) + 800), one = filled({Fill::kFp4Codes}, 1, 1 << 20);
  EXPECT_TRUE(std::equal(one.begin(), one.end(), two_pieces.begin()));
  EXPECT_NE(filled({Fill::kFp4Codes}, 2, 64), filled({Fill::kFp4Codes}, 1, 64));
  EXPECT_NE(tensor_key(1, "a"), tensor_key(1, "b"));
  EXPECT_NE(tensor_key(1, "a"), tensor_key(2, "a"));
}

TEST(Fill, NormalBf16HasMeanZeroAndItsSpread) {
  FillSpec spec{Fill::kBf16Normal};
  spec.spread = 0.5f;
  const std::vector<uint8_t> bytes = filled(spec, 3, 1 << 18);
  double sum = 0, square = 0;
  for (size_t i = 0; i < bytes.size(); i += 2) {
    const double value = bf16_decode(static_cast<uint16_t>(bytes[i] | bytes[i + 1] << 8));
    sum += value;
    square += value * value;
  }
  const double count = static_cast<double>(bytes.size()) / 2;
  EXPECT_NEAR(sum / count, 0.0, 0.01);
  EXPECT_NEAR(std::sqrt(square / count), 0.5, 0.01);
}

TEST(Fill, HashTablesNameDistinctExpertsInEachRow) {
  FillSpec spec{Fill::kI64Below};
  spec.bound = 8;
  spec.run = 6;
  const std::vector<uint8_t> bytes = filled(spec, 4, 600 * 6 * 8);
  std::set<int64_t> seen;
  for (int row = 0; row < 600; ++row) {
    std::set<int64_t> ids;
    for (int i = 0; i < 6; ++i) {
      int64_t id = 0;
      std::memcpy(&id, bytes.data() + (row * 6 + i) * 8, 8);
      ASSERT_GE(id, 0);
      ASSERT_LT(id, 8);
      ids.insert(id);
      seen.insert(id);
    }
    EXPECT_EQ(ids.size(), 6u);
  }
  EXPECT_EQ(seen.size(), 8u);
}

}  // namespace
}  // namespace monomoe::layer
