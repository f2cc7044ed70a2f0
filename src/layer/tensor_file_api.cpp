// Tensor files through the ABI: a safetensors file mapped read-only, and one written whole or not at all.
#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <memory>
#include <string>
#include <vector>

#include "layer/arguments.hpp"
#include "layer/error_state.hpp"
#include "monomoe/checkpoint.h"
#include "weights/safetensors.hpp"
#include "weights/safetensors_writer.hpp"
#include "weights/text.hpp"

using namespace monomoe;
using namespace monomoe::layer;

struct monomoe_tensor_file {
  SafetensorsFile file;
  std::vector<std::string> dtypes;  // terminated names, one per tensor
};

namespace {

constexpr int kMaxDims = 8;

Result<void> describe(const monomoe_tensor_file& file, size_t index, monomoe_tensor* out) {
  const TensorEntry& entry = file.file.tensors()[index];
  if (entry.shape.size() > kMaxDims) {
    return bad_input(fmt::format("{}: tensor '{}' has {} dimensions, wanted at most {}", file.file.path(), printable(entry.name),
                                 entry.shape.size(), kMaxDims));
  }
  monomoe_tensor tensor{};
  tensor.name = entry.name.c_str();
  tensor.dtype = file.dtypes[index].c_str();
  tensor.num_dims = static_cast<int32_t>(entry.shape.size());
  for (size_t d = 0; d < entry.shape.size(); ++d) tensor.dims[d] = entry.shape[d];
  tensor.data = entry.data;
  tensor.bytes = entry.bytes;
  *out = tensor;
  return {};
}

// What a file holds, for the message of a tensor that is absent.
std::string names_of(const std::vector<TensorEntry>& tensors) {
  if (tensors.empty()) return "the file holds no tensor";
  constexpr size_t kTold = 6;
  std::string names;
  for (size_t i = 0; i < std::min(kTold, tensors.size()); ++i) names += fmt::format("{}'{}'", i == 0 ? "" : ", ", printable(tensors[i].name));
  if (tensors.size() > kTold) names += fmt::format(" and {} more", tensors.size() - kTold);
  return "the file holds " + names;
}

Result<NamedTensor> tensor_to_write(const monomoe_tensor& tensor, int64_t index) {
  if (tensor.name == nullptr || tensor.dtype == nullptr) {
    return usage_error(fmt::format("tensors[{}]: name or dtype is NULL", index));
  }
  const std::optional<DType> dtype = dtype_from_name(tensor.dtype);
  if (!dtype)
    return usage_error(fmt::format("tensors[{}] '{}': dtype '{}' is unknown", index, printable(tensor.name), printable(tensor.dtype)));
  if (tensor.num_dims < 0 || tensor.num_dims > kMaxDims) {
    return usage_error(
        fmt::format("tensors[{}] '{}': num_dims is {}, wanted 0..{}", index, printable(tensor.name), tensor.num_dims, kMaxDims));
  }
  uint64_t elements = 1;
  for (int d = 0; d < tensor.num_dims; ++d) {
    if (tensor.dims[d] < 0 || __builtin_mul_overflow(elements, static_cast<uint64_t>(tensor.dims[d]), &elements) ||
        elements > UINT64_MAX / 64) {
      return usage_error(fmt::format("tensors[{}] '{}': dimension {} is {}", index, printable(tensor.name), d, tensor.dims[d]));
    }
  }
  const uint64_t wanted = elements * static_cast<uint64_t>(dtype_bits(*dtype)) / 8;
  if (tensor.bytes != wanted) {
    return usage_error(
        fmt::format("tensors[{}] '{}': bytes is {}, its shape and dtype want {}", index, printable(tensor.name), tensor.bytes, wanted));
  }
  if (tensor.data == nullptr && wanted != 0)
    return usage_error(fmt::format("tensors[{}] '{}': data is NULL", index, printable(tensor.name)));
  NamedTensor named;
  named.spec = {tensor.name, *dtype, std::vector<int64_t>(tensor.dims, tensor.dims + tensor.num_dims)};
  named.data = {static_cast<const uint8_t*>(tensor.data), static_cast<size_t>(tensor.bytes)};
  return named;
}

}  // namespace

extern "C" {

monomoe_status monomoe_tensor_file_open(const char* path, monomoe_tensor_file** file) {
  return guarded([&]() -> Result<void> {
    if (auto given = require_pointer(path, "path"); !given) return given;
    if (auto given = require_pointer(file, "file"); !given) return given;
    auto opened = SafetensorsFile::open(path);
    if (!opened) return opened.error();
    auto handle = std::make_unique<monomoe_tensor_file>(monomoe_tensor_file{opened.take(), {}});
    for (const TensorEntry& entry : handle->file.tensors()) handle->dtypes.emplace_back(dtype_name(entry.dtype));
    *file = handle.release();
    return {};
  });
}

void monomoe_tensor_file_close(monomoe_tensor_file* file) { delete file; }

int64_t monomoe_tensor_file_count(const monomoe_tensor_file* file) {
  return file == nullptr ? 0 : static_cast<int64_t>(file->file.tensors().size());
}

monomoe_status monomoe_tensor_file_at(const monomoe_tensor_file* file, int64_t index, monomoe_tensor* tensor) {
  return guarded([&]() -> Result<void> {
    if (auto given = require_pointer(file, "file"); !given) return given;
    if (auto given = require_pointer(tensor, "tensor"); !given) return given;
    const int64_t count = monomoe_tensor_file_count(file);
    if (index < 0 || index >= count) return usage_error(fmt::format("index is {}, {} has {} tensors", index, file->file.path(), count));
    return describe(*file, static_cast<size_t>(index), tensor);
  });
}

monomoe_status monomoe_tensor_file_find(const monomoe_tensor_file* file, const char* name, monomoe_tensor* tensor) {
  return guarded([&]() -> Result<void> {
    if (auto given = require_pointer(file, "file"); !given) return given;
    if (auto given = require_pointer(name, "name"); !given) return given;
    if (auto given = require_pointer(tensor, "tensor"); !given) return given;
    const TensorEntry* entry = file->file.find(name);
    if (entry == nullptr) {
      return bad_input(
          fmt::format("{}: no tensor '{}'; {}: add it", printable(file->file.path()), printable(name), names_of(file->file.tensors())));
    }
    return describe(*file, static_cast<size_t>(entry - file->file.tensors().data()), tensor);
  });
}

monomoe_status monomoe_tensor_file_write(const char* path, const monomoe_tensor* tensors, int64_t count) {
  return guarded([&]() -> Result<void> {
    if (auto given = require_pointer(path, "path"); !given) return given;
    if (*path == '\0') return usage_error("path is empty; name the file to write");
    if (count < 0) return usage_error(fmt::format("count is {}, wanted 0 or more", count));
    if (tensors == nullptr && count != 0) return usage_error("tensors is NULL");
    std::vector<NamedTensor> named;
    for (int64_t i = 0; i < count; ++i) {
      auto tensor = tensor_to_write(tensors[i], i);
      if (!tensor) return tensor.error();
      named.push_back(tensor.take());
    }
    return write_safetensors(path, named);
  });
}

}  // extern "C"
