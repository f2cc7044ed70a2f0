// Argument checks; see arguments.hpp.
#include "layer/arguments.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <new>

namespace monomoe::layer {

Result<void> require_pointer(const void* pointer, std::string_view argument) {
  if (pointer == nullptr) return usage_error(fmt::format("{} is NULL", argument));
  return {};
}

Result<void> require_struct(const void* bytes, uint32_t struct_size, size_t first_size, size_t known_size, std::string_view argument) {
  if (struct_size < first_size) {
    return usage_error(
        fmt::format("{}->struct_size is {}, wanted {}; set it to sizeof of the struct", argument, struct_size, known_size));
  }
  const auto* begin = static_cast<const unsigned char*>(bytes);
  for (size_t i = known_size; i < struct_size; ++i) {
    if (begin[i] != 0) {
      return usage_error(
          fmt::format("{}->struct_size is {} and a field behind byte {} is set, which this library ({}) does not know; "
                      "use the library that the header belongs to",
                      argument, struct_size, known_size, monomoe_version()));
    }
  }
  return {};
}

Result<void> require_flag(int32_t value, std::string_view argument) {
  if (value == 0 || value == 1) return {};
  return usage_error(fmt::format("{} is {}, wanted 0 or 1", argument, value));
}

Result<void> require_aligned(const void* pointer, size_t alignment, std::string_view argument) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  if (address % alignment == 0) return {};
  return usage_error(
      fmt::format("{} is at address {:#x}, wanted a multiple of {}; copy it to aligned memory", argument, address, alignment));
}

Result<WeightFormat> format_from_abi(const monomoe_format& format, std::string_view argument) {
  const int number = enum_number(format);
  switch (number) {
    case MONOMOE_FP8:
      return WeightFormat::kFp8;
    case MONOMOE_NVFP4:
      return WeightFormat::kNvfp4;
    case MONOMOE_MXFP4:
      return WeightFormat::kMxfp4;
    case MONOMOE_BF16:
      return WeightFormat::kBf16;
  }
  return usage_error(fmt::format("{} is {}, wanted a monomoe_format: 0 fp8, 1 nvfp4, 2 mxfp4, 3 bf16", argument, number));
}

Result<ScaleType> scale_type_from_abi(const monomoe_scale_type& type, std::string_view argument) {
  const int number = enum_number(type);
  switch (number) {
    case MONOMOE_SCALE_NONE:
      return ScaleType::kNone;
    case MONOMOE_SCALE_F32:
      return ScaleType::kF32;
    case MONOMOE_SCALE_BF16:
      return ScaleType::kBf16;
    case MONOMOE_SCALE_E8M0:
      return ScaleType::kE8m0;
    case MONOMOE_SCALE_E4M3:
      return ScaleType::kE4m3;
  }
  return usage_error(fmt::format("{} is {}, wanted a monomoe_scale_type (0..4)", argument, number));
}

monomoe_format format_to_abi(WeightFormat format) {
  switch (format) {
    case WeightFormat::kFp8:
      return MONOMOE_FP8;
    case WeightFormat::kNvfp4:
      return MONOMOE_NVFP4;
    case WeightFormat::kMxfp4:
      return MONOMOE_MXFP4;
    case WeightFormat::kBf16:
      break;
  }
  return MONOMOE_BF16;
}

char* caller_text(std::string_view text) {
  auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  return copy;
}

}  // namespace monomoe::layer

extern "C" void monomoe_free_text(char* text) { std::free(text); }
