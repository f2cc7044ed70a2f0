// Writes a safetensors file that appears whole or not at all: data goes to a new file OUT.partial-XXXXXXXX, which replaces OUT only when
// all of it is on disk. On an error, or when the writer is dropped unfinished, that file is removed and an older OUT stays as it was.
// Writers of one OUT do not meet: the last to finish wins whole.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "weights/checksum.hpp"
#include "weights/dtype.hpp"

namespace monomoe {

struct TensorSpec {
  std::string name;
  DType dtype = DType::U8;
  std::vector<int64_t> shape;
};

class SafetensorsWriter {
 public:
  static Result<SafetensorsWriter> create(const std::string& path, std::vector<TensorSpec> tensors,
                                          const std::map<std::string, std::string>& metadata = {});
  SafetensorsWriter(SafetensorsWriter&& other) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) = delete;
  ~SafetensorsWriter();

  // The next bytes of the tensors' data, in the declared order; a piece may end anywhere.
  Result<void> append(std::span<const uint8_t> data);
  // Refused unless exactly the declared bytes were appended.
  Result<void> finish();
  // Of the file as it is on disk after finish().
  std::string checksum() const { return checksum_.text(); }
  uint64_t file_bytes() const { return file_bytes_; }

 private:
  SafetensorsWriter() = default;
  Result<void> write_all(const uint8_t* data, size_t count);
  void discard();

  std::string path_, partial_;
  int fd_ = -1;
  uint64_t declared_ = 0, written_ = 0, file_bytes_ = 0;
  Checksum checksum_;
};

// One call for small files: all tensors with their data.
struct NamedTensor {
  TensorSpec spec;
  std::span<const uint8_t> data;
};
Result<void> write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                               const std::map<std::string, std::string>& metadata = {});

}  // namespace monomoe
