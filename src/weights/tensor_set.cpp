// Opens shards, matches them with the index, and lists everything that is missing at once.
#include "weights/tensor_set.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "weights/text.hpp"

namespace monomoe {
namespace {

namespace fs = std::filesystem;

std::string join(const std::string& directory, std::string_view name) { return (fs::path(directory) / name).string(); }

std::string base_name(const std::string& path) { return fs::path(path).filename().string(); }

// *.safetensors of a directory, sorted; hidden files (".foo.safetensors") are left alone.
Result<std::vector<std::string>> shard_names(const std::string& directory) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name[0] != '.' && name.ends_with(".safetensors")) names.push_back(name);
  }
  if (error) return bad_input(fmt::format("cannot read the directory {}: {}", printable(directory), error.message()));
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

Result<TensorSet> TensorSet::open(const std::string& directory, const OpenOptions& options) {
  TensorSet set(options.max_problems);
  set.directory_ = directory;
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    return bad_input(fmt::format("{} is not a directory; wanted a checkpoint directory with *.safetensors files", printable(directory)));
  }
  set.has_index_ = fs::exists(fs::symlink_status(join(directory, kIndexFileName), error));
  Result<void> loaded = set.has_index_ ? set.load_indexed() : set.load_all();
  if (!loaded && set.has_index_ && options.keep_going) {  // an index that cannot be read: the shards can be looked at without it
    set.problems_.add_lines(loaded.error().message);
    set.has_index_ = false;
    loaded = set.load_all();
  }
  if (!loaded) return loaded.error();
  if (!options.keep_going && !set.problems_.empty()) return bad_input(set.problems_.text());
  set.sort_tensors();
  return set;
}

Result<void> TensorSet::load_all() {
  Result<std::vector<std::string>> names = shard_names(directory_);
  if (!names) return names.error();
  if (names.value().empty()) {
    return bad_input(
        fmt::format("{}: found no *.safetensors file and no {}; wanted a checkpoint directory", printable(directory_), kIndexFileName));
  }
  std::unordered_map<std::string_view, const SafetensorsFile*> owners;
  for (const std::string& name : names.value()) {
    const SafetensorsFile* shard = open_shard(name);
    if (shard == nullptr) continue;
    for (const TensorEntry& entry : shard->tensors()) {
      const auto [owner, is_new] = owners.emplace(entry.name, shard);
      if (is_new) {
        tensors_.push_back({&entry, shard});
      } else {
        problems_.add(
            fmt::format("{}: tensor \"{}\" is in both {} and {}; there is no {} that says which one counts: add the index or remove one file",
                        printable(directory_), printable(entry.name), printable(base_name(owner->second->path())), printable(name), kIndexFileName));
      }
    }
  }
  return {};
}

// nullptr, and a problem, if it cannot be read.
const SafetensorsFile* TensorSet::open_shard(const std::string& name) {
  Result<SafetensorsFile> file = SafetensorsFile::open(join(directory_, name));
  if (!file) {
    problems_.add_lines(file.error().message);
    return nullptr;
  }
  files_.push_back(std::make_unique<SafetensorsFile>(file.take()));
  return files_.back().get();
}

// The shards that the index names, and beside them the tensors it places in them. nullptr: could not be opened.
std::map<std::string, const SafetensorsFile*> TensorSet::open_indexed_shards(const std::vector<IndexedTensor>& index) {
  std::map<std::string, int64_t> wanted_from;  // tensors per shard, for the message of a missing one
  for (const IndexedTensor& item : index) ++wanted_from[item.shard];
  std::map<std::string, const SafetensorsFile*> shards;
  for (const auto& [shard, count] : wanted_from) {
    const std::string path = join(directory_, shard);
    std::error_code error;
    if (fs::exists(path, error)) {
      shards[shard] = open_shard(shard);
      continue;
    }
    const char* what = fs::is_symlink(path, error) ? "a link whose file is missing" : "the file is missing";
    problems_.add(fmt::format("{}: {}; the index places {} tensor(s) in it; fetch it", printable(path), what, count));
    shards[shard] = nullptr;
  }
  return shards;
}

Result<void> TensorSet::load_indexed() {
  const std::string index_path = join(directory_, kIndexFileName);
  Result<MappedFile> map = MappedFile::open(index_path);
  if (!map) return map.error();
  Result<std::vector<IndexedTensor>> index = parse_tensor_index(map.value().bytes(), index_path);
  if (!index) return index.error();

  const std::map<std::string, const SafetensorsFile*> shards = open_indexed_shards(index.value());
  std::unordered_map<std::string_view, std::string_view> shard_of;
  for (const IndexedTensor& item : index.value()) {
    shard_of.emplace(item.tensor, item.shard);
    const SafetensorsFile* shard = shards.at(item.shard);
    if (const TensorEntry* entry = shard == nullptr ? nullptr : shard->find(item.tensor)) {
      tensors_.push_back({entry, shard});
      continue;
    }
    const std::string path = printable(join(directory_, item.shard));
    problems_.add(shard == nullptr
                      ? fmt::format("{}: tensor \"{}\" is missing with its file", path, printable(item.tensor))
                      : fmt::format("{}: tensor \"{}\" is not in this file, where the index places it; fetch the file and the index of the same version",
                                    path, printable(item.tensor)));
    absent_.push_back(item.tensor);
  }
  return list_unused(shards, shard_of);
}

Result<void> TensorSet::list_unused(const std::map<std::string, const SafetensorsFile*>& shards,
                                    const std::unordered_map<std::string_view, std::string_view>& shard_of) {
  for (const auto& file : files_) {
    const std::string name = base_name(file->path());
    for (const TensorEntry& entry : file->tensors()) {
      const auto placed = shard_of.find(entry.name);
      if (placed == shard_of.end())
        unused_.push_back({name, entry.name, "the index does not name it"});
      else if (placed->second != name)
        unused_.push_back({name, entry.name, fmt::format("the index takes it from {}", placed->second)});
    }
  }
  Result<std::vector<std::string>> present = shard_names(directory_);
  if (!present) return present.error();
  for (const std::string& name : present.value()) {
    if (!shards.contains(name)) unused_.push_back({name, "", "the index does not name this file"});
  }
  return {};
}

void TensorSet::sort_tensors() {
  std::sort(tensors_.begin(), tensors_.end(), [](const LocatedTensor& a, const LocatedTensor& b) { return a.entry->name < b.entry->name; });
  by_name_.reserve(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) by_name_.emplace(tensors_[i].entry->name, i);
}

void TensorSet::release_pages() const {
  for (const auto& file : files_) release_mapped(file->bytes().data(), file->bytes().size());
}

Result<void> TensorSet::check_unchanged() const {
  ProblemList problems;
  for (const auto& file : files_) {
    if (const std::string what = file->changed(); !what.empty())
      problems.add(fmt::format("{}: {}; try again when nothing writes to it, and replace files by renaming", printable(file->path()), what));
  }
  if (!problems.empty()) return bad_input(problems.text());
  return {};
}

LocatedTensor TensorSet::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? LocatedTensor{} : tensors_[found->second];
}

}  // namespace monomoe
