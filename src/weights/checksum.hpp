// XXH3-128 of files and packed experts: finds damage, not malice. As 32 hexadecimal digits it is what `xxh128sum` prints.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace monomoe {

class Checksum {
 public:
  Checksum();
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;
  ~Checksum();

  void update(std::span<const uint8_t> data);
  std::string text() const;  // of all data so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string checksum_text(std::span<const uint8_t> data);

}  // namespace monomoe
