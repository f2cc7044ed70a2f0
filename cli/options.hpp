// Options that several commands share, and their checks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "handles.hpp"

namespace CLI {
class App;
class Option;
class Validator;
}

namespace monomoe::cli {

// The machine a command computes on.
struct ContextOptions {
  std::string backend = "auto", launch = "auto";
  int32_t threads = 0, vector_bits = 0;
  double timeout_seconds = 3600;

  // num_ranks 0: left to the library.
  monomoe_context_options view(int32_t num_ranks) const;
  Context create(int32_t num_ranks) const;
};
std::vector<CLI::Option*> add_context_options(CLI::App& parser, ContextOptions& options);
// The same without --launch, for commands with a choice of their own.
std::vector<CLI::Option*> add_machine_options(CLI::App& parser, ContextOptions& options);

// Whether the ranks of a run are processes of their own; processes.hpp does the rest.
struct ProcessOptions {
  bool processes = false;
  int32_t rank = -1;  // this process is that rank of the world; -1: it is none
  std::string world;

  bool is_rank() const { return rank >= 0; }
  bool starts_ranks() const { return processes && !is_rank(); }
};
std::vector<CLI::Option*> add_process_options(CLI::App& parser, ProcessOptions& options);

// The value of --swiglu-limit; 0 = none. Throws bad usage.
float swiglu_limit_of(const std::string& word);

// One layer of a checkpoint, its tokens and how they are dealt to ranks.
struct LayerOptions {
  std::string directory, input, tokens_per_rank, placement, shared_expert = "off";
  int32_t layer = -1, num_ranks = 1;
  int64_t capacity = -1;  // -1: the largest rank's tokens
  std::string swiglu_limit_word;
  ContextOptions context;
  ProcessOptions processes;

  std::string where() const;                    // "DIR, layer 3"
  std::optional<float> swiglu_limit() const;    // 0 = none; throws bad usage
  std::vector<int64_t> dealt(int64_t tokens) const;  // tokens of each rank; throws bad usage
  int64_t capacity_for(const std::vector<int64_t>& tokens_per_rank) const;
};
// All but directory, layer, input and shared_expert, which commands require differently or do not have.
std::vector<CLI::Option*> add_layer_options(CLI::App& parser, LayerOptions& options);

// For check(): a whole number, least to most.
CLI::Validator whole_number_in(int64_t least, int64_t most);

std::optional<monomoe_format> format_from_word(const std::string& word);

// Refuses what can be known to fail before hours of computing: no directory, no right to write, something there that is no file.
void check_output_place(const char* option, const std::string& path);
// And what would do harm: a file that is read.
void check_output_path(const std::string& output, const LayerOptions& layer);

}  // namespace monomoe::cli
