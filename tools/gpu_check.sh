#!/usr/bin/env bash
# Everything that needs a Hopper GPU, in one command: builds (unless MONOMOE_BUILD names a finished build), runs the contract suite, the kernel
# against the CPU backend, graphs, faults, memcheck, a short benchmark and, where torch is, the Python package, and writes one JSON with commit, device, driver and every figure.
#   tools/gpu_check.sh results/h200.json
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ $# -ne 1 ]; then
  echo "usage: tools/gpu_check.sh RESULT.json    (MONOMOE_BUILD=DIR: use the programs built there)" >&2
  exit 2
fi
build=${MONOMOE_BUILD:-}
if [ -z "$build" ]; then
  build=build
  cmake -S . -B "$build" -G Ninja -DMONOMOE_CUDA=ON -DMONOMOE_TESTS=ON >/dev/null
  ninja -C "$build" monomoe_cli monomoe_shared contract cuda_calls kernel_check
fi
exec python3 tools/gpu_check.py --build "$build" --output "$1"
