// One number at a time is put into a problem that is legal otherwise, so that every broken rule is told.
#include "layer/layer_rules.hpp"

#include <fmt/format.h>

#include "plan/problem_text.hpp"
#include "weights/text.hpp"

namespace monomoe::layer {
namespace {

constexpr Problem kLegal{.hidden = kBlockK, .intermediate = kBlockK, .experts = 1, .topk = 1};

std::string tensor_word(const LocatedTensor& tensor) {
  const std::string& path = tensor.file->path();
  return fmt::format("tensor \"{}\" ({})", printable(tensor.entry->name), printable(path.substr(path.rfind('/') + 1)));
}

// The first broken rule of `problem`, as seen in `tensor`; empty if there is none.
std::string broken(const Problem& problem, const LocatedTensor& tensor) {
  const auto legal = check(problem);
  return legal ? std::string() : fmt::format("{}: {}", tensor_word(tensor), legal.error().message);
}

// Blocks that only `pack` reads. Empty if the expert has none.
std::string other_blocks(const SourceExpert& expert, const ExpertSource& source) {
  const std::pair<const SourceMatrix*, const MatrixSource*> matrices[] = {
      {&expert.gate, &source.gate}, {&expert.up, &source.up}, {&expert.down, &source.down}};
  for (const auto& [matrix, from] : matrices) {
    if (matrix->format != WeightFormat::kFp8 || matrix->scale_block == kBlockK) continue;
    return fmt::format("{}: has a scale for each block of {} x {}, the layer computes with blocks of 128 x 128: `monomoe pack DIR OUT --to fp8` brings "
                       "them there, and says what that costs",
                       tensor_word(from->weight), matrix->scale_block, matrix->scale_block);
  }
  return {};
}

}  // namespace

std::vector<std::string> broken_rules(const LayerWeights& layer) {
  Problem hidden = kLegal, intermediate = kLegal, experts = kLegal, format = kLegal;
  hidden.hidden = layer.hidden;
  intermediate.intermediate = layer.intermediate;
  experts.experts = static_cast<int64_t>(layer.experts.size());
  format.weights = layer.format;
  const LocatedTensor &first = layer.expert_sources.front().gate.weight, &last = layer.expert_sources.back().gate.weight;
  std::vector<std::string> out;
  for (const std::string& sentence : {broken(hidden, first), broken(intermediate, first), broken(experts, last), broken(format, first)}) {
    if (!sentence.empty()) out.push_back(sentence);
  }
  for (size_t e = 0; e < layer.experts.size(); ++e) {
    std::string sentence = other_blocks(layer.experts[e], layer.expert_sources[e]);
    if (sentence.empty()) continue;
    out.push_back(std::move(sentence));  // of all experts the first is enough: blocks are a choice for the whole layer
    break;
  }
  return out;
}

std::string shared_expert_refusal(const LayerWeights& layer) {
  if (!layer.shared) return {};
  Problem problem = kLegal;
  problem.hidden = layer.hidden;
  problem.intermediate = layer.shared->gate.rows;
  problem.weights = layer.shared_format;
  if (std::string sentence = other_blocks(*layer.shared, layer.shared_source); !sentence.empty()) return sentence;
  return broken(problem, layer.shared_source.gate.weight);
}

Result<void> check_rules(const LayerWeights& layer) {
  const std::vector<std::string> broken = broken_rules(layer);
  if (broken.empty()) return {};
  ProblemList problems(20, fmt::format("{}, layer {}: ", printable(layer.files->directory()), layer.layer.label()));
  for (const std::string& sentence : broken) problems.add(sentence);
  return bad_input(problems.text());
}

}  // namespace monomoe::layer
