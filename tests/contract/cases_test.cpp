// Every line of tests/cases/contract.txt on every backend, bit for bit against the contract's scalar code.
#include "contract/abi_layer.hpp"

namespace monomoe::contract {
namespace {

std::vector<ListedCase> listed_cases() {
  auto cases = read_case_file(MONOMOE_SOURCE_DIR "/tests/cases/contract.txt");
  EXPECT_TRUE(cases.ok()) << (cases ? "" : cases.error().message);
  return cases ? cases.take() : std::vector<ListedCase>{};
}

class ContractCases : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    monomoe_status status = MONOMOE_OK;
    make_context(1, {GetParam()}, &status);
    if (status == MONOMOE_UNAVAILABLE) GTEST_SKIP() << "backend " << GetParam() << " is not available here: " << monomoe_last_error();
    ASSERT_EQ(status, MONOMOE_OK) << monomoe_last_error();
  }
};

TEST_P(ContractCases, EveryLineHasTheContractsBits) {
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
    plan.setting.backend = GetParam();
    EXPECT_TRUE(same_bits(run_layer(layer, plan), layer.expected(), listed.parsed.problem.hidden));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, ContractCases, ::testing::Values("cpu", "cuda"), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace monomoe::contract
