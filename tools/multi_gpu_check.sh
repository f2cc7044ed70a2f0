#!/usr/bin/env bash
# Everything that needs several Hopper GPUs of one machine, in one command: builds (unless MONOMOE_BUILD names a finished build), runs the contract's
# cases over a process a GPU, processes that each see one GPU, faults, the bandwidth of rows over NVLink, the layer's time, and the Python ranks, and
# writes one JSON with commit, devices, driver and every figure. Says SKIPPED, with exit code 4, where there are fewer than two.
#   tools/multi_gpu_check.sh results/h200-x8.json
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ $# -lt 1 ]; then
  echo "usage: tools/multi_gpu_check.sh RESULT.json [--ranks R] [--steps a,b,..] [--shared-gpu]    (MONOMOE_BUILD=DIR: use the programs built there)" >&2
  exit 2
fi
build=${MONOMOE_BUILD:-}
if [ -z "$build" ]; then
  build=build
  cmake -S . -B "$build" -G Ninja -DMONOMOE_CUDA=ON -DMONOMOE_TESTS=ON >/dev/null
  ninja -C "$build" monomoe_cli monomoe_shared peer_rows world_faults
fi
exec python3 tools/multi_gpu_check.py --build "$build" --output "$@"
