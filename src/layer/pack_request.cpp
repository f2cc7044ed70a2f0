// Lists are written as numbers and ranges: "0,3..5,mtp.0".
#include "layer/pack_request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <thread>

#include "layer/arguments.hpp"
#include "plan/problem.h"
#include "plan/problem_text.hpp"
#include "weights/text.hpp"

namespace monomoe::layer {
namespace {

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || text[0] == '-' || error != std::errc() || end != text.data() + text.size() || value > 99999) return std::nullopt;
  return value;
}

std::vector<std::string_view> pieces(std::string_view text) {
  std::vector<std::string_view> out;
  for (size_t comma = text.find(','); comma != std::string_view::npos; comma = text.find(',')) {
    out.push_back(text.substr(0, comma));
    text.remove_prefix(comma + 1);
  }
  out.push_back(text);
  return out;
}

// "3" or "3..5", both ends included.
std::optional<std::pair<int64_t, int64_t>> number_range(std::string_view piece) {
  const size_t dots = piece.find("..");
  const std::optional<int64_t> first = whole_number(piece.substr(0, dots));
  const std::optional<int64_t> last = dots == std::string_view::npos ? first : whole_number(piece.substr(dots + 2));
  if (!first || !last || *last < *first) return std::nullopt;
  return std::pair{*first, *last};
}

template <class T>
void sort_unique(std::vector<T>& list) {
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
}

Result<std::vector<LayerId>> read_layers(std::string_view text) {
  std::vector<LayerId> out;
  for (std::string_view piece : pieces(text)) {
    const bool mtp = piece.starts_with("mtp.");
    const auto range = number_range(mtp ? piece.substr(4) : piece);
    if (!range) {
      return usage_error(fmt::format("options->layers is '{}': '{}' is no layer; wanted numbers, ranges and mtp blocks like 0,3..5,mtp.0",
                                     printable(text), printable(piece)));
    }
    for (int64_t i = range->first; i <= range->second; ++i) out.push_back({mtp, static_cast<int>(i)});
  }
  sort_unique(out);
  return out;
}

Result<std::vector<int64_t>> read_experts(std::string_view text) {
  std::vector<int64_t> out;
  for (const std::string_view piece : pieces(text)) {
    const auto range = number_range(piece);
    if (!range) {
      return usage_error(fmt::format("options->experts is '{}': '{}' is no expert; wanted numbers and ranges like 0..15,20",
                                     printable(text), printable(piece)));
    }
    for (int64_t i = range->first; i <= range->second; ++i) out.push_back(i);
  }
  sort_unique(out);
  return out;
}

}  // namespace

Result<PackRequest> read_pack_request(const monomoe_pack_options& options) {
  if (auto given = require_pointer(options.to, "options->to"); !given) return given.error();
  PackRequest request;
  request.to = options.to;
  if (request.to != "packed") {
    request.format = weight_format_from_text(request.to);
    if (!request.format || *request.format == WeightFormat::kBf16)
      return usage_error(fmt::format("options->to is '{}', wanted fp8, nvfp4, mxfp4 or packed", printable(request.to)));
  }
  request.allow_rounding = options.allow_rounding != 0;
  if (options.layers != nullptr) {
    auto layers = read_layers(options.layers);
    if (!layers) return layers.error();
    request.layers = layers.take();
  }
  if (options.experts != nullptr) {
    auto experts = read_experts(options.experts);
    if (!experts) return experts.error();
    request.experts = experts.take();
  }
  if (options.num_threads < 0) return usage_error(fmt::format("options->num_threads is {}, wanted 1 or more, or 0", options.num_threads));
  request.threads = options.num_threads != 0 ? options.num_threads : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  request.callback = options.callback;
  request.user = options.user;
  return request;
}

}  // namespace monomoe::layer
