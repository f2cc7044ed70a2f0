// One run of the backend held against the references, stage by stage.
#pragma once

#include <span>
#include <string>

#include "base/result.hpp"
#include "layer/weights.hpp"
#include "monomoe/monomoe.h"
#include "plan/source_matrix.h"

namespace monomoe::layer {

struct VerifyRequest {
  const monomoe_context& context;
  const monomoe_weights& weights;
  std::span<const SourceExpert> experts;  // what weights were packed from
  int32_t topk = 0;
  int64_t capacity = 0;                    // 0: the largest rank's tokens
  const monomoe_tokens* tokens = nullptr;  // one per rank; y may be NULL
  std::string case_line;                   // "" or the line of the case
  std::string given_by = {};               // not "": the tokens' y is an output that this backend has computed elsewhere; context is a CPU's
};

// The report as JSON text. What does not hold is part of the report; an error is a call that could not be made.
Result<std::string> verify_layer(const VerifyRequest& request);

}  // namespace monomoe::layer
