// Which file a tensor comes from: by the index where there is one, by name where there is none.
#include "weights/tensor_set.hpp"

#include "unit/weights/checkpoint_builder.hpp"

namespace monomoe {
namespace {

using test_support::Bytes;
using test_support::expect_error;
using test_support::TempDir;

void shard(const TempDir& dir, const std::string& name, const std::map<std::string, uint8_t>& tensors) {
  test_support::CheckpointBuilder builder;
  for (const auto& [tensor, value] : tensors) builder.add(tensor, DType::U8, {1}, {value});
  builder.write(dir, name);
}

void index(const TempDir& dir, const std::string& weight_map) {
  dir.write(kIndexFileName, "{\"metadata\":{\"total_size\":1},\"weight_map\":" + weight_map + "}");
}

TEST(TensorSet, WithoutAnIndexAllShardsAreRead) {
  TempDir dir;
  shard(dir, "b.safetensors", {{"y", 2}});
  shard(dir, "a.safetensors", {{"x", 1}, {"z", 3}});
  dir.write(".hidden.safetensors", "not even a safetensors file");
  dir.write("notes.txt", "text");
  Result<TensorSet> set = TensorSet::open(dir.path());
  ASSERT_TRUE(set.ok()) << set.error().message;
  EXPECT_FALSE(set.value().has_index());
  ASSERT_EQ(set.value().tensors().size(), 3u);
  EXPECT_EQ(set.value().tensors()[1].entry->name, "y");
  EXPECT_EQ(set.value().find("y").entry->data[0], 2);
  EXPECT_EQ(set.value().find("y").file->path(), dir.file("b.safetensors"));
  EXPECT_EQ(set.value().find("w").entry, nullptr);
  EXPECT_TRUE(set.value().unused().empty());
}

TEST(TensorSet, WithoutAnIndexANameInTwoShardsIsAnError) {
  TempDir dir;
  shard(dir, "a.safetensors", {{"x", 1}, {"y", 1}});
  shard(dir, "b.safetensors", {{"x", 2}, {"y", 2}});
  expect_error(TensorSet::open(dir.path()), {"\"x\" is in both a.safetensors and b.safetensors", "\"y\" is in both"});
}

TEST(TensorSet, TheIndexDecidesAndTheRestIsUnused) {
  TempDir dir;
  shard(dir, "a.safetensors", {{"x", 1}, {"y", 9}, {"extra", 4}});
  shard(dir, "b.safetensors", {{"y", 2}});
  shard(dir, "old.safetensors", {{"x", 7}});
  index(dir, R"({"x":"a.safetensors","y":"b.safetensors"})");
  Result<TensorSet> set = TensorSet::open(dir.path());
  ASSERT_TRUE(set.ok()) << set.error().message;
  EXPECT_TRUE(set.value().has_index());
  EXPECT_EQ(set.value().find("x").entry->data[0], 1);
  EXPECT_EQ(set.value().find("y").entry->data[0], 2);
  EXPECT_EQ(set.value().find("extra").entry, nullptr);
  std::map<std::string, std::string> unused;
  for (const UnusedTensor& tensor : set.value().unused()) unused[tensor.file + "/" + tensor.tensor] = tensor.reason;
  EXPECT_EQ(unused.size(), 3u);
  EXPECT_EQ(unused["a.safetensors/y"], "the index takes it from b.safetensors");
  EXPECT_EQ(unused["a.safetensors/extra"], "the index does not name it");
  EXPECT_EQ(unused["old.safetensors/"], "the index does not name this file");
}

TEST(TensorSet, EverythingTheIndexMissesIsListed) {
  TempDir dir;
  shard(dir, "a.safetensors", {{"x", 1}});
  index(dir, R"({"x":"a.safetensors","y":"a.safetensors","p":"gone1.safetensors","q":"gone2.safetensors","r":"gone2.safetensors"})");
  expect_error(TensorSet::open(dir.path()),
               {"/gone1.safetensors: the file is missing; the index places 1 tensor", "/gone2.safetensors: the file is missing; the index places 2",
                "/a.safetensors: tensor \"y\" is not in this file", "/gone1.safetensors: tensor \"p\" is missing with its file", "\"q\"", "\"r\""});
}

TEST(TensorSet, LongListsAreCutAndCounted) {
  TempDir dir;
  std::string map = "{\"x\":\"gone.safetensors\"";
  for (int i = 0; i < 50; ++i) map += ",\"x" + std::to_string(i) + "\":\"gone.safetensors\"";
  index(dir, map + "}");
  expect_error(TensorSet::open(dir.path()), {"places 51 tensor(s)", "and 32 more"});  // 1 file + 51 tensors, 20 of them told
}

TEST(TensorSet, ADamagedShardIsListedBesideMissingOnes) {
  TempDir dir;
  dir.write("bad.safetensors", "short");
  index(dir, R"({"x":"bad.safetensors","y":"gone.safetensors"})");
  expect_error(TensorSet::open(dir.path()), {"bad.safetensors", "has 5 bytes", "gone.safetensors: the file is missing"});
}

TEST(TensorSet, KeepsGoingWithWhatIsSoundWhenAsked) {
  TempDir dir;
  shard(dir, "a.safetensors", {{"x", 1}});
  dir.write("bad.safetensors", "short");
  index(dir, R"({"x":"a.safetensors","y":"bad.safetensors","z":"gone.safetensors","w":"a.safetensors"})");
  const Result<TensorSet> set = TensorSet::open(dir.path(), {.max_problems = 100, .keep_going = true});
  ASSERT_TRUE(set.ok()) << set.error().message;
  EXPECT_EQ(set.value().problems().count(), 5) << set.value().problems().text();  // two files, three tensors
  EXPECT_EQ(set.value().absent(), (std::vector<std::string>{"w", "y", "z"}));
  EXPECT_EQ(set.value().find("x").entry->data[0], 1);
  EXPECT_EQ(set.value().find("y").entry, nullptr);
  // Without an index that can be read the shards are still looked at.
  dir.write(kIndexFileName, "{");
  const Result<TensorSet> all = TensorSet::open(dir.path(), {.keep_going = true});
  ASSERT_TRUE(all.ok()) << all.error().message;
  EXPECT_EQ(all.value().problems().count(), 2) << all.value().problems().text();
  EXPECT_FALSE(all.value().has_index());
  EXPECT_NE(all.value().find("x").entry, nullptr);
}

TEST(TensorSet, AHostileIndexIsRefused) {
  TempDir dir;
  shard(dir, "a.safetensors", {{"x", 1}});
  for (const char* name : {"../a.safetensors", "/etc/passwd", "..", ".", "", ".hidden", "sub/a.safetensors", "a\\u0000b", "a\\\\b"}) {
    index(dir, std::string("{\"x\":\"") + name + "\"}");
    expect_error(TensorSet::open(dir.path()), {kIndexFileName, "\"x\"", "file in the same directory"});
  }
  index(dir, R"({"x":"a.safetensors","x":"a.safetensors"})");
  expect_error(TensorSet::open(dir.path()), {kIndexFileName, "\"x\" appears twice"});
  index(dir, R"({"x":3})");
  expect_error(TensorSet::open(dir.path()), {"\"x\"", "found number"});
  index(dir, "{}");
  expect_error(TensorSet::open(dir.path()), {kIndexFileName, "names no tensor"});
  index(dir, "[]");
  expect_error(TensorSet::open(dir.path()), {kIndexFileName, "weight_map"});
  dir.write(kIndexFileName, "");
  expect_error(TensorSet::open(dir.path()), {kIndexFileName, "not valid JSON"});
  dir.write(kIndexFileName, std::string(100, '[') + std::string(100, ']'));
  expect_error(TensorSet::open(dir.path()), {kIndexFileName, "nested deeper than 64"});
}

TEST(TensorSet, ADirectoryWithoutShardsIsAnError) {
  TempDir dir;
  expect_error(TensorSet::open(dir.path()), {dir.path(), "no *.safetensors"});
  expect_error(TensorSet::open(dir.file("none")), {dir.file("none"), "not a directory"});
}

}  // namespace
}  // namespace monomoe
