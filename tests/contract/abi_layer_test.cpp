// The helpers of abi_layer.hpp.
#include "contract/abi_layer.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <stdexcept>

#include "reference/compare.hpp"

namespace monomoe::contract {
namespace {

Case parsed(const std::string& line) {
  auto c = parse_case(line);
  if (!c) throw std::runtime_error(c.error().message);
  return c.take();
}

monomoe_matrix to_abi(const SourceMatrix& m) {
  return {static_cast<monomoe_format>(m.format),
          static_cast<monomoe_scale_type>(m.scale_type),
          m.rows,
          m.cols,
          m.codes,
          m.scales,
          m.global_scale};
}

void expect_ok(monomoe_status status) { EXPECT_EQ(status, MONOMOE_OK) << monomoe_last_error(); }

}  // namespace

monomoe_backend backend_named(const std::string& name) { return name == "cuda" ? MONOMOE_BACKEND_CUDA : MONOMOE_BACKEND_CPU; }

namespace {

std::string suite_words() {
  const char* words = std::getenv("MONOMOE_CONTRACT_BACKEND");
  return words == nullptr ? "cpu" : words;
}

}  // namespace

std::string suite_backend() { return suite_words().substr(0, suite_words().find(':')); }

monomoe_launch suite_launch() {
  const std::string words = suite_words();
  if (words.ends_with(":split")) return MONOMOE_LAUNCH_SPLIT;
  return words.ends_with(":unfused") ? MONOMOE_LAUNCH_UNFUSED : MONOMOE_LAUNCH_AUTO;
}

namespace {

// Skips every test, loudly, where the suite's backend cannot run.
class SuiteBackend : public ::testing::Environment {
 public:
  void SetUp() override {
    monomoe_status status = MONOMOE_OK;
    make_context(1, {}, &status);
    if (status == MONOMOE_UNAVAILABLE) GTEST_SKIP() << "backend " << suite_backend() << " is not available here: " << monomoe_last_error();
  }
};
const auto* const suite_environment = ::testing::AddGlobalTestEnvironment(new SuiteBackend);

}  // namespace

ContextHandle make_context(int32_t ranks, const Setting& setting, monomoe_status* status) {
  monomoe_context_options options{};
  options.struct_size = sizeof(options);
  options.backend = backend_named(setting.backend);
  options.num_ranks = ranks;
  options.num_threads = setting.threads;
  options.vector_bits = setting.vector_bits;
  options.timeout_ms = setting.timeout_ms;
  if (options.backend == MONOMOE_BACKEND_CUDA) options.launch = setting.launch;
  monomoe_context* context = nullptr;
  const monomoe_status made = monomoe_context_create(&options, &context);
  if (status != nullptr)
    *status = made;
  else
    expect_ok(made);
  return ContextHandle(context);
}

monomoe_expert to_abi(const SourceExpert& expert) { return {to_abi(expert.gate), to_abi(expert.up), to_abi(expert.down)}; }

AbiPlacement::AbiPlacement(const PlacementTable& table) {
  const PlacementView view = table.view();
  for (int32_t e = 0; e < view.experts; ++e) {
    for (int32_t i = view.copy_begin[e]; i < view.copy_begin[e + 1]; ++i) {
      expert.push_back(e);
      rank.push_back(view.copies[i].rank);
      slot.push_back(view.copies[i].slot);
    }
  }
}

monomoe_placement AbiPlacement::placement() const { return {static_cast<int64_t>(expert.size()), expert.data(), rank.data(), slot.data()}; }

AbiLayer::AbiLayer(const std::string& line) : AbiLayer(parsed(line)) {}

AbiLayer::AbiLayer(const Case& given) : c(given), random(random_layer(given)), sources(random.sources()) {
  for (const SourceExpert& source : sources) experts.push_back(to_abi(source));
}

monomoe_layer AbiLayer::layer(const monomoe_placement* placement) const {
  monomoe_layer layer{};
  layer.struct_size = sizeof(layer);
  layer.num_experts = static_cast<int32_t>(experts.size());
  layer.hidden = c.problem.hidden;
  layer.intermediate = c.problem.intermediate;
  layer.experts = experts.data();
  layer.placement = placement;
  layer.swiglu_limit = std::isinf(c.limit) ? 0.0f : c.limit;
  return layer;
}

WeightsHandle AbiLayer::weights(const ContextHandle& context, const monomoe_placement* placement) const {
  const monomoe_layer description = layer(placement);
  monomoe_weights* weights = nullptr;
  expect_ok(monomoe_weights_create(context.get(), &description, &weights));
  return WeightsHandle(weights);
}

WorkspaceHandle AbiLayer::workspace(const ContextHandle& context, const WeightsHandle& weights, int64_t capacity) const {
  monomoe_workspace_options options{};
  options.struct_size = sizeof(options);
  options.topk = static_cast<int32_t>(c.problem.topk);
  options.hidden = c.problem.hidden;
  options.max_intermediate = c.problem.intermediate;
  options.max_experts = monomoe_weights_max_local_experts(weights.get());
  options.capacity = capacity;
  monomoe_workspace* workspace = nullptr;
  expect_ok(monomoe_workspace_create(context.get(), &options, &workspace));
  return WorkspaceHandle(workspace);
}

std::vector<monomoe_tokens> AbiLayer::tokens(const std::vector<int64_t>& rows, std::vector<uint16_t>& out) const {
  int64_t total = 0;
  for (const int64_t count : rows) total += count;
  out.assign(static_cast<size_t>(total * c.problem.hidden), 0xAAAA);
  std::vector<monomoe_tokens> list;
  int64_t first = 0;
  for (const int64_t count : rows) {
    monomoe_tokens one{};
    one.struct_size = sizeof(one);
    one.x_dtype = MONOMOE_DTYPE_BF16;
    one.num_tokens = count;
    one.ids_dtype = MONOMOE_DTYPE_I64;
    if (count > 0) {
      one.x = random.x.data() + first * c.problem.hidden;
      one.topk_ids = random.ids.data() + first * c.problem.topk;
      one.topk_weights = random.weights.data() + first * c.problem.topk;
      one.y = out.data() + first * c.problem.hidden;
    }
    list.push_back(one);
    first += count;
  }
  return list;
}

std::vector<uint16_t> AbiLayer::expected() const {
  auto result = contract_layer(random.input(c), sources);
  if (!result) throw std::runtime_error(result.error().message);
  return result.value().y;
}

std::vector<uint16_t> run_layer(const AbiLayer& layer, const RunPlan& plan) {
  const ContextHandle context = make_context(static_cast<int32_t>(plan.rows.size()), plan.setting);
  std::unique_ptr<AbiPlacement> entries;
  monomoe_placement placement{};
  if (plan.placement != nullptr) {
    entries = std::make_unique<AbiPlacement>(*plan.placement);
    placement = entries->placement();
  }
  const WeightsHandle weights = layer.weights(context, entries ? &placement : nullptr);
  const int64_t most = *std::max_element(plan.rows.begin(), plan.rows.end());
  const WorkspaceHandle workspace = layer.workspace(context, weights, plan.capacity == 0 ? most : plan.capacity);
  if (plan.poison >= 0) expect_ok(monomoe_workspace_poison(workspace.get(), static_cast<uint8_t>(plan.poison)));
  std::vector<uint16_t> y;
  const std::vector<monomoe_tokens> tokens = layer.tokens(plan.rows, y);
  expect_ok(monomoe_forward(weights.get(), workspace.get(), tokens.data(), nullptr));
  return y;
}

std::vector<int64_t> even_rows(int64_t tokens, int64_t ranks) {
  std::vector<int64_t> rows;
  for (int64_t rank = 0; rank < ranks; ++rank) rows.push_back(tokens / ranks + (rank < tokens % ranks ? 1 : 0));
  return rows;
}

::testing::AssertionResult same_bits(const std::vector<uint16_t>& got, const std::vector<uint16_t>& want, int64_t columns) {
  if (got.size() != want.size()) return ::testing::AssertionFailure() << got.size() << " elements, wanted " << want.size();
  const BitDifference difference = compare_bf16_bits(got, want, columns);
  if (difference.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << describe(difference);
}

}  // namespace monomoe::contract
