// One table of kernels per vector width, each from a file compiled for that width. Only kernels.cpp may choose among them.
#pragma once

#include "cpu/kernels.hpp"

namespace monomoe::cpu {

extern const Kernels kKernels128;
extern const Kernels kKernels256;
extern const Kernels kKernels512;

}  // namespace monomoe::cpu
