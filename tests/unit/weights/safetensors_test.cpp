// What a sound file gives, and every kind of unsound file refused with its file and tensor named.
#include "weights/safetensors.hpp"

#include <fmt/format.h>

#include "unit/weights/checkpoint_builder.hpp"

namespace monomoe {
namespace {

using test_support::Bytes;
using test_support::expect_error;
using test_support::raw_file;
using test_support::TempDir;

// A file of one header and `data_bytes` zero bytes.
Result<SafetensorsContent> parse(const std::string& header, size_t data_bytes) {
  static std::vector<Bytes> kept;  // results point into the bytes
  kept.push_back(raw_file(header, Bytes(data_bytes, 0)));
  return parse_safetensors(kept.back(), "shard.safetensors");
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return fmt::format("\"{}\":{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":{}}}", name, dtype, shape, offsets);
}

std::string object(std::initializer_list<std::string> members) {
  std::string out = "{";
  for (const std::string& member : members) out.append(out.size() > 1 ? "," : "").append(member);
  return out.append("}");
}

TEST(Safetensors, ReadsTensorsInFileOrder) {
  Bytes data{1, 2, 3, 4, 5, 6};
  const Bytes file = raw_file(
      object({"\"__metadata__\":{\"format\":\"pt\"}", tensor("b", "U8", "[2]", "[4,6]"), tensor("a", "I16", "[2,1]", "[0,4]")}) + "  ",
      data);
  Result<SafetensorsContent> content = parse_safetensors(file, "x");
  ASSERT_TRUE(content.ok()) << content.error().message;
  const auto& tensors = content.value().tensors;
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[0].dtype, DType::I16);
  EXPECT_EQ(tensors[0].shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(tensors[0].bytes, 4u);
  EXPECT_EQ(tensors[1].name, "b");
  EXPECT_EQ(tensors[1].data[1], 6);
  EXPECT_EQ(tensors[1].file_offset, file.size() - 2);
  EXPECT_EQ(content.value().metadata.at("format"), "pt");
}

TEST(Safetensors, EmptyTensorsScalarsAndNoTensorsAreLegal) {
  EXPECT_TRUE(parse("{}", 0).ok());
  Result<SafetensorsContent> content = parse(object({tensor("s", "F32", "[]", "[0,4]"), tensor("e", "F32", "[3,0]", "[4,4]")}), 4);
  ASSERT_TRUE(content.ok()) << content.error().message;
  EXPECT_EQ(content.value().tensors[1].bytes, 0u);
}

TEST(Safetensors, KnowsSmallFloats) {
  Result<SafetensorsContent> content = parse(
      object({tensor("scale", "F8_E8M0", "[2]", "[0,2]"), tensor("f4", "F4", "[3,4]", "[2,8]"), tensor("f6", "F6_E2M3", "[4]", "[8,11]")}),
      11);
  ASSERT_TRUE(content.ok()) << content.error().message;
  EXPECT_EQ(content.value().tensors[1].dtype, DType::F4);
  EXPECT_EQ(content.value().tensors[1].bytes, 6u);
}

TEST(Safetensors, OddF4WidthIsRefused) {
  expect_error(parse(object({tensor("w", "F4", "[2,3]", "[0,3]")}), 3),
               {"shard.safetensors", "\"w\"", "F4", "[2, 3]", "innermost width 3"});
}

TEST(Safetensors, UnknownDtypeIsRefusedAfterTheOffsets) {
  expect_error(parse(object({tensor("w", "F9", "[2]", "[0,2]")}), 2), {"shard.safetensors", "\"w\"", "unknown dtype", "F9"});
  expect_error(parse(object({tensor("w", "F9", "[2]", "[0,20]")}), 2), {"\"w\"", "cut short"});
}

TEST(Safetensors, ACutFileNamesSizesAndTheFirstTensor) {
  const std::string header = object({tensor("later", "U8", "[4]", "[4,8]"), tensor("first", "U8", "[4]", "[0,4]")});
  expect_error(parse(header, 7), {"has " + std::to_string(8 + header.size() + 7) + " bytes",
                                  "describes " + std::to_string(8 + header.size() + 8), "1 tensor(s)", "\"later\""});
  expect_error(parse(header, 3), {"2 tensor(s)", "the first is \"first\""});
  expect_error(parse_safetensors({}, "x"), {"x", "0 bytes"});
  const Bytes whole = raw_file(header, Bytes(8, 0));
  expect_error(parse_safetensors(std::span(whole).first(20), "x"),
               {"has 20 bytes", "header alone needs " + std::to_string(8 + header.size())});
}

TEST(Safetensors, AHeaderAboveTheLimitIsRefused) {
  Bytes file(16, 0);
  const uint64_t length = kMaxSafetensorsHeader + 1;
  std::memcpy(file.data(), &length, 8);
  expect_error(parse_safetensors(file, "x"), {"x", "100000001", "limit is 100000000"});
}

TEST(Safetensors, OffsetsAreCheckedAgainstShapeFileAndEachOther) {
  const auto one = [](const std::string& shape, const std::string& offsets) {
    return fmt::format("{{{}}}", tensor("w", "F32", shape, offsets));
  };
  expect_error(parse(one("[1]", "[4,0]"), 4), {"\"w\"", "[4, 0]", "begin <= end"});
  expect_error(parse(one("[2]", "[0,4]"), 4), {"\"w\"", "found 4 bytes", "wanted 8", "F32 [2]"});
  expect_error(parse(one("[4294967296,4294967296]", "[0,4]"), 4), {"\"w\"", "does not fit 64 bits"});
  expect_error(parse(one("[4611686018427387904]", "[0,0]"), 0), {"\"w\"", "does not fit 64 bits"});
  expect_error(parse(one("[1]", "[0,18446744073709551615]"), 4), {"\"w\"", "2^64 or more"});
  expect_error(parse(object({tensor("a", "U8", "[4]", "[0,4]"), tensor("b", "U8", "[4]", "[2,6]")}), 6), {"\"b\"", "overlaps", "\"a\""});
  expect_error(parse(object({tensor("a", "U8", "[4]", "[0,4]"), tensor("b", "U8", "[4]", "[6,10]")}), 10),
               {"gap of 2 bytes", "\"a\"", "\"b\""});
  expect_error(parse(object({tensor("a", "U8", "[4]", "[1,5]")}), 5), {"gap of 1 bytes", "start of the data", "\"a\""});
  expect_error(parse(object({tensor("a", "U8", "[4]", "[0,4]")}), 7), {"3 trailing bytes", "\"a\""});
  expect_error(parse("{}", 1), {"1 trailing bytes"});
}

TEST(Safetensors, MalformedTensorsAreRefused) {
  expect_error(parse(object({tensor("w", "U8", "[1]", "[0,1,2]")}), 1), {"\"w\"", "third number"});
  expect_error(parse(object({tensor("w", "U8", "[1]", "[0]")}), 1), {"\"w\"", "one number", "two whole numbers"});
  expect_error(parse(object({tensor("w", "U8", "[1]", "[]")}), 1), {"\"w\"", "no number"});
  expect_error(parse(object({tensor("w", "U8", "[-1]", "[0,1]")}), 1), {"\"w\"", "negative number -1"});
  expect_error(parse(object({tensor("w", "U8", "[1.0]", "[0,1]")}), 1), {"\"w\"", "1.0"});
  expect_error(parse(object({tensor("w", "U8", "[1e0]", "[0,1]")}), 1), {"\"w\"", "1e0"});
  expect_error(parse(object({tensor("w", "U8", "[1]", "[0,18446744073709551616]")}), 1), {"\"w\"", "too large"});
  expect_error(parse(object({tensor("w", "U8", "[9223372036854775808]", "[0,1]")}), 1), {"\"w\"", "9223372036854775808"});
  expect_error(parse(object({tensor("w", "U8", "[[1]]", "[0,1]")}), 1), {"\"w\"", "an array"});
  expect_error(parse(object({tensor("w", "U8", "{}", "[0,1]")}), 1), {"\"w\"", "an object"});
  expect_error(parse(object({tensor("w", "U8", "null", "[0,1]")}), 1), {"\"w\"", "null"});
  expect_error(parse("{\"w\":{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,1]}}", 1), {"\"w\"", "dtype to be a string"});
  expect_error(parse("{\"w\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1), {"\"w\"", "no shape"});
  expect_error(parse("{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":1}}", 1), {"\"w\"", "\"x\"", "only dtype"});
  expect_error(parse("{\"w\":[]}", 0), {"\"w\"", "an array"});
  expect_error(parse("{\"w\":3}", 0), {"\"w\"", "the number 3"});
}

TEST(Safetensors, DuplicateKeysAreRefusedAtEveryLevel) {
  expect_error(parse(object({tensor("w", "U8", "[1]", "[0,1]"), tensor("w", "U8", "[1]", "[1,2]")}), 2), {"\"w\"", "appears twice"});
  expect_error(parse(object({tensor("w", "U8", "[1]", "[0,1]"), tensor("\\u0077", "U8", "[1]", "[1,2]")}), 2), {"\"w\"", "appears twice"});
  expect_error(parse("{\"w\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1),
               {"\"w\"", "\"dtype\" appears twice"});
  expect_error(parse("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0), {"__metadata__", "\"a\" appears twice"});
  expect_error(parse("{\"__metadata__\":{},\"__metadata__\":{}}", 0), {"__metadata__ appears twice"});
}

TEST(Safetensors, MetadataMustBeStrings) {
  expect_error(parse("{\"__metadata__\":{\"a\":1}}", 0), {"__metadata__", "only strings"});
  expect_error(parse("{\"__metadata__\":\"a\"}", 0), {"__metadata__", "object of strings"});
  expect_error(parse("{\"__metadata__\":{\"a\":{}}}", 0), {"__metadata__", "an object"});
}

TEST(Safetensors, TextThatIsNoHeaderIsRefused) {
  expect_error(parse("", 0), {"does not begin with '{'"});
  expect_error(parse(" {}", 0), {"does not begin with '{'"});
  expect_error(parse("{}x", 0), {"not valid JSON"});
  expect_error(parse("{", 0), {"not valid JSON"});
  expect_error(parse(std::string("{}\0", 3), 0), {"NUL"});
  expect_error(parse("{\"\xff\":1}", 0), {"not valid JSON"});
  expect_error(parse(std::string("{\"a\":") + std::string(100000, '['), 0), {"\"a\"", "an array"});
}

TEST(Safetensors, NamesArePrintedSafely) {
  const std::string name = "a\\u001b[31m\\n\\u00e9";
  Result<SafetensorsContent> content = parse(object({tensor(name, "U8", "[2]", "[0,1]")}), 1);
  expect_error(content, {"a\\x1b[31m\\x0a\\xc3\\xa9"});
  EXPECT_EQ(content.error().message.find('\x1b'), std::string::npos);
  expect_error(parse(object({tensor(std::string(5000, 'n'), "U8", "[2]", "[0,1]")}), 1), {"...(4760 bytes)..."});
}

TEST(Safetensors, HundredThousandTensorsAreReadAndFound) {
  constexpr int kTensors = 100'000;
  std::string header = "{";
  for (int i = 0; i < kTensors; ++i) {
    header += fmt::format("{}\"model.layers.{}.mlp.weight\":{{\"dtype\":\"U8\",\"shape\":[1,1],\"data_offsets\":[{},{}]}}",
                          i == 0 ? "" : ",", i, i, i + 1);
  }
  TempDir dir;
  Bytes data(kTensors);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(i);
  dir.write("m.safetensors", raw_file(header + "}", data));
  Result<SafetensorsFile> file = SafetensorsFile::open(dir.file("m.safetensors"));
  ASSERT_TRUE(file.ok()) << file.error().message;
  ASSERT_EQ(file.value().tensors().size(), 100'000u);
  EXPECT_EQ(file.value().find("model.layers.77777.mlp.weight")->data[0], static_cast<uint8_t>(77777));
  EXPECT_EQ(file.value().find("model.layers.100000.mlp.weight"), nullptr);
}

}  // namespace
}  // namespace monomoe
