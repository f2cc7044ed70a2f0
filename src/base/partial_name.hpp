// Names of temporaries beside a target: no other process or user has one like it, and who makes it must insist on making it (O_EXCL,
// mkdir), so nothing that was there before is ever written to or removed.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <string>

namespace monomoe {

inline constexpr int kPartialAttempts = 16;  // 36^8 names: even a second attempt is a rarity

// "OUT.partial-x7k2m90q".
inline std::string partial_name(const std::string& target) {
  constexpr char kLetters[] = "0123456789abcdefghijklmnopqrstuvwxyz";
  // The system's, so forks and threads do not repeat each other; directly, since libstdc++'s way would tie a wheel to glibc 2.36. Should it
  // ever fail the name is one that others may have too, and whoever insists on making it says so.
  uint32_t random[8] = {};
  (void)!getentropy(random, sizeof(random));
  std::string name = target + ".partial-";
  for (const uint32_t r : random) name += kLetters[r % 36];
  return name;
}

}  // namespace monomoe
