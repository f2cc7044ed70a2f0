// The journal is one JSON object a line, appended and synced: first the identity, then each shard that is whole. A last line that a
// crash cut short does not count.
#include "layer/pack_directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "layer/output_target.hpp"
#include "weights/checksum.hpp"
#include "weights/mapped_file.hpp"
#include "weights/text.hpp"

namespace monomoe::layer {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string shard_line(const ShardRecord& s) {
  const ConversionChange& c = s.change;
  const Json line = {{"shard", s.name},
                     {"bytes", s.bytes},
                     {"checksum", s.checksum},
                     {"experts", s.expert_checksums},
                     {"shared", s.shared_checksum},
                     {"tensors", s.tensor_checksums},
                     {"change",
                      {c.weights, c.changed, c.underflows, c.worst_relative_error, c.squared_relative_error, c.first_row, c.first_column,
                       c.first_before, c.first_after}},
                     {"first_tensor", s.first_tensor}};
  return line.dump();
}

// Our own lines: whatever is not as written above was cut short or is not ours.
std::optional<ShardRecord> read_shard(const std::string& text) {
  const Json line = Json::parse(text, nullptr, false);
  if (!line.is_object() || !line.contains("shard")) return std::nullopt;
  try {
    ShardRecord s;
    s.name = line.at("shard").get<std::string>();
    s.bytes = line.at("bytes").get<uint64_t>();
    s.checksum = line.at("checksum").get<std::string>();
    s.expert_checksums = line.at("experts").get<std::vector<std::string>>();
    s.shared_checksum = line.at("shared").get<std::string>();
    s.tensor_checksums = line.at("tensors").get<std::map<std::string, std::string>>();
    const Json& c = line.at("change");
    s.change = {c.at(0).get<int64_t>(), c.at(1).get<int64_t>(), c.at(2).get<int64_t>(), c.at(3).get<double>(), c.at(4).get<double>(),
                c.at(5).get<int64_t>(), c.at(6).get<int64_t>(), c.at(7).get<double>(),  c.at(8).get<double>()};
    s.first_tensor = line.at("first_tensor").get<std::string>();
    return s;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

// Whole lines of the journal; no value if there is no journal.
Result<std::optional<std::vector<std::string>>> journal_lines(const std::string& path) {
  std::error_code code;
  if (!fs::exists(fs::symlink_status(path, code))) return std::optional<std::vector<std::string>>{};
  auto map = MappedFile::open(path);
  if (!map) return map.error();
  std::vector<std::string> lines;
  std::string line;
  for (const uint8_t byte : map.value().bytes()) {
    if (byte != '\n') {
      line.push_back(static_cast<char>(byte));
    } else {
      lines.push_back(std::exchange(line, {}));
    }
  }
  return std::optional(std::move(lines));
}

// Whether a shard holds the bytes that its line states. All of them are read: a size says nothing of what a disk or a hand did to them.
bool is_whole(const std::string& path, const ShardRecord& shard) {
  auto map = MappedFile::open(path);
  if (!map || map.value().bytes().size() != shard.bytes) return false;
  constexpr size_t kPiece = size_t{1} << 26;
  Checksum checksum;
  for (std::span<const uint8_t> rest = map.value().bytes(); !rest.empty();) {
    const auto piece = rest.first(std::min(kPiece, rest.size()));
    checksum.update(piece);
    release_mapped(piece.data(), piece.size());
    rest = rest.subspan(piece.size());
  }
  return checksum.text() == shard.checksum;
}

Error system_error(const char* action, const fs::path& path) {
  return bad_input(fmt::format("cannot {} {}: {}", action, printable(path.string()), std::strerror(errno)));
}

}  // namespace

PackDirectory::PackDirectory(PackDirectory&& other) noexcept
    : target_(std::move(other.target_)),
      partial_(std::move(other.partial_)),
      lock_fd_(std::exchange(other.lock_fd_, -1)),
      journal_fd_(std::exchange(other.journal_fd_, -1)),
      done_(std::move(other.done_)),
      damaged_(std::move(other.damaged_)) {}

PackDirectory::~PackDirectory() {
  if (lock_fd_ >= 0 && done_.empty()) {  // nothing worth keeping
    std::error_code ignored;
    fs::remove_all(partial_, ignored);
  }
  if (journal_fd_ >= 0) ::close(journal_fd_);
  if (lock_fd_ >= 0) ::close(lock_fd_);
}

Result<PackDirectory> PackDirectory::open(const fs::path& wanted, const std::string& identity) {
  auto target = usable_target(wanted);
  if (!target) return target.error();
  PackDirectory directory;
  directory.target_ = target.take();
  directory.partial_ = directory.target_.string() + ".partial";
  std::error_code code;
  fs::create_directories(directory.partial_, code);
  if (code) return bad_input(fmt::format("cannot create {}: {}", printable(directory.partial_.string()), code.message()));
  if (auto locked = directory.lock(); !locked) return locked.error();
  auto read = directory.read_journal(identity);
  if (read) return directory;
  ::close(std::exchange(directory.lock_fd_, -1));  // what is not ours stays
  return read.error();
}

Result<void> PackDirectory::lock() {
  const int fd = ::open(partial_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return system_error("open the directory", partial_);
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    const bool busy = errno == EWOULDBLOCK;
    Error error =
        busy ? bad_input(fmt::format("{}: another pack is writing it; wait for it, or choose another name", printable(partial_.string())))
             : system_error("lock", partial_);
    ::close(fd);
    return error;
  }
  lock_fd_ = fd;
  return {};
}

Result<void> PackDirectory::read_journal(const std::string& identity) {
  auto lines = journal_lines(file(kJournalName));
  if (!lines) return lines.error();
  std::error_code code;
  if (!lines.value() || lines.value()->empty()) {
    for (fs::directory_iterator it(partial_, code), end; !code && it != end; it.increment(code)) {
      if (it->path().filename() == kJournalName) continue;
      return bad_input(
          fmt::format("{} holds files but no journal of a pack; remove it, or choose another name", printable(partial_.string())));
    }
    return begin_journal(identity);
  }
  if (lines.value()->front() != identity) {
    return bad_input(
        fmt::format("{} is of another pack (other arguments, another version, or files of the checkpoint have changed); repeat "
                    "those arguments to go on with it, or remove it",
                    printable(partial_.string())));
  }
  std::string kept = identity + "\n";
  for (size_t i = 1; i < lines.value()->size(); ++i) {
    auto shard = read_shard(lines.value()->at(i));
    if (!shard) continue;
    if (!is_whole(file(shard->name), *shard)) {
      damaged_.push_back(shard->name);
      continue;
    }
    kept += shard_line(*shard) + "\n";
    done_.emplace(shard->name, std::move(*shard));
  }
  // What a killed run left half written goes; the directory is ours alone here.
  for (fs::directory_iterator it(partial_, code), end; !code && it != end; it.increment(code)) {
    const std::string name = it->path().filename().string();
    if (name != kJournalName && !done_.contains(name)) fs::remove(it->path(), code);
  }
  if (auto written = write_text(file(kJournalName), kept); !written) return written;
  journal_fd_ = ::open(file(kJournalName).c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW);
  return journal_fd_ >= 0 ? Result<void>() : system_error("open", file(kJournalName));
}

Result<void> PackDirectory::begin_journal(const std::string& identity) {
  if (auto written = write_text(file(kJournalName), identity + "\n"); !written) return written;
  sync_directory(partial_);
  journal_fd_ = ::open(file(kJournalName).c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW);
  return journal_fd_ >= 0 ? Result<void>() : system_error("open", file(kJournalName));
}

Result<void> PackDirectory::append(const std::string& line) {
  for (size_t done = 0; done < line.size();) {
    const ssize_t count = ::write(journal_fd_, line.data() + done, line.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error("write", file(kJournalName));
    done += static_cast<size_t>(count);
  }
  return ::fsync(journal_fd_) == 0 ? Result<void>() : system_error("write to disk", file(kJournalName));
}

Result<void> PackDirectory::record(ShardRecord shard) {
  if (auto written = append(shard_line(shard) + "\n"); !written) return written;
  std::string name = shard.name;
  done_.emplace(std::move(name), std::move(shard));
  return {};
}

Result<void> PackDirectory::put_in_place() {
  std::error_code code;
  sync_directory(partial_);
  fs::rename(partial_, target_, code);  // replaces an empty directory
  if (code) {
    return bad_input(fmt::format("cannot rename {} to {}: {}; all of it is there: rename it by hand", printable(partial_.string()),
                                 printable(target_.string()), code.message()));
  }
  sync_directory(target_.parent_path());
  fs::remove(target_ / kJournalName, code);  // last, so that no crash leaves an OUT.partial that cannot be taken up
  ::close(std::exchange(lock_fd_, -1));
  return {};
}

}  // namespace monomoe::layer
