// The one file that sees xxhash.h, inlined so that nothing is linked.
#include "weights/checksum.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <fmt/format.h>

namespace monomoe {

struct Checksum::State {
  XXH3_state_t hash;
};

Checksum::Checksum() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->hash); }
Checksum::Checksum(Checksum&&) noexcept = default;
Checksum& Checksum::operator=(Checksum&&) noexcept = default;
Checksum::~Checksum() = default;

namespace {

std::string hex(XXH128_hash_t hash) { return fmt::format("{:016x}{:016x}", hash.high64, hash.low64); }

}  // namespace

void Checksum::update(std::span<const uint8_t> data) { XXH3_128bits_update(&state_->hash, data.data(), data.size()); }

std::string Checksum::text() const { return hex(XXH3_128bits_digest(&state_->hash)); }

std::string checksum_text(std::span<const uint8_t> data) { return hex(XXH3_128bits(data.data(), data.size())); }

}  // namespace monomoe
