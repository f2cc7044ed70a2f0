// Whether two ranks were handed the same memory: the protocol would mix their rows without any other sign.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace monomoe {

// "options->peers[0] and [2] overlap ..." without a stop, or "". Compares addresses and, for memory mapped from files, what is mapped there: two
// mappings of the same pages have different addresses. GPU memory is compared by address only.
std::string overlap_of(std::span<void* const> peers, int64_t bytes);

}  // namespace monomoe
