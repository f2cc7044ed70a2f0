// weight_map and nothing else is used; the rest of the index is only checked to be JSON.
#include "weights/tensor_index.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "weights/json_text.hpp"
#include "weights/text.hpp"

namespace monomoe {
namespace {

// A shard is a file of the checkpoint's own directory: an index must not be able to point anywhere else.
bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name[0] != '.' &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

}  // namespace

Result<std::vector<IndexedTensor>> parse_tensor_index(std::span<const uint8_t> json, std::string_view file) {
  Result<nlohmann::json> parsed = parse_json_strict({reinterpret_cast<const char*>(json.data()), json.size()}, file);
  if (!parsed) return parsed.error();
  const nlohmann::json& root = parsed.value();
  if (!root.is_object() || !root.contains("weight_map") || !root["weight_map"].is_object()) {
    return bad_input(
        fmt::format("{}: found no object \"weight_map\", wanted one that maps tensor names to files; fetch the index again, or "
                    "remove it to read every shard",
                    printable(file)));
  }
  ProblemList problems(20, printable(file) + ": ");
  std::vector<IndexedTensor> out;
  for (const auto& [tensor, shard] : root["weight_map"].items()) {
    if (!shard.is_string()) {
      problems.add(fmt::format("tensor \"{}\": found {} as its file, wanted a file name; fetch the index again", printable(tensor), shard.type_name()));
      continue;
    }
    const auto& name = shard.get_ref<const std::string&>();
    if (!is_plain_file_name(name)) {
      problems.add(
          fmt::format("tensor \"{}\": found the file \"{}\", wanted the name of a file in the same directory (no '/', no leading '.'); fetch the index again",
                      printable(tensor), printable(name)));
      continue;
    }
    out.push_back({tensor, name});
  }
  if (problems.empty() && out.empty()) problems.add("weight_map names no tensor; fetch the index again, or remove it to read every shard");
  if (!problems.empty()) return bad_input(problems.text());
  return out;
}

}  // namespace monomoe
