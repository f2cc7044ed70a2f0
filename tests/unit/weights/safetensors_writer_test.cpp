// The writer's files read back, and appear whole or not at all.
#include "weights/safetensors_writer.hpp"

#include "unit/weights/checkpoint_builder.hpp"
#include "weights/safetensors.hpp"

namespace monomoe {
namespace {

using test_support::Bytes;
using test_support::expect_error;
using test_support::TempDir;

// Temporaries of writers in the directory.
int partials(const TempDir& dir) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir.file("")))
    count += entry.path().filename().string().find(".partial-") != std::string::npos ? 1 : 0;
  return count;
}

TEST(SafetensorsWriter, RoundTripsTensorsPiecesAndMetadata) {
  TempDir dir;
  const std::string path = dir.file("out.safetensors");
  Result<SafetensorsWriter> writer =
      SafetensorsWriter::create(path, {{"x\n\"y", DType::U8, {3}}, {"f4", DType::F4, {2, 4}}, {"s", DType::F32, {}}}, {{"by", "test"}});
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  EXPECT_EQ(partials(dir), 1);
  EXPECT_FALSE(dir.has("out.safetensors"));
  const Bytes data{1, 2, 3, 4, 5, 6, 7, 0, 0, 0x80, 0x3F};
  ASSERT_TRUE(writer.value().append(std::span(data).first(4)).ok());
  ASSERT_TRUE(writer.value().append(std::span(data).subspan(4)).ok());
  ASSERT_TRUE(writer.value().finish().ok());
  EXPECT_EQ(partials(dir), 0);

  Result<SafetensorsFile> file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file.value().metadata().at("by"), "test");
  EXPECT_EQ(file.value().find("x\n\"y")->data[2], 3);
  EXPECT_EQ(file.value().find("f4")->bytes, 4u);
  EXPECT_EQ(file.value().find("f4")->file_offset % 8, 3u);  // the data begins at a multiple of 8
  float one = 0;
  std::memcpy(&one, file.value().find("s")->data, 4);
  EXPECT_EQ(one, 1.0f);
}

TEST(SafetensorsWriter, AnUnfinishedFileLeavesTheOlderOne) {
  TempDir dir;
  dir.write("out", "older");
  {
    Result<SafetensorsWriter> writer = SafetensorsWriter::create(dir.file("out"), {{"x", DType::U8, {3}}});
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer.value().append(Bytes{1, 2}).ok());
  }
  EXPECT_EQ(dir.read("out"), "older");
  EXPECT_EQ(partials(dir), 0);
}

TEST(SafetensorsWriter, TooFewOrTooManyBytesAreRefused) {
  TempDir dir;
  dir.write("out", "older");
  Result<SafetensorsWriter> few = SafetensorsWriter::create(dir.file("out"), {{"x", DType::U8, {3}}});
  ASSERT_TRUE(few.value().append(Bytes{1, 2}).ok());
  expect_error(few.value().finish(), {"2 bytes appended", "have 3"});
  EXPECT_EQ(partials(dir), 0);
  Result<SafetensorsWriter> many = SafetensorsWriter::create(dir.file("out"), {{"x", DType::U8, {3}}});
  expect_error(many.value().append(Bytes{1, 2, 3, 4}), {"4 bytes appended", "have 3"});
  EXPECT_EQ(partials(dir), 0);
  EXPECT_FALSE(many.value().finish().ok());
  EXPECT_EQ(dir.read("out"), "older");
}

TEST(SafetensorsWriter, WrongDeclarationsAreRefusedBeforeAFileExists) {
  TempDir dir;
  expect_error(SafetensorsWriter::create(dir.file("out"), {{"x", DType::F4, {3}}}), {"\"x\"", "F4", "[3]"});
  expect_error(SafetensorsWriter::create(dir.file("out"), {{"x", DType::U8, {-1}}}), {"\"x\"", "[-1]"});
  expect_error(SafetensorsWriter::create(dir.file("out"), {{"x", DType::U8, {1}}, {"x", DType::U8, {1}}}), {"\"x\"", "twice"});
  expect_error(SafetensorsWriter::create(dir.file("out"), {{"__metadata__", DType::U8, {1}}}), {"reserved"});
  EXPECT_EQ(partials(dir), 0);
  expect_error(SafetensorsWriter::create(dir.file("no/such/out"), {}), {"no/such/out.partial", "No such file"});
  const Bytes two{1, 2};
  const NamedTensor wrong{{"x", DType::U8, {3}}, two};
  expect_error(write_safetensors(dir.file("out"), std::span(&wrong, 1)), {"\"x\"", "2 bytes given", "needs 3"});
}

TEST(SafetensorsWriter, AnErrorAtTheRenameRemovesThePartialFile) {
  TempDir dir;
  std::filesystem::create_directories(dir.file("out/child"));  // a directory that is not empty cannot be replaced
  Result<SafetensorsWriter> writer = SafetensorsWriter::create(dir.file("out"), {});
  ASSERT_TRUE(writer.ok());
  expect_error(writer.value().finish(), {"out.partial", "rename into place"});
  EXPECT_EQ(partials(dir), 0);
}

TEST(SafetensorsWriter, WritersOfOneFileDoNotMeetAndTheLastToFinishWins) {
  TempDir dir;
  const std::string path = dir.file("out");
  dir.write("out.partial", "the user's");
  Result<SafetensorsWriter> first = SafetensorsWriter::create(path, {{"first", DType::U8, {2}}});
  ASSERT_TRUE(first.ok());
  Result<SafetensorsWriter> second = SafetensorsWriter::create(path, {{"second", DType::U8, {3}}});
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(partials(dir), 2);
  ASSERT_TRUE(second.value().append(Bytes{7, 8, 9}).ok());
  ASSERT_TRUE(first.value().append(Bytes{1, 2}).ok());
  ASSERT_TRUE(second.value().finish().ok());
  EXPECT_EQ(SafetensorsFile::open(path).value().find("second")->data[2], 9);
  ASSERT_TRUE(first.value().finish().ok());
  Result<SafetensorsFile> file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file.value().tensors().size(), 1u);
  EXPECT_EQ(file.value().find("first")->data[1], 2);
  EXPECT_EQ(partials(dir), 0);
  EXPECT_EQ(dir.read("out.partial"), "the user's");
}

TEST(SafetensorsWriter, ALinkStaysAndWhatItLeadsToIsWritten) {
  namespace fs = std::filesystem;
  TempDir dir;
  fs::create_directory(dir.file("data"));
  fs::create_symlink("data/real.safetensors", dir.file("first"));
  fs::create_symlink("first", dir.file("second"));
  expect_error(SafetensorsWriter::create(dir.file("second"), {{"x", DType::U8, {1}}}), {"second is a link to nothing"});
  dir.write("data/real.safetensors", "old");
  const Bytes one{7};
  const NamedTensor tensor{{"x", DType::U8, {1}}, one};
  ASSERT_TRUE(write_safetensors(dir.file("second"), std::span(&tensor, 1)).ok());
  EXPECT_TRUE(fs::is_symlink(dir.file("second")) && fs::is_symlink(dir.file("first")));
  const Result<SafetensorsFile> file = SafetensorsFile::open(dir.file("data/real.safetensors"));
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file.value().find("x")->data[0], 7);
  fs::create_symlink("loop", dir.file("loop"));
  expect_error(SafetensorsWriter::create(dir.file("loop"), {{"x", DType::U8, {1}}}), {"loop is a link that leads nowhere"});
  fs::create_symlink("/proc/self/fd/1", dir.file("system"));
  expect_error(SafetensorsWriter::create(dir.file("system"), {{"x", DType::U8, {1}}}), {"/proc/self/fd/1, a link of the system"});
}

TEST(SafetensorsWriter, NamesThatAreNotUtf8OrEmptyAreRefused) {
  TempDir dir;
  for (const char* name : {"a\xff", "\xc0\xaf", "\xed\xa0\x80", "cut\xe2\x82"}) {
    const auto writer = SafetensorsWriter::create(dir.file("out"), {{name, DType::U8, {1}}});
    expect_error(writer, {"UTF-8", "\\x"});
    EXPECT_EQ(writer.error().status, Status::kUsage);
  }
  expect_error(SafetensorsWriter::create(dir.file("out"), {{"", DType::U8, {1}}}), {"empty name"});
  EXPECT_EQ(partials(dir), 0);
  EXPECT_TRUE(SafetensorsWriter::create(dir.file("out"), {{"\xc3\xa9\xe2\x82\xac", DType::U8, {1}}}).ok());
}

}  // namespace
}  // namespace monomoe
