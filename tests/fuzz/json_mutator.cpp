// Picks a node by walking the tree; each change is small, so that several of them keep most of a document sound.
#include "json_mutator.hpp"

#include <algorithm>

namespace monomoe::fuzz {
namespace {

constexpr size_t kMostNodes = 4000;

void collect(Json& node, std::vector<Json*>& out) {
  if (out.size() >= kMostNodes) return;
  out.push_back(&node);
  if (!node.is_structured()) return;
  for (Json& child : node) collect(child, out);
}

Json any_number(Random& random) {
  constexpr uint64_t kLimits[] = {0,
                                  1,
                                  2,
                                  3,
                                  8,
                                  15,
                                  16,
                                  17,
                                  31,
                                  32,
                                  33,
                                  63,
                                  64,
                                  65,
                                  80,
                                  96,
                                  127,
                                  128,
                                  129,
                                  192,
                                  255,
                                  256,
                                  1024,
                                  32768,
                                  32769,
                                  65535,
                                  99999,
                                  100000,
                                  1u << 20,
                                  1000000,
                                  1000001,
                                  1000000000,
                                  1000000001,
                                  0x7FFFFFFF,
                                  0x80000000,
                                  0xFFFFFFFF,
                                  0x100000000,
                                  0x7FFFFFFFFFFFFFFF,
                                  0x8000000000000000,
                                  0xFFFFFFFFFFFFFFFF};
  const uint64_t limit = random.pick(kLimits);
  switch (random.below(6)) {
    case 0:
      return -static_cast<int64_t>(limit >> 1);
    case 1:
      return static_cast<double>(limit) * 0.5;
    case 2: {
      constexpr double kFloats[] = {0.0, -0.0, 0.5, 1e-40, 1e-46, 1e-320, 3.5e38, 1e300, -1.0, 10.0, 448.0};
      return random.pick(kFloats);
    }
    default:
      return limit;
  }
}

std::string any_string(const Vocabulary& vocabulary, Random& random) {
  static const std::string kOdd[] = {"",
                                     ".",
                                     "..",
                                     "/",
                                     "a/b",
                                     "../model.safetensors",
                                     "*",
                                     "re:.*",
                                     "NaN",
                                     "Infinity",
                                     "-Infinity",
                                     std::string(300, 'a'),
                                     std::string(5000, '*'),
                                     "\xff\xfe",
                                     "caf\xc3\xa9",
                                     "a\nb",
                                     "\x01",
                                     "\\u0000",
                                     "-1",
                                     "00",
                                     "99999",
                                     "100000",
                                     "18446744073709551616"};
  return random.one_in(3) ? random.pick(kOdd) : std::string(random.pick(vocabulary.words));
}

Json any_value(const Vocabulary& vocabulary, Random& random) {
  switch (random.below(8)) {
    case 0:
      return nullptr;
    case 1:
      return random.one_in(2);
    case 2:
      return Json::array();
    case 3:
      return Json::object();
    case 4:
    case 5:
      return any_string(vocabulary, random);
    default:
      return any_number(random);
  }
}

void change_string(std::string& text, const Vocabulary& vocabulary, Random& random) {
  const size_t at = random.below(text.size() + 1);
  switch (random.below(6)) {
    case 0:
      text.insert(at, std::string(random.pick(vocabulary.words)));
      break;
    case 1:
      text.erase(at, 1 + random.below(8));
      break;
    case 2: {  // another number where one stands
      const size_t digit = text.find_first_of("0123456789", at);
      if (digit != std::string::npos) text.replace(digit, 1, std::to_string(random.below(random.one_in(4) ? 200000 : 12)));
      break;
    }
    case 3:
      if (at < text.size()) text[at] = static_cast<char>(random.below(256));
      break;
    case 4:
      text = std::string(random.pick(vocabulary.keys)) + text;
      break;
    default:
      text = any_string(vocabulary, random);
  }
}

void change_number(Json& node, Random& random) {
  if (node.is_number_float() || random.one_in(3)) {
    node = any_number(random);
    return;
  }
  const uint64_t value = node.get<uint64_t>();
  constexpr int64_t kSteps[] = {-128, -16, -8, -2, -1, 1, 2, 8, 16, 128};
  if (random.one_in(3)) {
    node = random.one_in(2) ? value * 2 : value / 2;
  } else {
    node = value + static_cast<uint64_t>(random.pick(kSteps));
  }
}

void change_object(Json& node, const Vocabulary& vocabulary, Random& random, const Json& donor) {
  if (!node.empty() && random.one_in(2)) {
    auto child = node.begin();
    std::advance(child, static_cast<std::ptrdiff_t>(random.below(node.size())));
    if (random.one_in(2)) {
      node.erase(child);
      return;
    }
    std::string key = child.key();
    const Json value = child.value();
    if (random.one_in(2)) node.erase(child);  // else: the same value under two names
    change_string(key, vocabulary, random);
    node[key] = value;
    return;
  }
  const std::string key = random.one_in(6) ? any_string(vocabulary, random) : std::string(random.pick(vocabulary.keys));
  Json value = random.one_in(2) ? Json(donor) : any_value(vocabulary, random);
  node[key] = std::move(value);
}

void change_array(Json& node, const Vocabulary& vocabulary, Random& random, const Json& donor) {
  if (!node.empty() && random.one_in(3)) {
    node.erase(random.below(node.size()));
  } else if (!node.empty() && random.one_in(3)) {
    std::swap(node[random.below(node.size())], node[random.below(node.size())]);
  } else if (random.one_in(40)) {
    const Json copy = donor;
    for (size_t i = random.below(80); i > 0; --i) node.push_back(copy);
  } else {
    Json value = random.one_in(2) ? Json(donor) : any_value(vocabulary, random);
    node.push_back(std::move(value));
  }
}

void wrap(Json& node, Random& random) {
  constexpr size_t kDepths[] = {1, 1, 1, 2, 3, 62, 63, 64, 65, 300};
  const bool in_array = random.one_in(2);
  Json inner = std::move(node);
  for (size_t i = random.pick(kDepths); i > 0; --i) {
    Json outer = in_array ? Json::array() : Json::object();
    if (in_array) {
      outer.push_back(std::move(inner));
    } else {
      outer["a"] = std::move(inner);
    }
    inner = std::move(outer);
  }
  node = std::move(inner);
}

void escape(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      constexpr const char* kHex = "0123456789abcdef";
      out.append("\\u00").append(1, kHex[(c >> 4) & 15]).append(1, kHex[c & 15]);
    } else {
      out += c;
    }
  }
  out += '"';
}

void write(std::string& out, const Json& node, Random& random, bool is_odd) {
  if (is_odd && random.one_in(60)) {
    constexpr const char* kTokens[] = {"NaN", "-Infinity", "1e999", "-0", "00", "18446744073709551616", "tru", "\"\\ud800\"", "'a'",
                                       "",    "/**/1",     "0x10",  "1.", "{,}"};
    out += random.pick(kTokens);
  } else if (node.is_object()) {
    out += '{';
    bool first = true;
    for (const auto& [key, value] : node.items()) {
      for (int times = is_odd && random.one_in(60) ? 2 : 1; times > 0; --times) {
        if (!first) out += ',';
        first = false;
        escape(out, key);
        out += ':';
        write(out, value, random, is_odd);
      }
    }
    out += '}';
  } else if (node.is_array()) {
    out += '[';
    for (size_t i = 0; i < node.size(); ++i) {
      if (i != 0) out += ',';
      write(out, node[i], random, is_odd);
    }
    out += ']';
  } else if (node.is_string()) {
    escape(out, node.get_ref<const std::string&>());
  } else {
    out += node.dump();
  }
}

}  // namespace

void mutate_json(Json& document, const Vocabulary& vocabulary, Random& random) {
  for (size_t changes = 1 + random.below(4); changes > 0; --changes) {
    std::vector<Json*> nodes;
    collect(document, nodes);
    Json& node = *nodes[random.below(nodes.size())];
    const Json& donor = *nodes[random.below(nodes.size())];  // of the same tree: copied before it is put anywhere
    if (random.one_in(12)) {
      wrap(node, random);
    } else if (random.one_in(8)) {
      Json value = random.one_in(2) ? Json(donor) : any_value(vocabulary, random);
      node = std::move(value);
    } else if (node.is_object()) {
      change_object(node, vocabulary, random, donor);
    } else if (node.is_array()) {
      change_array(node, vocabulary, random, donor);
    } else if (node.is_string()) {
      change_string(node.get_ref<std::string&>(), vocabulary, random);
    } else if (node.is_number()) {
      change_number(node, random);
    } else {
      node = any_value(vocabulary, random);
    }
  }
}

std::string write_json(const Json& document, Random& random) {
  std::string out;
  write(out, document, random, random.one_in(8));
  return out;
}

}  // namespace monomoe::fuzz
