// Every line of tests/cases/contract.txt on the suite's backend, bit for bit against the contract's scalar code.
#include "contract/abi_layer.hpp"

namespace monomoe::contract {
namespace {

std::vector<ListedCase> listed_cases() {
  auto cases = read_case_file(MONOMOE_SOURCE_DIR "/tests/cases/contract.txt");
  EXPECT_TRUE(cases.ok()) << (cases ? "" : cases.error().message);
  return cases ? cases.take() : std::vector<ListedCase>{};
}

TEST(ContractCases, EveryLineHasTheContractsBits) {
  const std::vector<ListedCase> cases = listed_cases();
  ASSERT_GE(cases.size(), 40u);
  for (const ListedCase& listed : cases) {
    SCOPED_TRACE("contract.txt:" + std::to_string(listed.line_number) + ": " + listed.line);
    const AbiLayer layer(listed.parsed);
    auto placement = placement_of(listed.parsed);
    ASSERT_TRUE(placement.ok()) << placement.error().message;
    RunPlan plan;
    plan.rows = listed.parsed.rows;
    plan.capacity = listed.parsed.problem.capacity;
    plan.placement = &placement.value();
    EXPECT_TRUE(same_bits(run_layer(layer, plan), layer.expected(), listed.parsed.problem.hidden));
  }
}

}  // namespace
}  // namespace monomoe::contract
