// Changes JSON as a tree: values, keys, nesting and numbers at their limits, so that what a fuzzer makes still reaches past the parser.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace monomoe::fuzz {

using Json = nlohmann::ordered_json;

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  size_t below(size_t limit) { return limit == 0 ? 0 : static_cast<size_t>(engine_() % limit); }
  bool one_in(size_t n) { return below(n) == 0; }
  template <class Container>
  const auto& pick(const Container& items) {
    return items[below(std::size(items))];
  }

 private:
  std::mt19937_64 engine_;
};

// Words of the format under test; numbers and odd strings are added by the mutator itself.
struct Vocabulary {
  std::vector<std::string_view> keys, words;
};

// One to four changes somewhere in `document`.
void mutate_json(Json& document, const Vocabulary& vocabulary, Random& random);

// As text. Now and then a key is written twice, or a token stands there that JSON does not have.
std::string write_json(const Json& document, Random& random);

}  // namespace monomoe::fuzz
