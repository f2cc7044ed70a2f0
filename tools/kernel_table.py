"""What the machine code of each kernel must look like; check_sass.py and check_ptxas.py read it. Whoever changes a kernel changes its row.

A row names a kernel, a pattern that finds it by its mangled name, and how often which instruction may stand in it: (least, most), None for no
limit. Instructions are opcodes without their suffixes ("UBLKCP"), * stands for any text. Tensor-core instructions tell shape and where A is:
"QGMMA 64x16x32 register A" or "QGMMA 64x16x32 shared A".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

SOME = (1, None)
NONE = (0, 0)
# Four steps of K = 32 make the 128 that one scale covers. A loop of few tokens has them for two blocks of rows, FP4's loop of 65 to 128 for two K blocks and two parts of the tokens, a loop
# with tokens as M for its one or two subtiles; FP8's of 65 to 128 tokens for two K blocks and for a last one. Fewer of a shape: a loop is missing.
FEW = (8, None)
FEW_AND_MIDDLE = (8 + 16, None)
MANY = (4 + 8, None)
MANY_AND_PAIRS = (4 + 8 + 8 + 4, None)


@dataclass(frozen=True)
class Kernel:
    name: str
    symbol: str
    instructions: dict[str, tuple[int, int | None]] = field(default_factory=dict)


# Every fault is reported through memory, so that the CUDA context survives: no trap (BPT). The ring is filled by bulk copies (UBLKCP).
EVERY_MOE_KERNEL = {"BPT": NONE, "UBLKCP": SOME}

UNFUSED = ("activation", "await_arrived", "await_contributions", "await_drained", "combine", "dispatch", "list", "send")

KERNELS = (
    # Up to 128 tokens weights are M and are expanded from 4 bits in registers, so A comes from registers. Many: tokens are M, from shared memory.
    Kernel(
        "moe_kernel_fp4",
        r"moe_kernelINS0_6ConfigILb0E",
        EVERY_MOE_KERNEL
        | {f"QGMMA 64x{tokens}x32 register A": FEW for tokens in (8, 16, 24, 32)}
        | {f"QGMMA 64x{tokens}x32 register A": FEW_AND_MIDDLE for tokens in (40, 48, 56, 64)}
        | {"QGMMA 64x128x32 shared A": MANY},
    ),
    # Weights (up to 64 tokens) or tokens are M; both operands lie in shared memory as they came.
    Kernel(
        "moe_kernel_fp8",
        r"moe_kernelINS0_6ConfigILb1E",
        EVERY_MOE_KERNEL
        | {f"QGMMA 64x{tokens}x32 shared A": FEW for tokens in range(8, 65, 8)}
        | {"QGMMA 64x128x32 shared A": MANY_AND_PAIRS, "QGMMA * register A": NONE},
    ),
    *(
        Kernel(f"unfused_{name}_kernel", rf"7unfused.*?\d{name}_kernelE", {"BPT": NONE})
        for name in UNFUSED
    ),
    *(
        Kernel(f"unfused_gemm_kernel_fp{bits}", rf"7unfused.*?\dgemm_kernelILb{fp8}E", {"BPT": NONE, "QGMMA * shared A": SOME})
        for bits, fp8 in ((4, 0), (8, 1))
    ),
    # The benchmark's own.
    *(Kernel(f"bench_{name}_kernel", rf"\d{name}_kernelE", {"BPT": NONE}) for name in ("fill_codes", "read_memory")),
)


def kernel_name(mangled: str) -> str:
    """The name in the table, or the mangled name itself."""
    return next((kernel.name for kernel in KERNELS if re.search(kernel.symbol, mangled)), mangled)
