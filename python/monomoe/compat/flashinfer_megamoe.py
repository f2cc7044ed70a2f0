"""flashinfer.megamoe: SM90 MegaMoE with NVFP4 or MXFP4 weights. Tensors are torch's.

    from monomoe.compat import flashinfer_megamoe as megamoe
    w1, w2 = megamoe.transform_nvfp4_weights_for_mega_moe((w13, w13_sf), (w2_raw, w2_sf))
    buffer = megamoe.MegaMoESymmBuffer(group, 256, 8448, 6, 4096, 2048)
    buffer.stage(x_fp8, x_sf, topk_idx, topk_weights)
    megamoe.nvfp4_mega_moe(y, w1, w2, buffer, l1_global_scales=g1, l2_global_scales=g2)

What differs: 0 tokens, other counts on other ranks, no clamp and any scale that the format has are legal; nothing is compiled at run time, so
prewarm builds nothing and the arguments that choose a kernel choose nothing; the plan functions are not here. What is not supported raises
monomoe.UsageError or monomoe.UnavailableError.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch

from monomoe.compat import _formats, _weights
from monomoe.compat._buffer import StagingBuffer
from monomoe.errors import UsageError
from monomoe.layer import StackedExperts

Pair = Tuple[torch.Tensor, torch.Tensor]

#: Tokens up to which the other package takes its fused kernels. Chooses nothing here.
FAMILY_THRESHOLD = 256
_MXFP4_TILE_BYTES = 128 * 68
_FAMILIES = ("auto", "fused", "split")


class MegaMoESymmBuffer(StagingBuffer):
    """One rank's buffer: x, x_sf, topk_idx, topk_weights, stage(), commit_staged(), destroy(). group: a ProcessGroup, None (one rank), or a
    monomoe.Context. activation_clamp: None = no clamp. fast_math chooses nothing."""

    def __init__(self, group: Any, num_experts: int, num_max_tokens_per_rank: int, num_topk: int, hidden: int, intermediate_hidden: int,
                 activation_clamp: Optional[float] = 10.0, fast_math: bool = True):
        super().__init__(group, num_experts, num_max_tokens_per_rank, num_topk, hidden, intermediate_hidden)
        self.activation_clamp, self.fast_math, self.num_staged_tokens = activation_clamp, fast_math, 0

    def stage(self, x_fp8: torch.Tensor, x_sf: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor) -> None:
        """Copies this rank's tokens in: e4m3 [T, hidden], float32 [T, hidden/128], int64 and float32 [T, topk]; T may be 0."""
        rows = x_fp8.shape[0]
        self._require_count(rows)
        wanted = ((self.x, x_fp8, "x_fp8"), (self.x_sf, x_sf, "x_sf"), (self.topk_idx, topk_idx, "topk_idx"),
                  (self.topk_weights, topk_weights, "topk_weights"))
        for target, given, name in wanted:
            shape = (rows, target.shape[1])
            if tuple(given.shape) != shape or given.dtype is not target.dtype or given.device != target.device:
                raise UsageError(f"stage: {name} is {given.dtype} {tuple(given.shape)} on {given.device}, wanted {target.dtype} {shape} on "
                                 f"{target.device}")
        for target, given, _ in wanted:
            target[:rows].copy_(given)
        self.num_staged_tokens = rows

    def commit_staged(self, num_tokens: int) -> None:
        """Takes the first num_tokens rows, which the caller wrote into the tensors on the current stream, as this call's."""
        self._require_count(num_tokens)
        self.num_staged_tokens = int(num_tokens)

    def prewarm(self, kernel_family: str = "auto", family_threshold: Optional[int] = None) -> int:
        """0: there is nothing to build."""
        _require_family(kernel_family)
        return 0

    def _require_count(self, rows: int) -> None:
        self.living_workspace()
        if not 0 <= rows <= self.num_max_tokens_per_rank:
            raise UsageError(f"{rows} tokens, the buffer was made for at most {self.num_max_tokens_per_rank}; make it larger")


def _require_family(kernel_family: str) -> None:
    if kernel_family not in _FAMILIES:
        raise UsageError(f"kernel_family is {kernel_family!r}, wanted one of {_FAMILIES}")


def transform_nvfp4_weights_for_mega_moe(l1_weights: Pair, l2_weights: Pair) -> Tuple[torch.Tensor, torch.Tensor]:
    """l1: codes uint8 [E, 2 * I, H/2] in words of eight (byte b: column b + 4 low, b high), gate rows then up rows, and e4m3 scales as uint8
    [E, 2 * I, H/16]; l2: [E, H, I/2], [E, H, I/16]. Returns placeholders uint8 [E, rows, columns/128 * 80]."""
    made = _prepare("nvfp4", 16, l1_weights, l2_weights)

    def one(codes: torch.Tensor) -> torch.Tensor:
        experts, rows, half = codes.shape
        return _weights.placeholder(codes, (experts, rows, half * 2 // 128 * 80), torch.uint8, made)

    return one(l1_weights[0]), one(l2_weights[0])


def transform_mxfp4_weights_for_mega_moe(l1_weights: Pair, l2_weights: Pair) -> Tuple[torch.Tensor, torch.Tensor]:
    """The same with E8M0 scales as uint8 [E, rows, columns/32]. Returns placeholders uint8 [E, rows/128 * columns/128, 8704]."""
    made = _prepare("mxfp4", 32, l1_weights, l2_weights)

    def one(codes: torch.Tensor) -> torch.Tensor:
        experts, rows, half = codes.shape
        return _weights.placeholder(codes, (experts, rows // 128 * (half * 2 // 128), _MXFP4_TILE_BYTES), torch.uint8, made)

    return one(l1_weights[0]), one(l2_weights[0])


def _prepare(kind: Any, group: int, l1: Pair, l2: Pair) -> _weights.Transformed:
    host: list[torch.Tensor] = []
    for name, (codes, scales) in (("l1_weights", l1), ("l2_weights", l2)):
        if codes.dtype is not torch.uint8 or scales.dtype is not torch.uint8 or codes.dim() != 3:
            raise UsageError(f"{name} are {codes.dtype} {tuple(codes.shape)} and {scales.dtype}, wanted torch.uint8 [E, N, K/2] and torch.uint8")
        wanted = (*codes.shape[:2], codes.shape[2] * 2 // group)
        if tuple(scales.shape) != wanted:
            raise UsageError(f"the scales of {name} have shape {tuple(scales.shape)}, wanted {wanted}: one for {group} values")
        host += [_formats.from_word_order(codes.detach().cpu()), scales.detach().cpu().contiguous()]
    source = StackedExperts(kind, *host)
    return _weights.Transformed(lambda: source)


def nvfp4_mega_moe(y: torch.Tensor, l1_weights: torch.Tensor, l2_weights: torch.Tensor, symm_buffer: MegaMoESymmBuffer,
                   num_tokens: Optional[int] = None, cumulative_local_expert_recv_stats: Optional[torch.Tensor] = None,
                   l1_global_scales: Optional[torch.Tensor] = None, l2_global_scales: Optional[torch.Tensor] = None,
                   force_push_dispatch: Optional[bool] = None, force_no_clean_barrier: Optional[bool] = None, kernel_family: str = "auto",
                   family_threshold: int = 256) -> torch.Tensor:
    """The layer on the first num_tokens staged rows (None: len(y)) into y bfloat16 [num_tokens or more, hidden], which is returned.

    l1/l2_global_scales: float32 [E], None = 1; packed with the weights at the first call. The last four arguments choose nothing.
    """
    _require_family(kernel_family)
    made = _weights.transformed("nvfp4_mega_moe", "transform_nvfp4_weights_for_mega_moe", l1_weights, l2_weights)
    return _run("nvfp4_mega_moe", y, made, symm_buffer, num_tokens, cumulative_local_expert_recv_stats, l1_global_scales, l2_global_scales)


def mxfp4_mega_moe(y: torch.Tensor, l1_weights: torch.Tensor, l2_weights: torch.Tensor, symm_buffer: MegaMoESymmBuffer,
                   num_tokens: Optional[int] = None, cumulative_local_expert_recv_stats: Optional[torch.Tensor] = None,
                   l1_global_scales: Optional[torch.Tensor] = None, l2_global_scales: Optional[torch.Tensor] = None) -> torch.Tensor:
    """The layer with MXFP4 weights. Global scales must be powers of two, for the format has no place for others."""
    made = _weights.transformed("mxfp4_mega_moe", "transform_mxfp4_weights_for_mega_moe", l1_weights, l2_weights)
    return _run("mxfp4_mega_moe", y, made, symm_buffer, num_tokens, cumulative_local_expert_recv_stats, l1_global_scales, l2_global_scales)


def _run(name: str, y: torch.Tensor, made: _weights.Transformed, buffer: MegaMoESymmBuffer, num_tokens: Optional[int],
         stats: Optional[torch.Tensor], l1_globals: Optional[torch.Tensor], l2_globals: Optional[torch.Tensor]) -> torch.Tensor:
    workspace = buffer.living_workspace()
    rows = int(num_tokens if num_tokens is not None else y.shape[0])
    if rows > buffer.num_staged_tokens:
        raise UsageError(f"{name}: {rows} tokens, but {buffer.num_staged_tokens} are staged; call stage or commit_staged first")
    buffer.run(name, made.layer(workspace, buffer.activation_clamp, l1_globals, l2_globals), y, rows, stats)
    return y


def __getattr__(name: str) -> Any:
    if name in ("select_fused_plan", "select_mxfp4_fused_plan", "select_split_plan", "FusedPlan", "SplitPlan"):
        raise AttributeError(f"monomoe.compat.flashinfer_megamoe has no {name}: the kernel decides on the GPU from true counts, so there is no plan "
                             "to ask for")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
