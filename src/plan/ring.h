// A place in a ring of stages with its phase bit, as mbarriers want it. The producer starts in the opposite phase, because
// every stage is empty at the beginning: waiting for "the previous phase" then succeeds at once.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace monomoe {

template <uint32_t kStages>
struct RingCursor {
  static_assert(kStages >= 1, "a ring needs at least one stage");
  uint32_t slot = 0;
  uint32_t phase = 0;

  MONOMOE_HD static constexpr RingCursor producer() { return {0, 1}; }
  MONOMOE_HD static constexpr RingCursor consumer() { return {0, 0}; }
  MONOMOE_HD constexpr void advance() {
    if (++slot == kStages) {
      slot = 0;
      phase ^= 1;
    }
  }
  // The same for a few slots, at most kStages.
  MONOMOE_HD constexpr void advance(uint32_t count) {
    slot += count;
    if (slot >= kStages) {
      slot -= kStages;
      phase ^= 1;
    }
  }
  // As count times advance().
  MONOMOE_HD constexpr void skip(uint32_t count) {
    const uint32_t to = slot + count;
    slot = to % kStages;
    phase ^= (to / kStages) & 1;
  }
};

// The same in one register, for rings that are seldom used where registers are few.
template <uint32_t kStages>
struct RingCount {
  uint32_t count = 0;  // uses so far; a producer begins one round ahead

  MONOMOE_HD static constexpr RingCount producer() { return {kStages}; }
  MONOMOE_HD static constexpr RingCount consumer() { return {0}; }
  MONOMOE_HD constexpr uint32_t slot() const { return count % kStages; }
  MONOMOE_HD constexpr uint32_t phase() const { return count / kStages & 1; }
  MONOMOE_HD constexpr void advance() { ++count; }
  MONOMOE_HD constexpr void skip(uint32_t uses) { count += uses; }
  MONOMOE_HD constexpr RingCursor<kStages> cursor() const { return {slot(), phase()}; }
};

}  // namespace monomoe
