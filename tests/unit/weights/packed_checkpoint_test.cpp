// Packed checkpoints: the layout's bytes are pinned to its version, the manifest round trips and refuses, damage is found when loading.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "checkpoint_builder.hpp"
#include "reference/random_layer.hpp"
#include "weights/checkpoint.hpp"
#include "weights/checksum.hpp"
#include "weights/pack_expert.hpp"
#include "weights/packed_manifest.hpp"

namespace monomoe {
namespace packed_checkpoint_test {

using namespace test_support;

std::vector<uint8_t> packed_expert(WeightFormat format, int64_t hidden, int64_t intermediate, uint64_t seed) {
  const RandomMatrix gate = random_matrix(format, intermediate, hidden, seed, 0), up = random_matrix(format, intermediate, hidden, seed, 1);
  const RandomMatrix down = random_matrix(format, hidden, intermediate, seed, 2);
  Problem problem;
  problem.hidden = hidden;
  problem.intermediate = intermediate;
  problem.weights = format;
  std::vector<uint8_t> packed(static_cast<size_t>(expert_layout(problem).bytes));
  EXPECT_TRUE(pack_expert({gate.matrix, up.matrix, down.matrix}, problem, packed.data()).ok());
  return packed;
}

// A change here means that packed files of older versions no longer are what the kernels read: raise kPackedLayoutVersion with it.
TEST(PackedLayout, TheBytesOfAVersionDoNotChange) {
  ASSERT_EQ(kPackedLayoutVersion, 1);
  EXPECT_EQ(checksum_text(packed_expert(WeightFormat::kFp8, 256, 96, 1)), "039764a0e843223b125a2f020d48ee72");
  EXPECT_EQ(checksum_text(packed_expert(WeightFormat::kNvfp4, 256, 96, 1)), "5db3bdc54826958f88ceb7c94d52227c");
  EXPECT_EQ(checksum_text(packed_expert(WeightFormat::kMxfp4, 256, 96, 1)), "7c05fd723a40092018b332e68c4a0e10");
}

TEST(Checksum, IsXxh3WithTheDigestOfTheEmptyInput) {
  EXPECT_EQ(checksum_text({}), "99aa06d3014798d86001c324468d497f");
  Checksum pieces;
  const std::vector<uint8_t> data(1000, 7);
  pieces.update({data.data(), 300});
  pieces.update({data.data() + 300, 700});
  EXPECT_EQ(pieces.text(), checksum_text(data));
}

struct PackedDir {
  TempDir dir;
  CheckpointBuilder builder;
  PackedManifest manifest;

  PackedDir() {
    PackedLayerRecord& layer = manifest.layers["2"];
    layer.prefix = "layers.2.ffn.";
    layer.format = WeightFormat::kNvfp4;
    layer.hidden = 256;
    layer.intermediate = 96;
    for (uint64_t e = 0; e < 3; ++e) {
      const Bytes packed = packed_expert(WeightFormat::kNvfp4, 256, 96, e + 1);
      layer.checksums.push_back(checksum_text(packed));
      builder.add("layers.2.ffn.experts." + std::to_string(e) + ".packed", DType::U8, {static_cast<int64_t>(packed.size())}, packed);
    }
    const Bytes shared = packed_expert(WeightFormat::kFp8, 256, 64, 9);
    layer.shared_format = WeightFormat::kFp8;
    layer.shared_intermediate = 64;
    layer.shared_checksum = checksum_text(shared);
    builder.add("layers.2.ffn.shared_experts.packed", DType::U8, {static_cast<int64_t>(shared.size())}, shared);
  }
  void write() {
    builder.write(dir);
    dir.write(kPackedManifestName, packed_manifest_text(manifest));
  }
  Result<LayerWeights> load() {
    write();
    auto checkpoint = Checkpoint::open(dir.path());
    if (!checkpoint) return checkpoint.error();
    return checkpoint.value().load_layer(2, {.threads = 2});
  }
};

TEST(PackedCheckpoint, LoadsWithSizesFormatsAndBytes) {
  PackedDir packed;
  auto loaded = packed.load();
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  const LayerWeights& layer = loaded.value();
  EXPECT_EQ(layer.format, WeightFormat::kNvfp4);
  EXPECT_EQ(layer.hidden, 256);
  EXPECT_EQ(layer.intermediate, 96);
  ASSERT_EQ(layer.packed.size(), 3u);
  ASSERT_EQ(layer.experts.size(), 3u);
  EXPECT_EQ(layer.experts[2].down.cols, 96);
  const Bytes& third = packed.builder.tensors["layers.2.ffn.experts.2.packed"].data;
  EXPECT_EQ(std::memcmp(layer.packed[2], third.data(), third.size()), 0);
  ASSERT_NE(layer.packed_shared, nullptr);
  EXPECT_EQ(layer.shared->gate.rows, 64);
  EXPECT_EQ(layer.shared_format, WeightFormat::kFp8);
}

TEST(PackedCheckpoint, ADamagedByteIsFoundWhenLoading) {
  PackedDir packed;
  packed.builder.tensors["layers.2.ffn.experts.1.packed"].data[5000] ^= 1;
  packed.builder.tensors["layers.2.ffn.shared_experts.packed"].data[5000] ^= 1;
  expect_error(packed.load(), {"2 problems", "experts.1.packed", "shared_experts.packed", "checksum", "damaged"});
}

// A router beside packed experts, as pack writes it.
void add_router(PackedDir& packed) {
  const Bytes weight(3 * 256 * 2, 0x3c), bias(3 * 4);
  packed.builder.add("layers.2.ffn.gate.weight", DType::BF16, {3, 256}, weight);
  packed.builder.add("layers.2.ffn.gate.bias", DType::F32, {3}, bias);
  packed.manifest.layers["2"].tensor_checksums = {{"layers.2.ffn.gate.weight", checksum_text(weight)}, {"layers.2.ffn.gate.bias", checksum_text(bias)}};
}

TEST(PackedCheckpoint, TheRouterIsUnderAChecksumToo) {
  {
    PackedDir packed;
    add_router(packed);
    EXPECT_TRUE(packed.load().ok());
  }
  {
    PackedDir packed;
    add_router(packed);
    packed.builder.tensors["layers.2.ffn.gate.weight"].data[700] ^= 1;
    expect_error(packed.load(), {"1 problem", "gate.weight", "checksum", "damaged"});
  }
  {
    PackedDir packed;
    add_router(packed);
    packed.builder.tensors.erase("layers.2.ffn.gate.bias");
    expect_error(packed.load(), {"1 problem", "missing: \"layers.2.ffn.gate.bias\""});
  }
  {
    PackedDir packed;
    add_router(packed);
    packed.manifest.layers["2"].tensor_checksums.erase("layers.2.ffn.gate.bias");
    expect_error(packed.load(), {"1 problem", "gate.bias", "states no checksum of it", "pack the checkpoint again"});
  }
}

TEST(PackedCheckpoint, WhatIsMissingOrOfAnotherSizeIsNamed) {
  {
    PackedDir packed;
    packed.builder.tensors.erase("layers.2.ffn.experts.1.packed");
    expect_error(packed.load(), {"missing: \"layers.2.ffn.experts.1.packed\""});
  }
  {
    PackedDir packed;
    packed.builder.tensors.erase("layers.2.ffn.shared_experts.packed");
    expect_error(packed.load(), {"missing: \"layers.2.ffn.shared_experts.packed\""});
  }
  {
    PackedDir packed;
    packed.manifest.layers["2"].intermediate = 192;
    expect_error(packed.load(), {"experts.0.packed", "found U8", "wanted U8", "intermediate 192"});
  }
  {
    PackedDir packed;
    packed.manifest.layers["2"].format = WeightFormat::kMxfp4;  // of the same size
    expect_error(packed.load(), {"experts.0.packed", "header states weight format 1, the manifest MXFP4"});
  }
  {
    PackedDir packed;
    packed.manifest.layers["2"].checksums.pop_back();
    expect_error(packed.load(), {"experts.2.packed", "the manifest counts 2 experts"});
  }
  {
    PackedDir packed;
    packed.manifest.layers.clear();
    expect_error(packed.load(), {"monomoe_packed.json says nothing of this layer"});
  }
  {
    PackedDir packed;
    packed.builder.add_experts("layers.2.ffn.", Packing::kFp8, 1, 256, 96);
    expect_error(packed.load(), {"beside the packed experts"});
  }
}

TEST(PackedManifest, RefusesOtherVersionsAndWrongFields) {
  PackedDir packed;
  const std::string text = packed_manifest_text(packed.manifest);
  ASSERT_TRUE(parse_packed_manifest(text, "m").ok());
  EXPECT_EQ(packed_manifest_text(parse_packed_manifest(text, "m").value()), text);
  const auto changed = [&](const std::string& old, const std::string& now) {
    std::string out = text;
    const size_t at = out.find(old);
    EXPECT_NE(at, std::string::npos) << old;
    return parse_packed_manifest(out.replace(at, old.size(), now), "m");
  };
  expect_error(changed("\"monomoe_packed\": 3", "\"monomoe_packed\": 2"), {"version 2", "reads version 3", "pack the checkpoint again"});
  expect_error(changed("\"layout\": 1", "\"layout\": 7"), {"layout 7", "layout 1"});
  expect_error(changed("\"hidden\": 256", "\"hidden\": 0"), {"layer 2", "\"hidden\" is 0"});
  expect_error(changed("\"hidden\": 256", "\"hidden\": -256"), {"layer 2", "\"hidden\""});
  expect_error(changed("\"nvfp4\"", "\"nvfp5\""), {"layer 2", "nvfp5"});
  expect_error(changed("\"2\": {", "\"x\": {"), {"\"x\" is no layer"});
  expect_error(changed("\"xxh3-128\"", "\"crc32\""), {"\"checksum\" is \"crc32\"", "wanted \"xxh3-128\""});
  expect_error(changed("\"checksum\": \"xxh3-128\"", "\"sum\": \"xxh3-128\""), {"\"checksum\" is missing"});
  expect_error(parse_packed_manifest("{}", "m"), {"monomoe_packed"});
  expect_error(parse_packed_manifest("[1", "m"), {"m"});
}

// Each change is legal by itself, and of the sizes those that stay inside a padding step fit the tensors.
TEST(PackedManifest, AChangedFieldOfALayerIsFound) {
  PackedDir packed;
  const std::string text = packed_manifest_text(packed.manifest);
  const auto damaged = [&](const std::string& old, const std::string& now) {
    std::string out = text;
    const size_t at = out.find(old);
    ASSERT_NE(at, std::string::npos) << old;
    expect_error(parse_packed_manifest(out.replace(at, old.size(), now), "m"), {"layer ", "its fields have the checksum", "damaged"});
  };
  damaged("\"intermediate\": 96", "\"intermediate\": 128");
  damaged("\"intermediate\": 64", "\"intermediate\": 96");  // of the shared expert
  damaged("\"hidden\": 256", "\"hidden\": 384");
  damaged("\"nvfp4\"", "\"mxfp4\"");
  damaged("\"fp8\"", "\"mxfp4\"");
  damaged("layers.2.ffn.", "layers.3.ffn.");
  damaged("\"2\": {", "\"3\": {");
  damaged("\"shared_expert\"", "\"left_over\"");
  damaged(packed.manifest.layers["2"].checksums[1], packed.manifest.layers["2"].checksums[0]);
  damaged(packed.manifest.layers["2"].shared_checksum, packed.manifest.layers["2"].checksums[0]);
  damaged("\"prefix\"", "\"more\": 1, \"prefix\"");
  damaged("\"tensors\": {}", "\"tensors\": {\"layers.2.ffn.gate.weight\": \"0\"}");
}

TEST(PackedCheckpoint, AWrongSizeInsideThePaddingIsRefused) {
  PackedDir packed;
  packed.write();
  std::string text = packed_manifest_text(packed.manifest);
  text.replace(text.find("\"intermediate\": 96"), 18, "\"intermediate\": 64");
  packed.dir.write(kPackedManifestName, text);
  expect_error(Checkpoint::open(packed.dir.path()), {"monomoe_packed.json", "layer 2", "checksum", "pack the checkpoint again"});
}

}  // namespace packed_checkpoint_test
}  // namespace monomoe
