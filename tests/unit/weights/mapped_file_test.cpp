// Files map whole; what cannot be mapped says which file and why.
#include "weights/mapped_file.hpp"

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
