// Reads safetensors files and trusts nothing in them: every offset, shape, type and name is checked before a tensor is handed out.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.hpp"
#include "weights/dtype.hpp"
#include "weights/mapped_file.hpp"

namespace monomoe {

constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;

struct TensorEntry {
  std::string name;
  DType dtype = DType::U8;
  std::vector<int64_t> shape;     // in elements, also for F4 (two of them in a byte)
  const uint8_t* data = nullptr;  // into the file's bytes; may be unaligned
  uint64_t bytes = 0;
  uint64_t file_offset = 0;
};

struct SafetensorsContent {
  std::vector<TensorEntry> tensors;  // ascending file offset
  std::map<std::string, std::string> metadata;
};

// The whole file as bytes (header and data); `file` names it in messages. Pointers in the result point into `bytes`.
Result<SafetensorsContent> parse_safetensors(std::span<const uint8_t> bytes, std::string_view file);

class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::string& path);

  const std::string& path() const { return map_.path(); }
  const std::vector<TensorEntry>& tensors() const { return content_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return content_.metadata; }
  const TensorEntry* find(std::string_view name) const;  // nullptr if there is none
  std::string changed() const { return map_.changed(); }
  std::span<const uint8_t> bytes() const { return map_.bytes(); }

 private:
  SafetensorsFile(MappedFile map, SafetensorsContent content);
  MappedFile map_;
  SafetensorsContent content_;
  std::unordered_map<std::string_view, size_t> by_name_;
};

}  // namespace monomoe
