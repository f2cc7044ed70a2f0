// Element types of safetensors files: their names there and their width in bits.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace monomoe {

enum class DType : uint8_t {
  BOOL,
  U8,
  I8,
  I16,
  U16,
  F16,
  BF16,
  I32,
  U32,
  F32,
  F64,
  I64,
  U64,
  C64,
  F8_E4M3,
  F8_E5M2,
  F8_E8M0,
  F8_E4M3FNUZ,
  F8_E5M2FNUZ,
  F6_E2M3,
  F6_E3M2,
  F4,
};

std::string_view dtype_name(DType dtype);
int dtype_bits(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);

}  // namespace monomoe
