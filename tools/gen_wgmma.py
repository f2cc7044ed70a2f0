#!/usr/bin/env python3
"""Writes src/cuda/ptx/wgmma.cuh: wgmma.m64nNk32.f32.e4m3.e4m3 for each token count, A from registers or from shared memory."""
from pathlib import Path

TOKENS = [8, 16, 24, 32, 40, 48, 56, 64, 128]
HEAD = """// Written by tools/gen_wgmma.py. D[64 x N] (+)= A[64 x 32] * B[N x 32]^T in e4m3 with fp32 accumulators, asynchronous.
// accumulate 0 starts from zero. PTX ISA, wgmma.mma_async; matrix descriptor: K-major, 128-byte swizzle, 8-row groups 1024 bytes apart.
#pragma once

#include <cstdint>

namespace monomoe::cuda::ptx {

__device__ __forceinline__ uint32_t descriptor_low(uint32_t address) { return ((address & 0x3FFFF) >> 4) + 0x10000; }
// From its lower half: 16 bytes further on is one more.
__device__ __forceinline__ uint64_t matrix_descriptor_of(uint32_t low) {
  uint64_t descriptor;
  asm("mov.b64 %0, {%1, %2};" : "=l"(descriptor) : "r"(low), "r"(64u | 1u << 30));
  return descriptor;
}
__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t address) { return matrix_descriptor_of(descriptor_low(address)); }
// A value that all lanes have. The shuffle tells the compiler so, and it keeps what is made of it in uniform registers, where WGMMA wants descriptors (many tokens: 4 %
// fewer cycles; an FP4 call of 64 tokens: 2 %). It must stand in the loop: carried from one round to the next the compiler forgets it.
__device__ __forceinline__ uint32_t uniform(uint32_t value) { return __shfl_sync(0xFFFFFFFFu, value, 0); }
__device__ __forceinline__ uint64_t uniform_descriptor(uint32_t address) { return matrix_descriptor(uniform(address)); }
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kGroups>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}

template <int kTokens>
struct Wgmma;
"""


def instruction(tokens: int) -> str:
    registers = tokens // 2
    outputs = ", ".join(f"%{i}" for i in range(registers))
    operands = ", ".join(f'"+f"(d[{i}])' for i in range(registers))
    name = f"wgmma.mma_async.sync.aligned.m64n{tokens}k32.f32.e4m3.e4m3"
    r = registers
    return f"""
template <>
struct Wgmma<{tokens}> {{
  static __device__ __forceinline__ void registers(float (&d)[{r}], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b,
                                                   int accumulate) {{
    asm volatile(
        "{{.reg .pred p; setp.ne.b32 p, %{r + 5}, 0; "
        "{name} {{{outputs}}}, {{%{r}, %{r + 1}, %{r + 2}, %{r + 3}}}, %{r + 4}, p, 1, 1;}}"
        : {operands}
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(accumulate));
  }}
  static __device__ __forceinline__ void shared(float (&d)[{r}], uint64_t a, uint64_t b, int accumulate) {{
    asm volatile(
        "{{.reg .pred p; setp.ne.b32 p, %{r + 2}, 0; "
        "{name} {{{outputs}}}, %{r}, %{r + 1}, p, 1, 1;}}"
        : {operands}
        : "l"(a), "l"(b), "r"(accumulate));
  }}
}};
"""


def header() -> str:
    return HEAD + "".join(instruction(n) for n in TOKENS) + "\n}  // namespace monomoe::cuda::ptx\n"


def main() -> None:
    (Path(__file__).resolve().parent.parent / "src/cuda/ptx/wgmma.cuh").write_text(header())


if __name__ == "__main__":
    main()
