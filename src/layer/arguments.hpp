// Checks every entry of the ABI makes on what it is given: pointers, struct sizes, enumerators, alignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/result.hpp"
#include "monomoe/bench.h"
#include "plan/source_matrix.h"

namespace monomoe::layer {

// Usage error naming the argument if it is NULL.
Result<void> require_pointer(const void* pointer, std::string_view argument);

// The size of a struct in the first header that had it: no caller's can be shorter.
template <class Struct>
inline constexpr size_t kFirstSize = sizeof(Struct);
template <>
inline constexpr size_t kFirstSize<monomoe_context_options> = offsetof(monomoe_context_options, launch);
template <>
inline constexpr size_t kFirstSize<monomoe_layer> = offsetof(monomoe_layer, tag);
template <>
inline constexpr size_t kFirstSize<monomoe_workspace_options> = offsetof(monomoe_workspace_options, launch);
template <>
inline constexpr size_t kFirstSize<monomoe_bench_call> = offsetof(monomoe_bench_call, tokens_per_rank);
template <>
inline constexpr size_t kFirstSize<monomoe_tokens> = offsetof(monomoe_tokens, num_tokens_device);

// A longer struct than this library knows comes from a newer header: its extra bytes must be zero, since what they ask for is not known here.
Result<void> require_struct(const void* bytes, uint32_t struct_size, size_t first_size, size_t known_size, std::string_view argument);

template <class Struct>
Result<void> require_struct(const Struct* value, std::string_view argument) {
  if (auto given = require_pointer(value, argument); !given) return given;
  return require_struct(value, value->struct_size, kFirstSize<Struct>, sizeof(Struct), argument);
}

// A copy of a checked struct in which the fields that the caller's header does not have are 0.
template <class Struct>
Result<Struct> read_struct(const Struct* value, std::string_view argument) {
  if (auto given = require_struct(value, argument); !given) return given.error();
  Struct copy{};
  std::memcpy(&copy, value, value->struct_size < sizeof(Struct) ? value->struct_size : sizeof(Struct));
  return copy;
}

// Usage error unless 0 or 1.
Result<void> require_flag(int32_t value, std::string_view argument);

// Rejects an address that is not a multiple of alignment, naming the pointer.
Result<void> require_aligned(const void* pointer, size_t alignment, std::string_view argument);

// The number in an enumerator a caller may have set to anything: read as bytes, because loading a value outside the enum is undefined.
template <class Enum>
int enum_number(const Enum& field) {
  static_assert(sizeof(Enum) == sizeof(int));
  int number = 0;
  std::memcpy(&number, &field, sizeof(number));
  return number;
}

Result<WeightFormat> format_from_abi(const monomoe_format& format, std::string_view argument);
Result<ScaleType> scale_type_from_abi(const monomoe_scale_type& type, std::string_view argument);
monomoe_format format_to_abi(WeightFormat format);

// Copy of text for the caller, released by monomoe_free_text. Throws bad_alloc, which the entry's frame turns into a status.
char* caller_text(std::string_view text);

}  // namespace monomoe::layer
