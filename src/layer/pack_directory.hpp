// OUT.partial: everything a pack writes until its last step, with a journal that says which shards are whole, so that a run that was
// killed is taken up where it stopped. One process at a time: the directory is locked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "weights/convert.hpp"

namespace monomoe::layer {

inline constexpr const char* kJournalName = "pack.journal";

// One whole shard, as the journal keeps it.
struct ShardRecord {
  std::string name;
  uint64_t bytes = 0;  // of the file
  std::string checksum;
  std::vector<std::string> expert_checksums;  // packed only
  std::string shared_checksum;
  std::map<std::string, std::string> tensor_checksums;  // of what is copied beside packed experts, by name
  ConversionChange change;
  std::string first_tensor;  // of the first changed weight
};

class PackDirectory {
 public:
  // identity: what makes two runs the same pack. An OUT.partial with another identity, or without a journal, is refused, never emptied.
  static Result<PackDirectory> open(const std::filesystem::path& target, const std::string& identity);
  PackDirectory(PackDirectory&& other) noexcept;
  PackDirectory& operator=(PackDirectory&&) = delete;
  ~PackDirectory();  // leaves everything where it is, for the next run; a directory without a shard is removed

  const std::filesystem::path& path() const { return partial_; }
  std::string file(const std::string& name) const { return (partial_ / name).string(); }
  const std::map<std::string, ShardRecord>& done() const { return done_; }  // by name
  // Shards that the journal states and whose bytes are not, or no longer, what it states; they are removed and count as not written.
  const std::vector<std::string>& damaged() const { return damaged_; }
  Result<void> record(ShardRecord shard);  // the file is whole and synced
  // Syncs, renames OUT.partial to OUT, syncs the directory it is in and removes the journal.
  Result<void> put_in_place();

 private:
  PackDirectory() = default;
  Result<void> lock();
  Result<void> read_journal(const std::string& identity);
  Result<void> begin_journal(const std::string& identity);
  Result<void> append(const std::string& line);

  std::filesystem::path target_, partial_;
  int lock_fd_ = -1;
  int journal_fd_ = -1;
  std::map<std::string, ShardRecord> done_;
  std::vector<std::string> damaged_;
};

}  // namespace monomoe::layer
