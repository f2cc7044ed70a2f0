// All tensors of a checkpoint directory. With model.safetensors.index.json the index decides where a tensor is; without one every
// *.safetensors file is read and a name found in two of them is an error.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.hpp"
#include "weights/safetensors.hpp"
#include "weights/tensor_index.hpp"
#include "weights/text.hpp"

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

struct OpenOptions {
  size_t max_problems = 20;  // sentences; the rest is counted
  bool keep_going = false;   // what is sound is opened in spite of problems, which problems() then tells: for reports
};

class TensorSet {
 public:
  // Fails only where there is nothing to open, if it is to keep going.
  static Result<TensorSet> open(const std::string& directory, const OpenOptions& options = {});

  const std::string& directory() const { return directory_; }
  bool has_index() const { return has_index_; }
  const std::vector<std::unique_ptr<SafetensorsFile>>& files() const { return files_; }
  const std::vector<LocatedTensor>& tensors() const { return tensors_; }  // sorted by name
  LocatedTensor find(std::string_view name) const;                        // entry == nullptr if there is none
  const std::vector<UnusedTensor>& unused() const { return unused_; }
  // Gives back the memory that reading the mapped files took; for going through layer after layer.
  void release_pages() const;
  // Names every file that was written to since it was opened: what was read of it may be of both states.
  Result<void> check_unchanged() const;
  const ProblemList& problems() const { return problems_; }
  const std::vector<std::string>& absent() const { return absent_; }  // tensors that the index places where they are not

 private:
  explicit TensorSet(size_t max_problems) : problems_(max_problems) {}
  Result<void> load_all();
  Result<void> load_indexed();
  const SafetensorsFile* open_shard(const std::string& name);
  std::map<std::string, const SafetensorsFile*> open_indexed_shards(const std::vector<IndexedTensor>& index);
  Result<void> list_unused(const std::map<std::string, const SafetensorsFile*>& shards,
                           const std::unordered_map<std::string_view, std::string_view>& shard_of);
  void sort_tensors();

  std::string directory_;
  ProblemList problems_;
  std::vector<std::string> absent_;
  bool has_index_ = false;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<LocatedTensor> tensors_;
  std::unordered_map<std::string_view, size_t> by_name_;
  std::vector<UnusedTensor> unused_;
};

}  // namespace monomoe
