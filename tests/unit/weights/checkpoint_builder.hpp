// Small checkpoints for tests: tensors by name, written into a temporary directory that disappears with the test.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "weights/safetensors_writer.hpp"

namespace monomoe::test_support {

using Bytes = std::vector<uint8_t>;

class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "monomoe_test_XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  void write(const std::string& name, std::string_view text) const { std::ofstream(file(name), std::ios::binary) << text; }
  void write(const std::string& name, const Bytes& bytes) const {
    write(name, std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  std::string read(const std::string& name) const {
    std::ifstream in(file(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  bool has(const std::string& name) const { return std::filesystem::exists(file(name)); }

 private:
  std::string path_;
};

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes out(values.size() * sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), values.data(), out.size());
  return out;
}

// A safetensors file from a header's text and its data, with no checks at all.
inline Bytes raw_file(const std::string& header, const Bytes& data) {
  Bytes out(8 + header.size() + data.size());
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<uint8_t>(header.size() >> (8 * i));
  std::copy(header.begin(), header.end(), out.begin() + 8);
  std::copy(data.begin(), data.end(), out.begin() + 8 + static_cast<std::ptrdiff_t>(header.size()));
  return out;
}

struct BuiltTensor {
  DType dtype = DType::U8;
  std::vector<int64_t> shape;
  Bytes data;
};

enum class Packing { kFp8, kNvfp4, kMxfp4, kBf16 };

class CheckpointBuilder {
 public:
  std::map<std::string, BuiltTensor> tensors;

  void add(const std::string& name, DType dtype, std::vector<int64_t> shape, Bytes data) {
    tensors[name] = {dtype, std::move(shape), std::move(data)};
  }

  // One matrix of [rows, cols] with all codes and scales equal. Names follow DeepSeek: .scale for FP8 and MXFP4.
  void add_matrix(const std::string& base, Packing packing, int64_t rows, int64_t cols, uint8_t code = 0x38) {
    const auto count = static_cast<size_t>(rows * cols);
    if (packing == Packing::kBf16) {
      add(base + ".weight", DType::BF16, {rows, cols}, bytes_of(std::vector<uint16_t>(count, 0x3F80)));
    } else if (packing == Packing::kFp8) {
      const int64_t r = (rows + 127) / 128, c = (cols + 127) / 128;
      add(base + ".weight", DType::F8_E4M3, {rows, cols}, Bytes(count, code));
      add(base + ".scale", DType::F32, {r, c}, bytes_of(std::vector<float>(static_cast<size_t>(r * c), 0.5f)));
    } else if (packing == Packing::kNvfp4) {
      add(base + ".weight", DType::U8, {rows, cols / 2}, Bytes(count / 2, 0x22));
      add(base + ".weight_scale", DType::F8_E4M3, {rows, cols / 16}, Bytes(count / 16, code));
      add(base + ".weight_scale_2", DType::F32, {}, bytes_of(std::vector<float>{0.25f}));
    } else {
      add(base + ".weight", DType::I8, {rows, cols / 2}, Bytes(count / 2, 0x22));
      add(base + ".scale", DType::F8_E8M0, {rows, cols / 32}, Bytes(count / 32, 127));
    }
  }

  // Experts 0..count-1 below `prefix` ("layers.0.ffn."), DeepSeek names.
  void add_experts(const std::string& prefix, Packing packing, int count, int64_t hidden, int64_t intermediate) {
    for (int e = 0; e < count; ++e) {
      const std::string expert = prefix + "experts." + std::to_string(e);
      add_matrix(expert + ".w1", packing, intermediate, hidden);
      add_matrix(expert + ".w3", packing, intermediate, hidden);
      add_matrix(expert + ".w2", packing, hidden, intermediate);
    }
  }

  void write(const TempDir& dir, const std::string& name = "model.safetensors") const {
    std::vector<NamedTensor> list;
    for (const auto& [tensor, built] : tensors) list.push_back({{tensor, built.dtype, built.shape}, built.data});
    const Result<void> written = write_safetensors(dir.file(name), list);
    ASSERT_TRUE(written.ok()) << written.error().message;
  }
};

// Fails unless the error's sentence holds every word.
template <class T>
void expect_error(const Result<T>& result, std::initializer_list<std::string_view> words) {
  ASSERT_FALSE(result.ok());
  for (const std::string_view word : words) {
    EXPECT_NE(result.error().message.find(word), std::string::npos) << "wanted \"" << word << "\" in: " << result.error().message;
  }
}

}  // namespace monomoe::test_support
