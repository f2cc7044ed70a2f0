// The kernels for 128-bit vectors. The table is all this file exports: code built for newer machines must not leak into others.
#include "cpu/vector_128.hpp"

#include "cpu/kernels_rows.hpp"
#include "cpu/kernels_tables.hpp"
#include "cpu/kernels_tile.hpp"

namespace monomoe::cpu {

constinit const Kernels kKernels128 = {kVectorBits, tile_sums, sizeof(TileScratch), swiglu_quantise, round_contribution, quantise_row, combine_row};

}  // namespace monomoe::cpu
