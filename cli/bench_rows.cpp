// See bench_rows.hpp.
#include "bench_rows.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>

#include "output.hpp"
#include "text_file.hpp"

namespace monomoe::cli {
namespace {

constexpr const char* kDefaultTokens = "1,16,256";

// One rank's share of a model's experts in an 8-rank group.
struct Geometry {
  const char* name;
  int64_t hidden, intermediate, local_experts, topk;
};
constexpr Geometry kGeometries[] = {{"flash", 4096, 2048, 32, 6}, {"pro", 7168, 3072, 48, 6}, {"mimo", 6144, 2048, 48, 8}};

struct RoutingChoice {
  monomoe_bench_routing kind = MONOMOE_ROUTING_UNIFORM;
  double value = 0;
};

RoutingChoice routing_from_word(const std::string& word) {
  const size_t colon = word.find(':');
  const std::string kind = word.substr(0, colon), number = colon == std::string::npos ? "" : word.substr(colon + 1);
  if (word == "uniform") return {};
  double value = -1;
  const auto [stop, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  const bool is_number = error == std::errc() && stop == number.data() + number.size() && std::isfinite(value) && value >= 0;
  if (kind == "zipf" && is_number) return {MONOMOE_ROUTING_ZIPF, value};
  if (kind == "hot" && is_number && value <= 1) return {MONOMOE_ROUTING_HOT, value};
  usage_error(fmt::format("--routing {}: wanted uniform, zipf:S with the exponent S (0 or more), or hot:F with the share F (0 to 1) of the tokens that "
                          "go to one expert", word));
}

monomoe_launch launch_number(const std::string& word) {
  if (word == "split") return MONOMOE_LAUNCH_SPLIT;
  return word == "unfused" ? MONOMOE_LAUNCH_UNFUSED : MONOMOE_LAUNCH_ONE;
}

monomoe_bench_mode mode_number(const std::string& word) {
  if (word == "graph") return MONOMOE_BENCH_GRAPH;
  return word == "back-to-back" ? MONOMOE_BENCH_BACK_TO_BACK : MONOMOE_BENCH_COLD;
}

// An entry of --tokens: the number of each rank, or one for all ranks.
std::vector<int64_t> tokens_from_word(const std::string& word, const BenchOptions& options) {
  std::vector<int64_t> tokens;
  const std::vector<std::string> parts = split_at(word, '+');
  const int64_t least = parts.size() > 1 ? 0 : 1;
  for (const std::string& part : parts) {
    const std::optional<int64_t> count = whole_number(part);
    if (!count || *count < least || *count > int64_t{1} << 20)
      usage_error(fmt::format("--tokens {}: '{}' must be a number of tokens of {}, {}..{}", options.tokens, part, parts.size() > 1 ? "a rank" : "each rank",
                              least, int64_t{1} << 20));
    tokens.push_back(*count);
  }
  if (tokens.size() > 1 && tokens.size() != static_cast<size_t>(options.num_ranks))
    usage_error(fmt::format("--tokens {}: '{}' has {} numbers, --ranks is {}; give one for each rank, or one for all", options.tokens, word, tokens.size(),
                            options.num_ranks));
  if (std::ranges::max(tokens) == 0) usage_error(fmt::format("--tokens {}: '{}' is 0 on all ranks; a benchmark needs a token", options.tokens, word));
  return tokens;
}

std::vector<std::vector<int64_t>> tokens_of(const BenchOptions& options) {
  std::vector<std::vector<int64_t>> tokens;
  for (const std::string& word : split_at(options.tokens.empty() ? kDefaultTokens : options.tokens, ',')) tokens.push_back(tokens_from_word(word, options));
  return tokens;
}

std::vector<std::string> words_or(const std::vector<std::string>& given, const char* otherwise) {
  return given.empty() ? std::vector<std::string>{otherwise} : given;
}

// The geometry by its four numbers, of which all or none are given.
bool has_numbers(const BenchOptions& options) {
  const std::pair<const char*, int64_t> numbers[] = {
      {"--hidden", options.hidden}, {"--intermediate", options.intermediate}, {"--experts", options.experts}, {"--topk", options.topk}};
  std::string missing;
  for (const auto& [name, value] : numbers)
    if (value < 0) missing += std::string(missing.empty() ? "" : ", ") + name;
  const bool none = std::ranges::all_of(numbers, [](const auto& number) { return number.second < 0; });
  if (!none && !missing.empty()) usage_error(fmt::format("bench needs {} too, or --geometry, which says all of them", missing));
  return !none;
}

std::vector<monomoe_bench_layer> geometries_of(const BenchOptions& options) {
  std::vector<monomoe_bench_layer> layers;
  monomoe_bench_layer layer = {};
  layer.struct_size = sizeof(layer);
  if (has_numbers(options)) {
    layer.hidden = options.hidden;
    layer.intermediate = options.intermediate;
    layer.experts = options.experts;
    layer.topk = options.topk;
    return {layer};
  }
  for (const std::string& name : words_or(options.geometries, "flash")) {
    const auto geometry = std::ranges::find_if(kGeometries, [&](const Geometry& one) { return name == one.name; });
    layer.hidden = geometry->hidden;
    layer.intermediate = geometry->intermediate;
    layer.experts = geometry->local_experts * options.num_ranks;
    layer.topk = geometry->topk;
    layers.push_back(layer);
  }
  return layers;
}

monomoe_bench_call first_call(const BenchOptions& options) {
  monomoe_bench_call call = {};
  call.struct_size = sizeof(call);
  call.repeats = options.repeats;
  call.check = options.check ? 1 : 0;
  return call;
}

// With every launch and mode.
std::vector<RowCall> launched(const BenchOptions& options, const monomoe_bench_call& call) {
  std::vector<RowCall> calls;
  for (const std::string& launch : words_or(options.launches, "one")) {
    for (const std::string& mode : words_or(options.modes, "cold")) {
      calls.push_back({call, {}});
      calls.back().call.launch = launch_number(launch);
      calls.back().call.mode = mode_number(mode);
    }
  }
  return calls;
}

std::vector<LayerRows> layers_of_file(const BenchOptions& options) {
  std::vector<LayerRows> layers;
  for (const TextLine& line : read_lines("--cases", options.cases)) {
    LayerRows rows;
    monomoe_bench_call call = first_call(options);
    rows.layer.struct_size = sizeof(rows.layer);
    rows.from_file = true;
    const monomoe_status status = monomoe_bench_case(line.text.c_str(), &rows.layer, &call, &rows.ranks);
    if (status != MONOMOE_OK)
      throw Failure(exit_code(status, Origin::kFile),
                    fmt::format("{}:{}: {}: {}", options.cases, line.number, shortened(line.text), monomoe_last_error()));
    rows.calls = launched(options, call);
    layers.push_back(std::move(rows));
  }
  if (layers.empty()) input_error(fmt::format("{}: holds no case", options.cases));
  return layers;
}

}  // namespace

monomoe_bench_call RowCall::view() const {
  monomoe_bench_call seen = call;
  seen.tokens_per_rank = tokens_per_rank.empty() ? nullptr : tokens_per_rank.data();
  return seen;
}

std::vector<LayerRows> layers_of(const BenchOptions& options) {
  if (!options.cases.empty()) return layers_of_file(options);
  const std::vector<std::vector<int64_t>> tokens = tokens_of(options);
  int64_t most = 0;
  for (const std::vector<int64_t>& counts : tokens) most = std::max(most, std::ranges::max(counts));
  if (options.capacity >= 0 && options.capacity < most)
    usage_error(fmt::format("--capacity is {}, but --tokens has {}; raise --capacity, or measure fewer tokens", options.capacity, most));
  std::vector<RowCall> calls;
  for (const RowCall& row : launched(options, first_call(options))) {
    for (const std::string& word : words_or(options.routings, "uniform")) {
      const RoutingChoice routing = routing_from_word(word);
      for (const std::vector<int64_t>& counts : tokens) {
        calls.push_back(row);
        calls.back().call.routing = routing.kind;
        calls.back().call.routing_value = routing.value;
        if (counts.size() > 1) calls.back().tokens_per_rank = counts;
        else calls.back().call.num_tokens = counts[0];
      }
    }
  }
  std::vector<LayerRows> layers;
  for (monomoe_bench_layer layer : geometries_of(options)) {
    layer.capacity = options.capacity >= 0 ? options.capacity : most;
    layer.swiglu_limit = swiglu_limit_of(options.swiglu_limit);
    layer.seed = options.seed;
    for (const std::string& word : words_or(options.weights, "nvfp4")) {
      layer.format = *format_from_word(word);
      layers.push_back({layer, options.num_ranks, calls, false});
    }
  }
  return layers;
}

Settings settings_of(const BenchOptions& options) {
  const auto words = [](const std::vector<std::string>& list) { return or_not_given(fmt::format("{}", fmt::join(list, ","))); };
  const auto number = [](int64_t value) { return value < 0 ? "not given" : std::to_string(value); };
  return {{"--cases", options.cases.empty() ? "not given" : file_given(options.cases)},
          {"--ranks", std::to_string(options.num_ranks)},
          {"--geometry", words(options.geometries)},
          {"--hidden", number(options.hidden)},
          {"--intermediate", number(options.intermediate)},
          {"--experts", number(options.experts)},
          {"--topk", number(options.topk)},
          {"--weights", words(options.weights)},
          {"--capacity", number(options.capacity)},
          {"--swiglu-limit", options.swiglu_limit},
          {"--seed", std::to_string(options.seed)},
          {"--launch", words(options.launches)},
          {"--mode", words(options.modes)},
          {"--repeats", std::to_string(options.repeats)},
          {"--check", options.check ? "given" : "not given"},
          {"--routing", words(options.routings)},
          {"--tokens", or_not_given(options.tokens)}};
}

void add_bench_options(CLI::App& parser, BenchOptions& options) {
  const auto list = [&](const char* name, std::vector<std::string>& words, const char* help) {
    return parser.add_option(name, words, help)->delimiter(',')->allow_extra_args(false);
  };
  CLI::Option* cases = parser.add_option("--cases", options.cases, "file of cases (docs/cases.md), one a line: geometry, weights, tokens, dist, ranks and seed");
  std::vector<CLI::Option*> of_options = {
      list("--geometry", options.geometries, "flash, pro or mimo: 1/8 of the experts of DeepSeek-V4-Flash, -Pro and MiMo on each rank, a,b,.. [flash]")
          ->check(CLI::IsMember({"flash", "pro", "mimo"})),
      parser.add_option("--hidden", options.hidden, "channels of a token, instead of --geometry"),
      parser.add_option("--intermediate", options.intermediate, "channels between the two GEMMs"),
      parser.add_option("--experts", options.experts, "routed experts over all ranks"),
      parser.add_option("--topk", options.topk, "slots of a token"),
      list("--weights", options.weights, "fp8, nvfp4 or mxfp4, a,b,.. [nvfp4]")->check(CLI::IsMember({"fp8", "nvfp4", "mxfp4"})),
      parser.add_option("--tokens", options.tokens, "tokens of each rank, a,b,.., or of the ranks in order, a+b+.. (zeros are legal) [1,16,256]"),
      parser.add_option("--capacity", options.capacity, "most tokens a rank may bring: what the workspace is made for [the largest of --tokens]")
          ->check(whole_number_in(1, int64_t{1} << 20)),
      list("--routing", options.routings, "uniform, zipf:S (exponent) or hot:F (share of the tokens that go to expert 0), a,b,.. [uniform]"),
      parser.add_option("--ranks", options.num_ranks, "ranks; all in this process, but with --processes or --rank [1]")->check(whole_number_in(1, 64)),
      parser.add_option("--swiglu-limit", options.swiglu_limit, "clamp of gate and up; 0 or inf is none [10]"),
      parser.add_option("--seed", options.seed, "of weights, tokens and routes [1]"),
  };
  for (size_t i = 1; i < 5; ++i) of_options[i]->excludes(of_options[0])->check(whole_number_in(1, int64_t{1} << 20));
  for (CLI::Option* option : of_options) cases->excludes(option);
  list("--launch", options.launches, "of backend cuda: one launch a call, split (two) or unfused (a kernel a step), a,b,.. [one]")
      ->check(CLI::IsMember({"one", "split", "unfused"}));
  list("--mode", options.modes, "before each call: cold (caches emptied), graph (the same, replayed from a CUDA graph) or back-to-back, a,b,.. [cold]")
      ->check(CLI::IsMember({"cold", "graph", "back-to-back"}));
  parser.add_option("--repeats", options.repeats, "timed samples of each row [20]")->check(whole_number_in(1, 10000));
  parser.add_flag("--check", options.check, "compare every row of backend cuda with backend cpu bit by bit, not the small ones alone");
  parser.add_option("--trace", options.trace, "file for a Chrome trace of one more launch of each row (ui.perfetto.dev opens it)");
  add_process_options(parser, options.processes);
  add_machine_options(parser, options.context);
  parser.add_flag("--json", options.json, "report as JSON on standard output");
}

}  // namespace monomoe::cli
