// Marks functions that compile for the host (g++) and for the device (nvcc) alike.
#pragma once

#if defined(__CUDACC__)
#define MONOMOE_HD __host__ __device__
#else
#define MONOMOE_HD
#endif
