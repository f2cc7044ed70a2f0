// Files map whole; what cannot be mapped says which file and why.
#include "weights/mapped_file.hpp"

#include <chrono>
#include <filesystem>

#include "unit/weights/checkpoint_builder.hpp"

namespace monomoe {
namespace {

using test_support::expect_error;
using test_support::TempDir;

TEST(MappedFile, GivesTheBytes) {
  TempDir dir;
  dir.write("a", "hello");
  Result<MappedFile> file = MappedFile::open(dir.file("a"));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(std::string(file.value().bytes().begin(), file.value().bytes().end()), "hello");
  EXPECT_EQ(file.value().path(), dir.file("a"));
}

TEST(MappedFile, MovesKeepTheMap) {
  TempDir dir;
  dir.write("a", "hello");
  dir.write("b", "world!");
  MappedFile a = MappedFile::open(dir.file("a")).take();
  a = MappedFile::open(dir.file("b")).take();
  EXPECT_EQ(a.bytes().size(), 6u);
  EXPECT_EQ(a.bytes()[0], 'w');
}

TEST(MappedFile, TellsWhatWasWrittenToAndNotWhatWasReplaced) {
  TempDir dir;
  dir.write("a", "hello");
  dir.write("b", "hello");
  const MappedFile a = MappedFile::open(dir.file("a")).take(), b = MappedFile::open(dir.file("b")).take();
  EXPECT_EQ(a.changed(), "");
  dir.write("a", "longer than before");
  EXPECT_EQ(a.changed(), "had 5 bytes when it was opened and has 18 now");
  dir.write("c", "other bytes");
  std::filesystem::rename(dir.file("c"), dir.file("b"));
  EXPECT_EQ(b.changed(), "");
  EXPECT_EQ(b.bytes()[0], 'h');
  const MappedFile again = MappedFile::open(dir.file("b")).take();
  std::filesystem::last_write_time(dir.file("b"), std::filesystem::last_write_time(dir.file("b")) + std::chrono::seconds(1));
  EXPECT_EQ(again.changed(), "was written to while it was read");
}

TEST(MappedFile, AnEmptyFileHasNoBytes) {
  TempDir dir;
  dir.write("a", "");
  Result<MappedFile> file = MappedFile::open(dir.file("a"));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file.value().bytes().size(), 0u);
}

TEST(MappedFile, ErrorsNamePathAndReason) {
  TempDir dir;
  expect_error(MappedFile::open(dir.file("none")), {dir.file("none"), "No such file"});
  expect_error(MappedFile::open(dir.path()), {dir.path(), "not a regular file"});
  expect_error(MappedFile::open("/dev/null"), {"/dev/null", "not a regular file"});
}

}  // namespace
}  // namespace monomoe
