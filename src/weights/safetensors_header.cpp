// A SAX handler: the header is read once, front to back, and refused at the first thing that does not belong there.
#include "weights/safetensors_header.hpp"

#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "weights/text.hpp"

namespace monomoe {
namespace {

constexpr size_t kMaxDimensions = 64;

// Where the parser stands. Nothing else nests, so there is no depth to count.
enum class At : uint8_t {
  kStart,
  kNames,
  kTensor,
  kDtype,
  kShapeStart,
  kShape,
  kOffsetsStart,
  kOffsets,
  kMetadataStart,
  kMetadata,
  kTensorStart,
  kEnd
};

class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  SafetensorsHeader header;
  std::string problem;

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("true or false"); }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool number_float(number_float_t, const string_t& text) override {
    return unexpected(fmt::format("the number {} (fractional, or too large for 64 bits)", printable(text)));
  }
  bool number_integer(number_integer_t value) override { return unexpected(fmt::format("the negative number {}", value)); }
  bool number_unsigned(number_unsigned_t value) override;
  bool string(string_t& value) override;
  bool start_object(std::size_t) override;
  bool key(string_t& value) override;
  bool end_object() override;
  bool start_array(std::size_t) override;
  bool end_array() override;
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return fail(fmt::format("the header is not valid JSON at its byte {}", position));
  }

 private:
  bool fail(std::string sentence) {
    if (problem.empty()) problem = std::move(sentence);
    return false;
  }
  std::string wanted() const;
  std::string where() const;
  bool unexpected(std::string_view found) { return fail(fmt::format("{}found {}, wanted {}", where(), found, wanted())); }
  bool finish_tensor();

  At at_ = At::kStart;
  HeaderTensor tensor_;
  std::string metadata_key_;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false, has_metadata_ = false;
  int offsets_ = 0;
  std::unordered_set<std::string> names_;
};

std::string HeaderReader::where() const {
  if (at_ == At::kStart || at_ == At::kNames || at_ == At::kEnd) return "";
  if (at_ == At::kMetadata || at_ == At::kMetadataStart) return "__metadata__: ";
  return fmt::format("tensor \"{}\": ", printable(tensor_.name));
}

std::string HeaderReader::wanted() const {
  switch (at_) {
    case At::kDtype:
      return "dtype to be a string";
    case At::kShapeStart:
      return "shape to be an array of whole numbers";
    case At::kShape:
      return "whole numbers up to 2^63 - 1 in shape";
    case At::kOffsetsStart:
      return "data_offsets to be an array of two whole numbers";
    case At::kOffsets:
      return "two whole numbers in data_offsets";
    case At::kMetadataStart:
      return "an object of strings";
    case At::kMetadata:
      return "only strings as values";
    case At::kTensorStart:
      return "an object with dtype, shape and data_offsets";
    default:
      return "an object of tensors";
  }
}

bool HeaderReader::number_unsigned(number_unsigned_t value) {
  if (at_ == At::kShape) {
    if (value > static_cast<uint64_t>(INT64_MAX)) return unexpected(fmt::format("the number {}", value));
    if (tensor_.shape.size() == kMaxDimensions) return fail(fmt::format("{}shape has more than {} dimensions", where(), kMaxDimensions));
    tensor_.shape.push_back(static_cast<int64_t>(value));
    return true;
  }
  if (at_ == At::kOffsets) {
    if (offsets_ == 2) return unexpected("a third number");
    (offsets_ == 0 ? tensor_.begin : tensor_.end) = value;
    ++offsets_;
    return true;
  }
  return unexpected(fmt::format("the number {}", value));
}

bool HeaderReader::string(string_t& value) {
  if (at_ == At::kDtype) {
    tensor_.dtype = value;
    at_ = At::kTensor;
    return true;
  }
  if (at_ == At::kMetadata) {
    header.metadata.emplace(metadata_key_, value);
    return true;
  }
  return unexpected(fmt::format("the string \"{}\"", printable(value)));
}

bool HeaderReader::start_object(std::size_t) {
  if (at_ == At::kStart) {
    at_ = At::kNames;
  } else if (at_ == At::kTensorStart) {
    at_ = At::kTensor;
  } else if (at_ == At::kMetadataStart) {
    at_ = At::kMetadata;
  } else {
    return unexpected("an object");
  }
  return true;
}

bool HeaderReader::key(string_t& value) {
  if (at_ == At::kNames) {
    if (value == "__metadata__") {
      if (has_metadata_) return fail("__metadata__ appears twice");
      has_metadata_ = true;
      at_ = At::kMetadataStart;
      return true;
    }
    if (!names_.insert(value).second) return fail(fmt::format("tensor \"{}\" appears twice", printable(value)));
    tensor_ = HeaderTensor{};
    tensor_.name = value;
    has_dtype_ = has_shape_ = has_offsets_ = false;
    at_ = At::kTensorStart;
    return true;
  }
  if (at_ == At::kMetadata) {
    if (header.metadata.contains(value)) return fail(fmt::format("__metadata__: key \"{}\" appears twice", printable(value)));
    metadata_key_ = value;
    return true;
  }
  bool* seen = value == "dtype" ? &has_dtype_ : value == "shape" ? &has_shape_ : value == "data_offsets" ? &has_offsets_ : nullptr;
  if (seen == nullptr) {
    return fail(fmt::format("{}found the key \"{}\", wanted only dtype, shape and data_offsets", where(), printable(value)));
  }
  if (*seen) return fail(fmt::format("{}key \"{}\" appears twice", where(), value));
  *seen = true;
  at_ = seen == &has_dtype_ ? At::kDtype : seen == &has_shape_ ? At::kShapeStart : At::kOffsetsStart;
  return true;
}

bool HeaderReader::end_object() {
  if (at_ == At::kTensor) return finish_tensor();
  at_ = at_ == At::kMetadata ? At::kNames : At::kEnd;
  return true;
}

bool HeaderReader::finish_tensor() {
  if (!has_dtype_ || !has_shape_ || !has_offsets_) {
    return fail(fmt::format("{}has no {}", where(), !has_dtype_ ? "dtype" : !has_shape_ ? "shape" : "data_offsets"));
  }
  header.tensors.push_back(std::move(tensor_));
  at_ = At::kNames;
  return true;
}

bool HeaderReader::start_array(std::size_t) {
  if (at_ == At::kShapeStart) {
    at_ = At::kShape;
  } else if (at_ == At::kOffsetsStart) {
    at_ = At::kOffsets;
    offsets_ = 0;
  } else {
    return unexpected("an array");
  }
  return true;
}

bool HeaderReader::end_array() {
  if (at_ == At::kOffsets && offsets_ != 2) return unexpected(offsets_ == 0 ? "no number" : "one number");
  at_ = At::kTensor;
  return true;
}

}  // namespace

Result<SafetensorsHeader> parse_safetensors_header(std::span<const uint8_t> json, std::string_view file) {
  constexpr const char* kRemedy = "the header is damaged or was not written by a safetensors writer; fetch or export the file again";
  auto refuse = [&](std::string_view problem) { return bad_input(fmt::format("{}: {}; {}", printable(file), problem, kRemedy)); };
  if (json.empty() || json[0] != '{') return refuse("the header does not begin with '{'");
  // The JSON library takes a NUL for the end of its input, which would hide what follows.
  if (std::memchr(json.data(), 0, json.size()) != nullptr) return refuse("the header contains a NUL byte");
  HeaderReader reader;
  const char* text = reinterpret_cast<const char*>(json.data());
  if (!nlohmann::json::sax_parse(text, text + json.size(), &reader)) {
    return refuse(reader.problem.empty() ? "the header cannot be read" : reader.problem);
  }
  return std::move(reader.header);
}

}  // namespace monomoe
