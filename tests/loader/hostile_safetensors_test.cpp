// Damaged, cut and forged safetensors files: refused with a sentence or read within their bounds, whatever the bytes are.
#include "loader/hostile_file.hpp"

namespace monomoe {
namespace {

using test_support::Bytes;
using test_support::expect_error;
using test_support::holds;
using test_support::mutate;
using test_support::Random;
using test_support::repair_length;
using test_support::sound_file;
using test_support::TempDir;

TEST(HostileFile, TheSoundFileIsSound) {
  const Bytes bytes = sound_file();
  ASSERT_TRUE(parse_safetensors(bytes, "x").ok());
  EXPECT_TRUE(holds(bytes));
}

TEST(HostileFile, ACutAtAnyByteIsRefused) {
  const Bytes bytes = sound_file();
  for (size_t length = 0; length < bytes.size(); ++length) {
    const Bytes cut(bytes.begin(),
                    bytes.begin() + static_cast<std::ptrdiff_t>(length));  // its own buffer, so that a sanitizer sees a read beyond
    expect_error(parse_safetensors(cut, "shard"), {"shard", "has " + std::to_string(length) + " bytes", "cut short"});
  }
}

TEST(HostileFile, CutsInsideTheDataNameTheFirstTensorTheyHurt) {
  const Bytes bytes = sound_file();
  const auto first_cut = [&bytes](size_t missing) { return parse_safetensors(std::span(bytes).first(bytes.size() - missing), "x"); };
  expect_error(first_cut(1), {"the first is \"f4\""});
  expect_error(first_cut(2), {"the first is \"f4\""});
  expect_error(first_cut(3), {"the first is \"layers.0.ffn.experts.0.w1.scale\""});
  expect_error(first_cut(7), {"the first is \"layers.0.ffn.experts.0.w1.weight\""});
}

TEST(HostileFile, AnAddedByteIsRefused) {
  Bytes bytes = sound_file();
  bytes.push_back(0);
  expect_error(parse_safetensors(bytes, "x"), {"1 trailing bytes after tensor \"f4\""});
}

TEST(HostileFile, AnyFlippedBitIsRefusedOrHarmless) {
  const Bytes bytes = sound_file();
  size_t refused = 0;
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    Bytes flipped = bytes;
    flipped[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
    ASSERT_TRUE(holds(flipped)) << "bit " << bit;
    refused += parse_safetensors(flipped, "x").ok() ? 0 : 1;
  }
  EXPECT_GT(refused, 64 * 8u);  // the length, most of the header's grammar and all its numbers
}

TEST(HostileFile, AnyLengthFieldIsRefusedOrHarmless) {
  const Bytes bytes = sound_file();
  for (int shift = 0; shift < 64; ++shift) {
    for (const uint64_t delta : {-1, 0, 1}) {
      Bytes forged = bytes;
      const uint64_t length = (uint64_t{1} << shift) + delta;
      for (size_t i = 0; i < 8; ++i) forged[i] = static_cast<uint8_t>(length >> (8 * i));
      ASSERT_TRUE(holds(forged)) << length;
    }
  }
}

TEST(HostileFile, RandomChangesOfTheFile) {
  const Bytes bytes = sound_file();
  Random random(20260101);
  for (int round = 0; round < 20000; ++round) {
    Bytes changed = bytes;
    for (size_t changes = 1 + random.below(4); changes > 0; --changes) mutate(changed, random);
    if (random.below(4) != 0) repair_length(changed, 14);
    ASSERT_TRUE(holds(changed)) << "round " << round;
  }
}

TEST(HostileFile, RandomBytes) {
  Random random(7);
  for (int round = 0; round < 20000; ++round) {
    Bytes bytes(random.below(64));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.next());
    if (bytes.size() > 8 && random.below(2) == 0) {
      bytes[8] = '{';
      repair_length(bytes, 0);
    }
    ASSERT_TRUE(holds(bytes)) << "round " << round;
  }
}

TEST(HostileFile, DeepNestingDoesNotExhaustTheStack) {
  for (const char* open : {"[", "{\"a\":"}) {
    std::string header = "{\"w\":{\"dtype\":\"U8\",\"data_offsets\":[0,1],\"shape\":";
    for (int i = 0; i < 200000; ++i) header += open;
    EXPECT_TRUE(holds(test_support::raw_file(header, {0})));
  }
}

TEST(HostileFile, FilesOnDiskAreNamed) {
  TempDir dir;
  const Bytes bytes = sound_file();
  for (const size_t length : {size_t{0}, size_t{7}, size_t{40}, bytes.size() / 2, bytes.size() - 1}) {
    dir.write("cut.safetensors", Bytes(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length)));
    expect_error(SafetensorsFile::open(dir.file("cut.safetensors")), {dir.file("cut.safetensors"), std::to_string(length) + " bytes"});
  }
}

}  // namespace
}  // namespace monomoe
