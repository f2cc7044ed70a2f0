// Names of temporaries beside a target: no other process or user has one like it, and who makes it must insist on making it (O_EXCL,
// mkdir), so nothing that was there before is ever written to or removed.
#pragma once

#include <random>
#include <string>

namespace monomoe {

inline constexpr int kPartialAttempts = 16;  // 36^8 names: even a second attempt is a rarity

// "OUT.partial-x7k2m90q".
inline std::string partial_name(const std::string& target) {
  constexpr char kLetters[] = "0123456789abcdefghijklmnopqrstuvwxyz";
  std::random_device random;  // the system's, so forks and threads do not repeat each other
  std::string name = target + ".partial-";
  for (int i = 0; i < 8; ++i) name += kLetters[random() % 36];
  return name;
}

}  // namespace monomoe
