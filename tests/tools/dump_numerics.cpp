// Writes what the numerics compute as raw little-endian arrays, for an oracle outside C++ to compare (tests/python).
// Usage: dump_numerics DIR. Reads floats.f32, groups.f32, a.u8, b.u8, gate.f32, up.f32 from DIR and writes the results beside them.
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "numerics/activation_quant.h"
#include "numerics/bf16.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/e8m0.h"
#include "numerics/swiglu.h"
#include "numerics/tensor_core.h"

namespace {

using namespace monomoe;

std::string directory;
bool failed = false;

template <class T>
std::vector<T> read(const std::string& name) {
  std::ifstream file(directory + "/" + name, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<T> values(bytes.size() / sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) __builtin_memcpy(&values[i], bytes.data() + i * sizeof(T), sizeof(T));
  if (values.empty()) {
    std::fprintf(stderr, "dump_numerics: %s/%s is missing or empty\n", directory.c_str(), name.c_str());
    failed = true;
  }
  return values;
}

template <class T>
void write(const std::string& name, const std::vector<T>& values) {
  std::ofstream file(directory + "/" + name, std::ios::binary);
  file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(T)));
  failed = failed || !file.flush();
}

// f over 0..count-1, or over given inputs.
template <class F>
auto table(int count, F f) {
  std::vector<decltype(f(0))> out;
  for (int i = 0; i < count; ++i) out.push_back(f(i));
  return out;
}

void write_formats(const std::vector<float>& x) {
  const int n = static_cast<int>(x.size());
  write("e4m3_decode.f32", table(256, [](int c) { return e4m3_decode(static_cast<std::uint8_t>(c)); }));
  write("e2m1_decode.f32", table(16, [](int c) { return e2m1_decode(static_cast<std::uint8_t>(c)); }));
  write("e8m0_decode.f32", table(256, [](int c) { return e8m0_decode(static_cast<std::uint8_t>(c)); }));
  write("bf16_decode.f32", table(65536, [](int c) { return bf16_decode(static_cast<std::uint16_t>(c)); }));
  write("e4m3_encode.u8", table(n, [&](int i) { return e4m3_encode(x[i]); }));
  write("e2m1_encode.u8", table(n, [&](int i) { return e2m1_encode(x[i]); }));
  write("bf16_encode.u16", table(n, [&](int i) { return bf16_encode(x[i]); }));
}

void write_groups(const std::vector<float>& x) {
  std::vector<std::uint8_t> codes(x.size());
  std::vector<float> scales(x.size() / kGroupChannels);
  for (std::size_t g = 0; g < scales.size(); ++g) {
    quantise_group(x.data() + g * kGroupChannels, kGroupChannels, codes.data() + g * kGroupChannels, &scales[g]);
  }
  write("group_codes.u8", codes);
  write("group_scales.f32", scales);
}

void write_dot_products(const std::vector<std::uint8_t>& a, const std::vector<std::uint8_t>& b) {
  if (a.size() != b.size()) {
    std::fprintf(stderr, "dump_numerics: a.u8 has %zu codes and b.u8 %zu; they must have the same length\n", a.size(), b.size());
    failed = true;
    return;
  }
  const int blocks = static_cast<int>(a.size()) / kPromotionK;
  write("blocks.f32", table(blocks, [&](int i) { return tensor_core_block(&a[i * kPromotionK], &b[i * kPromotionK]); }));
}

void write_swiglu(const std::vector<float>& gate, const std::vector<float>& up) {
  const int n = static_cast<int>(gate.size() < up.size() ? gate.size() : up.size());
  write("swiglu.f32", table(n, [&](int i) { return swiglu(gate[i], up[i], 10.0f); }));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: dump_numerics DIR\n");
    return 2;
  }
  directory = argv[1];
  write_formats(read<float>("floats.f32"));
  write_groups(read<float>("groups.f32"));
  write_dot_products(read<std::uint8_t>("a.u8"), read<std::uint8_t>("b.u8"));
  write_swiglu(read<float>("gate.f32"), read<float>("up.f32"));
  return failed ? 1 : 0;
}
