// Small sound checkpoints, one for each way to write experts, as one file: its metadata holds config.json and the like.
#pragma once

#include "tensor_file.hpp"

namespace monomoe::fuzz {

TensorFile checkpoint_seed(Random& random);

}  // namespace monomoe::fuzz
