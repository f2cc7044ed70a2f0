// A random layer as the public ABI takes it, and one call of it in any setting. The suites reach a backend through monomoe.h alone.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "monomoe/monomoe.h"
#include "plan/placement_table.hpp"
#include "reference/contract_layer.hpp"
#include "reference/random_layer.hpp"

namespace monomoe::contract {

struct ContextCloser {
  void operator()(monomoe_context* context) const { monomoe_context_destroy(context); }
};
struct WeightsCloser {
  void operator()(monomoe_weights* weights) const { monomoe_weights_destroy(weights); }
};
struct WorkspaceCloser {
  void operator()(monomoe_workspace* workspace) const { monomoe_workspace_destroy(workspace); }
};
using ContextHandle = std::unique_ptr<monomoe_context, ContextCloser>;
using WeightsHandle = std::unique_ptr<monomoe_weights, WeightsCloser>;
using WorkspaceHandle = std::unique_ptr<monomoe_workspace, WorkspaceCloser>;

monomoe_backend backend_named(const std::string& name);
// The backend and launch the suites run on: the environment's MONOMOE_CONTRACT_BACKEND, cpu, cuda, cuda:one, cuda:split or cuda:unfused; else cpu.
std::string suite_backend();
monomoe_launch suite_launch();

struct Setting {
  std::string backend = suite_backend();
  int32_t threads = 2, vector_bits = 0;
  uint32_t timeout_ms = 0;
  monomoe_launch launch = suite_launch();  // of backend cuda
};
// Null, with *status saying why, if the machine cannot.
ContextHandle make_context(int32_t ranks, const Setting& setting = {}, monomoe_status* status = nullptr);

monomoe_expert to_abi(const SourceExpert& expert);

// Entries of a table, with the arrays a monomoe_placement points to.
struct AbiPlacement {
  explicit AbiPlacement(const PlacementTable& table);
  monomoe_placement placement() const;
  std::vector<int32_t> expert, rank, slot;
};

// A case with its random weights and tokens.
struct AbiLayer {
  explicit AbiLayer(const Case& c);
  explicit AbiLayer(const std::string& line);

  monomoe_layer layer(const monomoe_placement* placement = nullptr) const;
  WeightsHandle weights(const ContextHandle& context, const monomoe_placement* placement = nullptr) const;
  // capacity 0: the largest of rows.
  WorkspaceHandle workspace(const ContextHandle& context, const WeightsHandle& weights, int64_t capacity) const;
  // The first rows of the case's tokens, dealt out in order; y is written to out.
  std::vector<monomoe_tokens> tokens(const std::vector<int64_t>& rows, std::vector<uint16_t>& out) const;
  // The contract's bits of the case's tokens.
  std::vector<uint16_t> expected() const;

  Case c;
  RandomLayer random;
  std::vector<SourceExpert> sources;
  std::vector<monomoe_expert> experts;
};

// rows[rank] tokens each, through a context, weights and a workspace of their own.
struct RunPlan {
  std::vector<int64_t> rows;
  int64_t capacity = 0;  // 0: the largest of rows
  const PlacementTable* placement = nullptr;
  Setting setting;
  int poison = -1;  // byte the workspace is filled with before the call
};
std::vector<uint16_t> run_layer(const AbiLayer& layer, const RunPlan& plan);

std::vector<int64_t> even_rows(int64_t tokens, int64_t ranks);

// Bit for bit, with the first difference in the message.
::testing::AssertionResult same_bits(const std::vector<uint16_t>& got, const std::vector<uint16_t>& want, int64_t columns);

}  // namespace monomoe::contract
