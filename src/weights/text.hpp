// Words for messages: names from files made safe to print, shapes, and lists of problems that stay readable.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace monomoe {

// Control and non-ASCII bytes, quotes and backslashes become \xNN; long names are cut in the middle.
std::string printable(std::string_view name);

// Whole numbers in order, runs as "a..b": "0, 3..7".
std::string ranges_text(std::span<const int64_t> numbers);

std::string shape_text(std::span<const int64_t> shape);  // "[2048, 4096]"

// Collects problems; keeps the first `limit` sentences and counts the rest. A prefix ("dir/x.safetensors: ") goes before each sentence.
class ProblemList {
 public:
  explicit ProblemList(size_t limit = 20, std::string prefix = {}) : limit_(limit), prefix_(std::move(prefix)) {}
  void add(std::string sentence);
  void add_lines(std::string_view text);  // sentences of another list's text(), which say their place already: no prefix
  void add_all(const ProblemList& other);
  void add_uncounted(int64_t more) { count_ += more; }  // problems known to exist but not worth a sentence
  bool empty() const { return count_ == 0; }
  int64_t count() const { return count_; }
  const std::vector<std::string>& sentences() const { return kept_; }
  std::string text(std::string_view separator = "\n  ") const;  // "a\n  b\n  and 7 more"

 private:
  size_t limit_;
  std::string prefix_;
  int64_t count_ = 0;
  std::vector<std::string> kept_;
};

}  // namespace monomoe
