// Two passes: a SAX pass that refuses duplicates and depth, then the ordinary parse.
#include "weights/json_text.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <unordered_set>
#include <vector>

#include "weights/text.hpp"

namespace monomoe {
namespace {

class StrictCheck : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::string problem;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override {
    keys_.emplace_back();
    return enter();
  }
  bool key(string_t& value) override {
    if (keys_.back().insert(value).second) return true;
    problem = fmt::format("key \"{}\" appears twice in one object", printable(value));
    return false;
  }
  bool end_object() override {
    keys_.pop_back();
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override { return enter(); }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    problem = fmt::format("not valid JSON at byte {}", position);
    return false;
  }

 private:
  bool enter() {
    if (++depth_ <= kMaxJsonDepth) return true;
    problem = fmt::format("nested deeper than {} levels", kMaxJsonDepth);
    return false;
  }
  int depth_ = 0;
  std::vector<std::unordered_set<std::string>> keys_;
};

// Python's json module writes these words, which JSON does not have; outside of strings they become strings.
std::string quote_python_words(std::string_view text) {
  constexpr std::string_view kWords[] = {"-Infinity", "Infinity", "NaN"};
  std::string out;
  out.reserve(text.size());
  bool in_string = false;
  for (size_t i = 0; i < text.size();) {
    bool replaced = false;
    for (const std::string_view word : kWords) {
      if (in_string || text.substr(i, word.size()) != word) continue;
      out.append("\"").append(word).append("\"");
      i += word.size();
      replaced = true;
      break;
    }
    if (replaced) continue;
    if (in_string && text[i] == '\\' && i + 1 < text.size())
      out.push_back(text[i++]);
    else if (text[i] == '"')
      in_string = !in_string;
    out.push_back(text[i++]);
  }
  return out;
}

}  // namespace

Result<nlohmann::json> parse_json_strict(std::string_view text, std::string_view file) {
  auto refuse = [&](std::string_view problem) {
    return bad_input(fmt::format("{}: {}; fetch or write the file again", printable(file), problem));
  };
  if (text.size() > kMaxJsonBytes) return refuse(fmt::format("{} bytes, the limit is {}", text.size(), kMaxJsonBytes));
  if (text.find('\0') != std::string_view::npos) return refuse("contains a NUL byte");
  const std::string plain = quote_python_words(text);
  StrictCheck check;
  if (!nlohmann::json::sax_parse(plain, &check)) return refuse(check.problem.empty() ? "cannot be read" : check.problem);
  nlohmann::json value = nlohmann::json::parse(plain, nullptr, false);
  if (value.is_discarded()) return refuse("not valid JSON");
  return value;
}

}  // namespace monomoe
