// Marks functions that compile for the host (g++) and for the device (nvcc) alike.
#pragma once

#if defined(__CUDACC__)
#define MONOMOE_HD __host__ __device__
#elif defined(MONOMOE_ALWAYS_INLINE)  // files built for one vector width: cmake/vectors.cmake says why
#define MONOMOE_HD __attribute__((always_inline))
#else
#define MONOMOE_HD
#endif
