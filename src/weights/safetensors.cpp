// Compares a header with its file: sizes first, then the layout of the data section, then types and shapes.
#include "weights/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "weights/safetensors_header.hpp"
#include "weights/text.hpp"

namespace monomoe {
namespace {

uint64_t read_u64_le(const uint8_t* p) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | p[i];
  return value;
}

std::string tensor_word(const HeaderTensor& tensor) { return fmt::format("tensor \"{}\"", printable(tensor.name)); }

// begin <= end and end inside the file. A file cut short is told once, with the first tensor it hurts.
void check_extent(const std::vector<HeaderTensor>& tensors, uint64_t data_bytes, uint64_t data_begin, ProblemList& problems) {
  const HeaderTensor* first_cut = nullptr;
  uint64_t needed = 0;
  int64_t cut = 0;
  for (const HeaderTensor& tensor : tensors) {
    if (tensor.begin > tensor.end) {
      problems.add(fmt::format("{}: data_offsets [{}, {}] end before they begin; wanted begin <= end; export the file again",
                               tensor_word(tensor), tensor.begin, tensor.end));
    } else if (tensor.end > data_bytes) {
      ++cut;
      needed = std::max(needed, tensor.end);
      if (first_cut == nullptr || tensor.begin < first_cut->begin) first_cut = &tensor;
    }
  }
  if (first_cut != nullptr) {
    problems.add(fmt::format(
        "the file has {} bytes, its header describes {}; {} tensor(s) reach beyond the end, the first is \"{}\" "
        "(data_offsets [{}, {}]); the file is cut short: fetch or copy it again",
        data_begin + data_bytes, needed > UINT64_MAX - data_begin ? std::string("2^64 or more") : fmt::to_string(data_begin + needed), cut,
        printable(first_cut->name), first_cut->begin, first_cut->end));
  }
}

// Tensors in offset order must follow each other without overlap or gap and fill the data section.
void check_layout(const std::vector<HeaderTensor>& tensors, uint64_t data_bytes, ProblemList& problems) {
  uint64_t cursor = 0;
  const HeaderTensor* previous = nullptr;
  for (const HeaderTensor& tensor : tensors) {
    const std::string after = previous == nullptr ? std::string("the start of the data") : tensor_word(*previous);
    if (tensor.begin < cursor) {
      problems.add(
          fmt::format("{} (data_offsets [{}, {}]) overlaps {} which ends at {}; wanted tensors one after the other; export the file again",
                      tensor_word(tensor), tensor.begin, tensor.end, after, cursor));
    } else if (tensor.begin > cursor) {
      problems.add(fmt::format(
          "a gap of {} bytes between {} and {} (data_offsets [{}, {}]); wanted tensors one after the other; export the file again",
          tensor.begin - cursor, after, tensor_word(tensor), tensor.begin, tensor.end));
    }
    cursor = std::max(cursor, tensor.end);
    previous = &tensor;
  }
  if (cursor < data_bytes) {
    problems.add(fmt::format(
        "{} trailing bytes after {}, which ends at {} of {} data bytes; wanted no bytes that belong to no tensor; "
        "export the file again",
        data_bytes - cursor, previous == nullptr ? std::string("the header (no tensors)") : tensor_word(*previous), cursor, data_bytes));
  }
}

// Bytes of a shape, or nothing if it overflows or does not fill whole bytes row by row.
std::optional<uint64_t> shape_bytes(const std::vector<int64_t>& shape, int bits, std::string& why) {
  const int64_t width = shape.empty() ? 1 : shape.back();
  if ((static_cast<uint64_t>(width) * static_cast<uint64_t>(bits)) % 8 != 0) {
    why = fmt::format("innermost width {} does not fill whole bytes at {} bits an element", width, bits);
    return std::nullopt;
  }
  uint64_t elements = 1;
  bool overflow = false;
  for (const int64_t extent : shape) {
    if (extent == 0) return 0;
    overflow |= __builtin_mul_overflow(elements, static_cast<uint64_t>(extent), &elements);
  }
  uint64_t total_bits = 0;
  overflow |= __builtin_mul_overflow(elements, static_cast<uint64_t>(bits), &total_bits);
  if (overflow) {
    why = "the shape's element count does not fit 64 bits";
    return std::nullopt;
  }
  return total_bits / 8;
}

std::optional<DType> check_type(const HeaderTensor& tensor, ProblemList& problems) {
  const std::optional<DType> dtype = dtype_from_name(tensor.dtype);
  if (!dtype) {
    problems.add(fmt::format("{}: unknown dtype \"{}\"; wanted one of the safetensors types (F32, BF16, F8_E4M3, F8_E8M0, F4, U8, ...); export the file again",
                             tensor_word(tensor), printable(tensor.dtype)));
    return std::nullopt;
  }
  std::string why;
  const std::optional<uint64_t> wanted = shape_bytes(tensor.shape, dtype_bits(*dtype), why);
  const uint64_t found = tensor.end - tensor.begin;
  if (!wanted) {
    problems.add(fmt::format("{}: dtype {} with shape {}: {}; export the file again", tensor_word(tensor), dtype_name(*dtype),
                             shape_text(tensor.shape), why));
  } else if (*wanted != found) {
    problems.add(fmt::format("{}: found {} bytes (data_offsets [{}, {}]), wanted {} for {} {}; export the file again", tensor_word(tensor),
                             found, tensor.begin, tensor.end, *wanted, dtype_name(*dtype), shape_text(tensor.shape)));
  }
  return dtype;
}

Result<uint64_t> header_length(std::span<const uint8_t> bytes, std::string_view file) {
  if (bytes.size() < 8) {
    return bad_input(
        fmt::format("{}: the file has {} bytes, a safetensors file has at least 8 and its header; the file is cut short: "
                    "fetch or copy it again",
                    printable(file), bytes.size()));
  }
  const uint64_t length = read_u64_le(bytes.data());
  if (length > kMaxSafetensorsHeader) {
    return bad_input(fmt::format("{}: the header claims {} bytes, the limit is {}; this is not a safetensors file, or it is damaged",
                                 printable(file), length, kMaxSafetensorsHeader));
  }
  if (length > bytes.size() - 8) {
    return bad_input(fmt::format("{}: the file has {} bytes, its header alone needs {}; the file is cut short: fetch or copy it again",
                                 printable(file), bytes.size(), length + 8));
  }
  return length;
}

}  // namespace

Result<SafetensorsContent> parse_safetensors(std::span<const uint8_t> bytes, std::string_view file) {
  Result<uint64_t> length = header_length(bytes, file);
  if (!length) return length.error();
  Result<SafetensorsHeader> parsed = parse_safetensors_header(bytes.subspan(8, length.value()), file);
  if (!parsed) return parsed.error();
  std::vector<HeaderTensor>& tensors = parsed.value().tensors;
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const HeaderTensor& a, const HeaderTensor& b) { return a.begin != b.begin ? a.begin < b.begin : a.end < b.end; });
  const uint64_t data_begin = 8 + length.value();
  const uint64_t data_bytes = bytes.size() - data_begin;

  ProblemList problems(20, printable(file) + ": ");
  check_extent(tensors, data_bytes, data_begin, problems);
  if (problems.empty()) check_layout(tensors, data_bytes, problems);
  SafetensorsContent content;
  if (problems.empty()) {
    content.tensors.reserve(tensors.size());
    for (HeaderTensor& tensor : tensors) {
      const std::optional<DType> dtype = check_type(tensor, problems);
      if (!dtype) continue;
      content.tensors.push_back({std::move(tensor.name), *dtype, std::move(tensor.shape), bytes.data() + data_begin + tensor.begin,
                                 tensor.end - tensor.begin, data_begin + tensor.begin});
    }
  }
  if (!problems.empty()) return bad_input(problems.text());
  content.metadata = std::move(parsed.value().metadata);
  return content;
}

SafetensorsFile::SafetensorsFile(MappedFile map, SafetensorsContent content) : map_(std::move(map)), content_(std::move(content)) {
  by_name_.reserve(content_.tensors.size());
  for (size_t i = 0; i < content_.tensors.size(); ++i) by_name_.emplace(content_.tensors[i].name, i);
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  Result<MappedFile> map = MappedFile::open(path);
  if (!map) return map.error();
  Result<SafetensorsContent> content = parse_safetensors(map.value().bytes(), path);
  if (!content) return content.error();
  return SafetensorsFile(map.take(), content.take());
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &content_.tensors[found->second];
}

}  // namespace monomoe
