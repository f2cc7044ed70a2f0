// Where experts live: any table expert -> (rank, slot), with redundant copies; a rank may hold none. The view is plain arrays,
// so the device reads the same table. placement_table.hpp builds and checks it.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace monomoe {

struct ExpertCopy {
  int32_t rank;
  int32_t slot;  // place among the experts of that rank
};

struct PlacementView {
  int32_t experts = 0;
  int32_t ranks = 0;
  const int32_t* copy_begin = nullptr;   // [experts + 1] into copies
  const ExpertCopy* copies = nullptr;    // of one expert in ascending (rank, slot)
  const int32_t* slot_begin = nullptr;   // [ranks + 1] into slot_expert
  const int32_t* slot_expert = nullptr;  // expert held by each (rank, slot)

  MONOMOE_HD constexpr int32_t num_slots(int32_t rank) const { return slot_begin[rank + 1] - slot_begin[rank]; }

  MONOMOE_HD constexpr bool has_copy(int32_t expert, int32_t rank) const {
    for (int32_t i = copy_begin[expert]; i < copy_begin[expert + 1]; ++i) {
      if (copies[i].rank == rank) return true;
    }
    return false;
  }

  // The copy that serves tokens of source rank src: its own if it has one, else copies in turn by source rank. Every rank
  // computes the same answer from the same table; the bits of the result do not depend on it.
  MONOMOE_HD constexpr ExpertCopy serving_copy(int32_t expert, int32_t src) const {
    const int32_t begin = copy_begin[expert];
    const int32_t count = copy_begin[expert + 1] - begin;
    for (int32_t i = 0; i < count; ++i) {
      if (copies[begin + i].rank == src) return copies[begin + i];
    }
    return copies[begin + src % count];
  }
};

}  // namespace monomoe
