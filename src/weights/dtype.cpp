// The table behind DType.
#include "weights/dtype.hpp"

#include <array>

namespace monomoe {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  int bits;
};

constexpr std::array kRows{
    Row{DType::BOOL, "BOOL", 8},
    Row{DType::U8, "U8", 8},
    Row{DType::I8, "I8", 8},
    Row{DType::I16, "I16", 16},
    Row{DType::U16, "U16", 16},
    Row{DType::F16, "F16", 16},
    Row{DType::BF16, "BF16", 16},
    Row{DType::I32, "I32", 32},
    Row{DType::U32, "U32", 32},
    Row{DType::F32, "F32", 32},
    Row{DType::F64, "F64", 64},
    Row{DType::I64, "I64", 64},
    Row{DType::U64, "U64", 64},
    Row{DType::C64, "C64", 64},
    Row{DType::F8_E4M3, "F8_E4M3", 8},
    Row{DType::F8_E5M2, "F8_E5M2", 8},
    Row{DType::F8_E8M0, "F8_E8M0", 8},
    Row{DType::F8_E4M3FNUZ, "F8_E4M3FNUZ", 8},
    Row{DType::F8_E5M2FNUZ, "F8_E5M2FNUZ", 8},
    Row{DType::F6_E2M3, "F6_E2M3", 6},
    Row{DType::F6_E3M2, "F6_E3M2", 6},
    Row{DType::F4, "F4", 4},
};

constexpr bool in_enum_order() {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (static_cast<size_t>(kRows[i].dtype) != i) return false;
  }
  return true;
}
static_assert(in_enum_order(), "the table is indexed by the enum's value");

}  // namespace

std::string_view dtype_name(DType dtype) { return kRows[static_cast<size_t>(dtype)].name; }

int dtype_bits(DType dtype) { return kRows[static_cast<size_t>(dtype)].bits; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

}  // namespace monomoe
