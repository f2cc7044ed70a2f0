// Shared options: how they are spelled, and what makes them wrong.
#include "options.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "output.hpp"
#include "text_file.hpp"

namespace monomoe::cli {

namespace {

monomoe_launch launch_from_word(const std::string& word) {
  if (word == "one") return MONOMOE_LAUNCH_ONE;
  if (word == "split") return MONOMOE_LAUNCH_SPLIT;
  return word == "unfused" ? MONOMOE_LAUNCH_UNFUSED : MONOMOE_LAUNCH_AUTO;
}

}  // namespace

monomoe_context_options ContextOptions::view(int32_t num_ranks) const {
  monomoe_context_options options = {};
  options.struct_size = sizeof(options);
  options.backend = backend == "cpu" ? MONOMOE_BACKEND_CPU : backend == "cuda" ? MONOMOE_BACKEND_CUDA : MONOMOE_BACKEND_AUTO;
  options.num_ranks = num_ranks;
  options.num_threads = threads;
  options.vector_bits = vector_bits;
  options.timeout_ms = static_cast<uint32_t>(std::lround(timeout_seconds * 1000));
  options.launch = launch_from_word(launch);
  return options;
}

Context ContextOptions::create(int32_t num_ranks) const {
  const monomoe_context_options options = view(num_ranks);
  monomoe_context* handle = nullptr;
  check(monomoe_context_create(&options, &handle));
  return Context(handle);
}

CLI::Validator whole_number_in(int64_t least, int64_t most) {
  const auto check = [least, most](const std::string& word) {
    const std::optional<int64_t> value = whole_number(word);
    if (!value) return fmt::format("'{}' is no whole number, wanted {} to {}", shortened(word), least, most);
    return *value < least || *value > most ? fmt::format("Value {} not in range {} to {}", word, least, most) : std::string();
  };
  return CLI::Validator(check, fmt::format("INT in [{} - {}]", least, most));
}

std::vector<CLI::Option*> add_machine_options(CLI::App& parser, ContextOptions& options) {
  return {
      parser.add_option("--backend", options.backend, "auto (the best this machine runs), cpu or cuda")
          ->check(CLI::IsMember({"auto", "cpu", "cuda"})),
      parser.add_option("--threads", options.threads, "CPU threads over all ranks; at least one a rank [one per core]")
          ->check(whole_number_in(1, 4096)),
      parser.add_option("--vector-bits", options.vector_bits, "CPU vector width [widest here]; the result's bits do not depend on it")
          ->check(CLI::IsMember({128, 256, 512})),
      parser.add_option("--timeout", options.timeout_seconds, "longest wait of a rank for another, seconds [3600]")
          ->check(CLI::Range(0.001, 4.0e6)),
  };
}

std::vector<CLI::Option*> add_context_options(CLI::App& parser, ContextOptions& options) {
  std::vector<CLI::Option*> added = {
      parser.add_option("--launch", options.launch, "of backend cuda: one launch a call, split (two) or unfused (a kernel a step); same bits [auto: one]")
          ->check(CLI::IsMember({"auto", "one", "split", "unfused"}))};
  const std::vector<CLI::Option*> machine = add_machine_options(parser, options);
  added.insert(added.end(), machine.begin(), machine.end());
  return added;
}

std::vector<CLI::Option*> add_process_options(CLI::App& parser, ProcessOptions& options) {
  CLI::Option* processes = parser.add_flag("--processes", options.processes, "each rank is a process of its own, started here; on GPUs: one GPU each while there are enough");
  CLI::Option* rank = parser.add_option("--rank", options.rank, "this process is rank R, started by another launcher; rank 0 reports and writes the output")
                          ->check(whole_number_in(0, 63));
  CLI::Option* world = parser.add_option("--world", options.world, "name under which the ranks of --rank meet: the same for all, another for each run");
  rank->needs(world);
  world->needs(rank);
  return {processes, rank, world};
}

std::vector<CLI::Option*> add_layer_options(CLI::App& parser, LayerOptions& options) {
  std::vector<CLI::Option*> added = {
      parser.add_option("--ranks", options.num_ranks, "ranks of this run; all in this process, but with --processes or --rank [1]")->check(whole_number_in(1, 64)),
      parser.add_option("--tokens-per-rank", options.tokens_per_rank, "rows of each rank in order, a,b,..; zeros are legal [as even as possible]"),
      parser.add_option("--capacity", options.capacity, "most tokens a rank may bring [the largest rank's tokens]")
          ->check(whole_number_in(0, int64_t{1} << 20)),
      parser.add_option("--placement", options.placement, "file of lines 'expert rank' or 'expert rank slot' [in order, even]"),
      parser.add_option("--swiglu-limit", options.swiglu_limit_word, "clamp of gate and up; 0 or inf is none [config.json's]"),
  };
  for (const std::vector<CLI::Option*>& more : {add_process_options(parser, options.processes), add_context_options(parser, options.context)})
    added.insert(added.end(), more.begin(), more.end());
  return added;
}

std::string LayerOptions::where() const { return fmt::format("{}, layer {}", directory, layer); }

float swiglu_limit_of(const std::string& word) {
  char* end = nullptr;
  errno = 0;
  const double value = std::strtod(word.c_str(), &end);
  const bool out_of_range = errno == ERANGE, is_hexadecimal = word.find_first_of("xX") != std::string::npos;
  if (word.empty() || *end != '\0' || std::isnan(value) || value < 0 || is_hexadecimal)
    usage_error(fmt::format("--swiglu-limit {}: wanted a decimal number above 0, or 0 or inf for no clamp", word));
  const auto limit = static_cast<float>(value);
  // A limit that only rounding turns into "none" was not meant as none.
  if (out_of_range || (limit == 0 && value != 0) || (std::isinf(limit) && !std::isinf(value)))
    usage_error(fmt::format("--swiglu-limit {}: no such number in fp32; give 0 or inf for no clamp", word));
  return std::isinf(limit) || limit == 0 ? 0.0f : limit;  // -0 is 0
}

std::optional<float> LayerOptions::swiglu_limit() const {
  if (swiglu_limit_word.empty()) return std::nullopt;
  return swiglu_limit_of(swiglu_limit_word);
}

std::vector<int64_t> LayerOptions::dealt(int64_t tokens) const {
  std::vector<int64_t> counts;
  if (tokens_per_rank.empty()) {
    for (int64_t rank = 0; rank < num_ranks; ++rank) counts.push_back(tokens / num_ranks + (rank < tokens % num_ranks ? 1 : 0));
    return counts;
  }
  for (const std::string& word : split_at(tokens_per_rank, ',')) {
    const std::optional<int64_t> count = whole_number(word);
    if (!count || *count < 0 || *count > tokens)
      usage_error(fmt::format("--tokens-per-rank {}: entry '{}' must be a number of rows, 0..{} ({} has {} rows)", tokens_per_rank, word,
                              tokens, input, tokens));
    counts.push_back(*count);
  }
  if (counts.size() != static_cast<size_t>(num_ranks))
    usage_error(fmt::format("--tokens-per-rank has {} entries, --ranks is {}; give one entry a rank", counts.size(), num_ranks));
  int64_t sum = 0;
  for (const int64_t count : counts) sum += count;
  if (sum != tokens)
    usage_error(fmt::format("--tokens-per-rank {} deals {} rows, but 'x' of {} has {}; the entries must add up", tokens_per_rank, sum, input,
                            tokens));
  return counts;
}

int64_t LayerOptions::capacity_for(const std::vector<int64_t>& counts) const {
  const auto largest = std::max_element(counts.begin(), counts.end());
  if (capacity < 0) return *largest;
  if (*largest > capacity)
    usage_error(fmt::format("rank {} brings {} tokens, --capacity is {}; raise --capacity to at least {}, or deal the rows with "
                            "--ranks or --tokens-per-rank",
                            largest - counts.begin(), *largest, capacity, *largest));
  return capacity;
}

std::optional<monomoe_format> format_from_word(const std::string& word) {
  for (const monomoe_format format : {MONOMOE_FP8, MONOMOE_NVFP4, MONOMOE_MXFP4})
    if (word == format_word(format)) return format;
  return std::nullopt;
}

namespace {

namespace fs = std::filesystem;

// Writing OUT must not change the checkpoint that is read: neither one of its files, by whatever name, nor the set of its shards.
void check_not_of_checkpoint(const std::string& output, const std::string& directory) {
  std::error_code ignored;
  const fs::path path(output);
  for (fs::directory_iterator entry(directory, ignored), end; entry != end; entry.increment(ignored))
    if (fs::equivalent(path, entry->path(), ignored))
      usage_error(fmt::format("--output {} is the file {} of the checkpoint; name another file", output, entry->path().string()));
  const fs::path folder = fs::weakly_canonical(path.has_parent_path() ? path.parent_path() : fs::path("."), ignored);
  const fs::path checkpoint = fs::canonical(directory, ignored);
  const bool inside = !checkpoint.empty() && std::mismatch(checkpoint.begin(), checkpoint.end(), folder.begin(), folder.end()).first == checkpoint.end();
  if (inside && path.extension() == ".safetensors")
    usage_error(fmt::format("--output {} would become a shard of the checkpoint {}; name a file outside it", output, directory));
}

// Whether a name is in a folder of devices or processes: what a link there leads to is whatever a process has open.
bool is_of_the_system(const fs::path& path) {
  std::error_code ignored;
  const std::string folder = fs::weakly_canonical(path.has_parent_path() ? path.parent_path() : fs::path("."), ignored).string() + "/";
  return folder.starts_with("/proc/") || (folder.starts_with("/dev/") && !folder.starts_with("/dev/shm/"));
}

// What the links of an output lead to, which is what is written.
fs::path behind_links(const char* option, const std::string& output) {
  constexpr int kMostLinks = 40;  // as many as the system follows
  std::error_code code;
  fs::path at(output);
  for (int links = 0; fs::is_symlink(at, code); ++links) {
    if (is_of_the_system(at)) usage_error(fmt::format("{} {}: {} is a link of the system's devices and processes; name a file", option, output, at.string()));
    const fs::path target = fs::read_symlink(at, code);
    at = target.is_absolute() ? target : at.parent_path() / target;
    if (code || links == kMostLinks || fs::symlink_status(at, code).type() == fs::file_type::not_found)
      usage_error(fmt::format("{} {}: is a link to nothing; choose another name or remove it", option, output));
  }
  return at;
}

}  // namespace

void check_output_place(const char* option, const std::string& output) {
  std::error_code ignored;
  const fs::path path = behind_links(option, output);
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (!fs::is_directory(folder, ignored))
    usage_error(fmt::format("{} {}: directory {} does not exist; create it first", option, output, folder.string()));
  if (!path.has_filename() || (fs::exists(path, ignored) && !fs::is_regular_file(path, ignored)))
    usage_error(fmt::format("{} {}: is there and is no regular file; name a file", option, output));
  if (access(folder.c_str(), W_OK) != 0)
    input_error(fmt::format("{} {}: no right to write in directory {}: {}", option, output, folder.string(), std::strerror(errno)));
}

void check_output_path(const std::string& output, const LayerOptions& layer) {
  std::error_code ignored;
  const fs::path path(output);
  check_output_place("--output", output);
  if (fs::equivalent(path, fs::path(layer.input), ignored))
    usage_error(fmt::format("--output {} is the input file {}; name another file", output, layer.input));
  if (!layer.placement.empty() && fs::equivalent(path, fs::path(layer.placement), ignored))
    usage_error(fmt::format("--output {} is the placement file {}; name another file", output, layer.placement));
  check_not_of_checkpoint(output, layer.directory);
}

}  // namespace monomoe::cli
