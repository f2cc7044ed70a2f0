// All tensors of a checkpoint directory. With model.safetensors.index.json the index decides where a tensor is; without one every
// *.safetensors file is read and a name found in two of them is an error.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.hpp"
#include "weights/safetensors.hpp"

namespace monomoe {

constexpr const char* kIndexFileName = "model.safetensors.index.json";

struct LocatedTensor {
  const TensorEntry* entry = nullptr;
  const SafetensorsFile* file = nullptr;
};

// A tensor (or a whole file: empty name) that the directory holds and the checkpoint does not use.
struct UnusedTensor {
  std::string file, tensor, reason;
};

class TensorSet {
 public:
  static Result<TensorSet> open(const std::string& directory);

  const std::string& directory() const { return directory_; }
  bool has_index() const { return has_index_; }
  const std::vector<std::unique_ptr<SafetensorsFile>>& files() const { return files_; }
  const std::vector<LocatedTensor>& tensors() const { return tensors_; }  // sorted by name
  LocatedTensor find(std::string_view name) const;                        // entry == nullptr if there is none
  const std::vector<UnusedTensor>& unused() const { return unused_; }

 private:
  TensorSet() = default;
  Result<void> load_all();
  Result<void> load_indexed();
  void sort_tensors();

  std::string directory_;
  bool has_index_ = false;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<LocatedTensor> tensors_;
  std::unordered_map<std::string_view, size_t> by_name_;
  std::vector<UnusedTensor> unused_;
};

}  // namespace monomoe
