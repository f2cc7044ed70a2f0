// Lines, words and numbers of small text files.
#include "text_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "failure.hpp"

namespace monomoe::cli {
namespace {

constexpr std::string_view kBlanks = " \t\r\v\f";

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

constexpr size_t kMostBytes = size_t{64} << 20;
constexpr int kFirstWriterMs = 3000;  // what a named pipe's writer may take to come

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

// Waits for bytes or the end; how long makes no difference to what read() then says.
void wait_for_bytes(int descriptor, int milliseconds) {
  pollfd entry = {descriptor, POLLIN, 0};
  while (::poll(&entry, 1, milliseconds) < 0 && errno == EINTR) {
  }
}

// Opened without waiting, so that a pipe nobody writes to can be refused: until a writer has come reading it says "end".
std::string read_all(const char* option, const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (file.number() < 0) input_error(fmt::format("{} {}: cannot be opened: {}", option, path, std::strerror(errno)));
  struct stat about = {};
  if (::fstat(file.number(), &about) != 0) input_error(fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
  if (S_ISDIR(about.st_mode)) input_error(fmt::format("{}: is a directory, wanted a text file", path));
  const bool is_pipe = S_ISFIFO(about.st_mode);
  if (is_pipe) wait_for_bytes(file.number(), kFirstWriterMs);
  std::string text;
  char block[1 << 16];
  for (;;) {
    const ssize_t count = ::read(file.number(), block, sizeof(block));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {
      wait_for_bytes(file.number(), -1);
      continue;
    }
    if (count < 0) input_error(fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
    if (count == 0) break;
    text.append(block, static_cast<size_t>(count));
    if (text.size() > kMostBytes) input_error(fmt::format("{}: is longer than {} bytes, which no list of lines needs", path, kMostBytes));
  }
  if (is_pipe && text.empty()) input_error(fmt::format("{}: is a pipe that nothing was written to; wanted lines of text", path));
  return text;
}

}  // namespace

std::vector<TextLine> read_lines(const char* option, const std::string& path) {
  const std::string text = read_all(option, path);
  std::vector<TextLine> lines;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view all(text.data() + begin, end - begin);
    const std::string_view line = trim(all.substr(0, all.find('#')));
    begin = end + 1;
    ++number;
    if (line.find('\0') != std::string_view::npos) input_error(fmt::format("{}:{}: '{}' holds a zero byte; wanted text", path, number, shortened(line)));
    if (!line.empty()) lines.push_back({number, std::string(line)});
  }
  return lines;
}

void write_lines(const std::string& name, std::string_view text) {
  std::error_code ignored;
  const std::string path = std::filesystem::is_symlink(name, ignored) ? std::filesystem::canonical(name, ignored).string() : name;
  const std::string partial = fmt::format("{}.partial-{}", path, ::getpid());
  const auto fail = [&](const char* doing) {
    const std::string why = std::strerror(errno);
    ::unlink(partial.c_str());
    input_error(fmt::format("{}: cannot be {}: {}", path, doing, why));
  };
  {
    const Descriptor file(::open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file.number() < 0) input_error(fmt::format("{}: cannot be created: {}", partial, std::strerror(errno)));
    while (!text.empty()) {
      const ssize_t count = ::write(file.number(), text.data(), text.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail("written");
      text.remove_prefix(static_cast<size_t>(count));
    }
    if (::fsync(file.number()) != 0) fail("written");
  }
  if (::rename(partial.c_str(), path.c_str()) != 0) fail("put in place");
}

std::string shortened(std::string_view text) {
  constexpr size_t kMost = 200;
  return text.size() <= kMost ? std::string(text) : std::string(text.substr(0, kMost)) + "...";
}

std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> words;
  for (size_t begin = text.find_first_not_of(kBlanks); begin != std::string_view::npos;) {
    const size_t end = std::min(text.find_first_of(kBlanks, begin), text.size());
    words.emplace_back(text.substr(begin, end - begin));
    begin = text.find_first_not_of(kBlanks, end);
  }
  return words;
}

std::vector<std::string> split_at(std::string_view text, char separator) {
  std::vector<std::string> words;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    words.emplace_back(text.substr(begin, end == std::string_view::npos ? end : end - begin));
    if (end == std::string_view::npos) return words;
    begin = end + 1;
  }
}

std::optional<int64_t> whole_number(std::string_view word) {
  int64_t value = 0;
  const char* const end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, value);
  if (word.empty() || error != std::errc() || stop != end) return std::nullopt;
  return value;
}

}  // namespace monomoe::cli
