// A loop over independent items on several threads, ending with the first failure in the order of the items.
#pragma once

#include <cstdint>
#include <functional>

#include "base/result.hpp"

namespace monomoe::layer {

// Calls body(i) for i in [0, count). After a failure no new items are begun; the failure with the smallest index is returned.
// An exception inside body counts as a failure of its item.
Result<void> parallel_for(int64_t count, int threads, const std::function<Result<void>(int64_t)>& body);

}  // namespace monomoe::layer
