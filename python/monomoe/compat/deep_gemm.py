"""The SM90 MegaMoE functions of DeepGEMM and its forks. Tensors are torch's.

    from monomoe.compat import deep_gemm
    l1, l2 = deep_gemm.transform_weights_for_mega_moe_sm90((w13, w13_scale), (w2, w2_scale))
    buffer = deep_gemm.get_symm_buffer_for_mega_moe(group, num_experts, capacity, topk, hidden, intermediate)
    deep_gemm.mega_moe_pre_dispatch_sm90(x, ids, weights, buffer.x, buffer.x_sf, buffer.topk_idx, buffer.topk_weights, len(x))
    deep_gemm.fp8_mega_moe(y, l1, l2, buffer, activation_clamp=10.0)

What differs: the arithmetic is monomoe's contract, so fast_math chooses nothing; transforms return placeholders (monomoe.compat._weights);
intermediate activations are quantised per 128 channels with continuous scales; any number of tokens from 0 on, ids below 0 and no clamp are
legal. What is not supported raises monomoe.UsageError or monomoe.UnavailableError.
"""

from __future__ import annotations

import warnings
import weakref
from typing import Any, Optional, Tuple

import torch

from monomoe.compat import _formats, _weights
from monomoe.compat._buffer import StagingBuffer
from monomoe.errors import UsageError
from monomoe.layer import StackedExperts
from monomoe.torch.formats import exponent_bytes

Pair = Tuple[torch.Tensor, torch.Tensor]
Triple = Tuple[torch.Tensor, torch.Tensor, torch.Tensor]

_FP8_MAKER = "transform_weights_for_mega_moe_sm90"
_NVFP4_MAKER = "transform_nvfp4_weights_for_mega_moe_sm90"
_MXFP4_MAKER = "transform_weights_for_mega_moe_sm90_fp4 or transform_weights_for_fp8_mxfp4_fused_mega_moe_sm90"


def _refuse(name: str, argument: str, found: Any, wanted: str) -> None:
    raise UsageError(f"{name}: {argument} is {found!r}, wanted {wanted}; this is not supported here")


# ---- buffers ---------------------------------------------------------------------------------------------------------------------------


class SM90SymmBuffer(StagingBuffer):
    """One rank's buffer: x, x_sf, topk_idx, topk_weights, destroy(). The capacity is rounded up to a multiple of 128."""

    def __init__(self, group: Any, num_experts: int, num_max_tokens_per_rank: int, num_topk: int, hidden: int, intermediate_hidden: int,
                 use_fp8_dispatch: bool = True, activation: str = "swiglu", num_shared_experts: int = 0):
        if not use_fp8_dispatch:
            _refuse("SM90SymmBuffer", "use_fp8_dispatch", use_fp8_dispatch, "True")
        if activation != "swiglu":
            _refuse("SM90SymmBuffer", "activation", activation, "'swiglu'")
        if num_shared_experts != 0:
            _refuse("SM90SymmBuffer", "num_shared_experts", num_shared_experts, "0: run shared experts as a layer of their own")
        super().__init__(group, num_experts, num_max_tokens_per_rank, num_topk, hidden, intermediate_hidden)
        self.num_shared_experts, self.activation, self.mma_type = 0, activation, "fp8xfp4"


SymmBuffer = SM90SymmBuffer


def get_symm_buffer_for_sm90_mega_moe(group: Any, num_experts: int, num_max_tokens_per_rank: int, num_topk: int, hidden: int,
                                      intermediate_hidden: int, use_fp8_dispatch: bool = True, activation: str = "swiglu",
                                      num_shared_experts: int = 0, fused: bool = True, num_experts_per_wave: Optional[int] = None,
                                      l2_act_sf_gran_k: Optional[int] = None) -> SM90SymmBuffer:
    """The buffer of a group (a ProcessGroup, None for one rank, or a monomoe.Context); collective. The last three arguments choose between kernels of the
    other package and choose nothing here, except that l2_act_sf_gran_k cannot be 64."""
    if l2_act_sf_gran_k not in (None, 128):
        _refuse("get_symm_buffer_for_sm90_mega_moe", "l2_act_sf_gran_k", l2_act_sf_gran_k, "None or 128")
    return SM90SymmBuffer(group, num_experts, num_max_tokens_per_rank, num_topk, hidden, intermediate_hidden, use_fp8_dispatch, activation,
                          num_shared_experts)


def get_symm_buffer_for_mega_moe(group: Any, num_experts: int, num_max_tokens_per_rank: int, num_topk: int, hidden: int,
                                 intermediate_hidden: int, num_shared_experts: int = 0, use_fp8_dispatch: Optional[bool] = None,
                                 mma_type: str = "fp8xfp4", activation: str = "swiglu") -> SM90SymmBuffer:
    """The same under the name all architectures share. mma_type must have FP8 activations."""
    if mma_type.split("x")[0] != "fp8":
        _refuse("get_symm_buffer_for_mega_moe", "mma_type", mma_type, "one with FP8 activations, e.g. 'fp8xfp4'")
    if use_fp8_dispatch is not None:
        warnings.warn("use_fp8_dispatch is deprecated, use mma_type", DeprecationWarning, stacklevel=2)
    return SM90SymmBuffer(group, num_experts, num_max_tokens_per_rank, num_topk, hidden, intermediate_hidden,
                          use_fp8_dispatch is not False, activation, num_shared_experts)


def mega_moe_pre_dispatch_sm90(x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor, buf_x: torch.Tensor,
                               buf_x_sf: torch.Tensor, buf_topk_idx: torch.Tensor, buf_topk_weights: torch.Tensor, num_tokens: int,
                               group_size: int = 128, routed_scaling_factor: float = 1.0) -> None:
    """Stages num_tokens rows of x bfloat16 [T, hidden], topk_idx int32 or int64 and topk_weights float32 [T, topk] into a buffer's tensors.

    Quantises as the layer would (docs/numerics.md, N1): the result has the bits of the layer on x. Weights are multiplied by
    routed_scaling_factor; the buffer's other rows get id -1 and weight 0.
    """
    name = "mega_moe_pre_dispatch_sm90"
    if group_size != 128:
        _refuse(name, "group_size", group_size, "128")
    if not 0 <= num_tokens <= min(len(x), len(buf_x)):
        raise UsageError(f"{name}: num_tokens is {num_tokens}, x has {len(x)} rows and the buffer {len(buf_x)}; make the buffer larger")
    if x.dtype is not torch.bfloat16:
        _refuse(name, "x.dtype", x.dtype, "torch.bfloat16")
    if x.dim() != 2 or x.shape[1] % 128 != 0:
        _refuse(name, "x.shape", tuple(x.shape), "[T, hidden] with hidden a multiple of 128")
    rows = x[:num_tokens].float().reshape(num_tokens, x.shape[1] // 128, 128)
    largest = rows.abs().amax(dim=-1, keepdim=True)
    finite = torch.isfinite(largest)
    most = torch.where(finite, largest.clamp_min(1e-10), torch.full_like(largest, float("nan")))
    greatest = torch.full_like(most, 448.0)  # tensors divide with one rounding, Python numbers go through a reciprocal
    codes = torch.where(finite, rows * torch.div(greatest, most), torch.zeros_like(rows)).clamp(-448.0, 448.0)
    buf_x[:num_tokens].copy_(codes.reshape(num_tokens, x.shape[1]).to(torch.float8_e4m3fn))
    buf_x_sf[:num_tokens].copy_(torch.div(most, greatest).squeeze(-1))
    buf_topk_idx[:num_tokens].copy_(topk_idx[:num_tokens])
    buf_topk_weights[:num_tokens].copy_(topk_weights[:num_tokens] * routed_scaling_factor)
    buf_topk_idx[num_tokens:].fill_(-1)
    buf_topk_weights[num_tokens:].fill_(0.0)


# ---- weights ---------------------------------------------------------------------------------------------------------------------------


def _host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous()


def transform_weights_for_mega_moe_sm90(l1_weights: Pair, l2_weights: Pair) -> Tuple[Pair, Pair]:
    """FP8. l1: e4m3 [E, 2 * I, H] (gate rows, then up rows), float32 [E, 2 * I/128, H/128]; l2: e4m3 [E, H, I], float32 [E, H/128, I/128]."""
    (w13, sf13), (w2, sf2) = l1_weights, l2_weights
    source = StackedExperts("fp8", _host(w13), _host(sf13), _host(w2), _host(sf2))
    made = _weights.Transformed(lambda: source)
    return ((_weights.placeholder(w13, tuple(w13.shape), w13.dtype, made), _weights.placeholder(sf13, tuple(sf13.shape), sf13.dtype, made)),
            (_weights.placeholder(w2, tuple(w2.shape), w2.dtype, made), _weights.placeholder(sf2, tuple(sf2.shape), sf2.dtype, made)))


def choose_nvfp4_block_n_for_mega_moe_sm90(num_tokens: int, num_topk: int, num_experts_per_rank: int, intermediate_hidden: int) -> int:
    """256, always: one layout serves all token counts here, so nothing depends on the choice."""
    return 256


def transform_nvfp4_weights_for_mega_moe_sm90(l1_weights: Pair, l2_weights: Pair, block_n: int = 128, block_k: int = 128, group_size: int = 16,
                                              fused_b_scale: Optional[bool] = None) -> Tuple[Pair, Pair]:
    """NVFP4. l1: codes uint8 [E, 2 * I, H/2] in words of eight (byte b: column b + 4 low, b high), scales uint8 e4m3 [E, 2 * I, H/16];
    l2: [E, H, I/2], [E, H, I/16]. block_n and fused_b_scale choose a layout of the other package and choose nothing here."""
    name = _NVFP4_MAKER
    if (block_k, group_size) != (128, 16):
        _refuse(name, "(block_k, group_size)", (block_k, group_size), "(128, 16)")
    if block_n not in (128, 256):
        _refuse(name, "block_n", block_n, "128 or 256")
    (w13, sf13), (w2, sf2) = l1_weights, l2_weights
    source = StackedExperts("nvfp4", _formats.from_word_order(_host(w13)), _host(sf13), _formats.from_word_order(_host(w2)), _host(sf2))
    made = _weights.Transformed(lambda: source)

    def pair(codes: torch.Tensor) -> Pair:
        experts, rows, half = codes.shape
        blocks = half * 2 // 128
        return (_weights.placeholder(codes, (experts, rows, blocks * 80), torch.uint8, made),
                _weights.placeholder(codes, (experts, rows // block_n, blocks, block_n, 8), torch.uint8, made))

    return pair(w13), pair(w2)


def transform_weights_for_mega_moe_sm90_fp4(l1_weights: Pair, l2_weights: Pair) -> Tuple[Pair, Pair]:
    """MXFP4. l1: codes int8 or uint8 [E, 2 * I, H/2] (low nibble = even column), scales [E, 2 * I, H/32] as float32 powers of two, uint8 or
    float8_e8m0fnu; l2: [E, H, I/2], [E, H, I/32]."""
    (w13, sf13), (w2, sf2) = l1_weights, l2_weights
    made = _mxfp4(l1_weights, l2_weights, None, None)
    return ((_weights.placeholder(w13, tuple(w13.shape), torch.int8, made),
             _weights.placeholder(sf13, (*sf13.shape[:2], sf13.shape[2] // 4), torch.int32, made)),
            (_weights.placeholder(w2, tuple(w2.shape), torch.int8, made),
             _weights.placeholder(sf2, (*sf2.shape[:2], sf2.shape[2] // 4), torch.int32, made)))


def transform_weights_for_fp8_mxfp4_mega_moe_sm90(l1_weights: Pair, l2_weights: Pair) -> Tuple[Pair, Pair]:
    """MXFP4 as pairs; inputs as for transform_weights_for_mega_moe_sm90_fp4."""
    (w13, sf13), (w2, sf2) = l1_weights, l2_weights
    made = _mxfp4(l1_weights, l2_weights, None, None)
    return ((_weights.placeholder(w13, tuple(w13.shape), torch.int8, made), _weights.placeholder(sf13, tuple(sf13.shape), torch.uint8, made)),
            (_weights.placeholder(w2, tuple(w2.shape), torch.int8, made), _weights.placeholder(sf2, tuple(sf2.shape), torch.uint8, made)))


def transform_weights_for_fp8_mxfp4_fused_mega_moe_sm90(l1_weights: Pair, l2_weights: Pair, l1_weight_scale_2: Optional[torch.Tensor] = None,
                                                        l2_weight_scale_2: Optional[torch.Tensor] = None) -> Tuple[Triple, Triple]:
    """MXFP4 as triples, with a float32 factor per expert [E], which must be a power of two here."""
    (w13, sf13), (w2, sf2) = l1_weights, l2_weights
    made = _mxfp4(l1_weights, l2_weights, l1_weight_scale_2, l2_weight_scale_2)

    def triple(codes: torch.Tensor, scales: torch.Tensor) -> Triple:
        return (_weights.placeholder(codes, tuple(codes.shape), torch.int8, made), _weights.placeholder(scales, tuple(scales.shape), torch.uint8, made),
                _weights.placeholder(codes, (codes.shape[0],), torch.float32, made))

    return triple(w13, sf13), triple(w2, sf2)


def _mxfp4(l1: Pair, l2: Pair, l1_factor: Optional[torch.Tensor], l2_factor: Optional[torch.Tensor]) -> _weights.Transformed:
    if (l1_factor is None) != (l2_factor is None):
        raise UsageError("one of l1_weight_scale_2 and l2_weight_scale_2 is given, wanted both or none")
    sf13 = _formats.fold_power("l1_weight_scale_2", exponent_bytes("l1_weights[1]", _host(l1[1])), l1_factor)
    sf2 = _formats.fold_power("l2_weight_scale_2", exponent_bytes("l2_weights[1]", _host(l2[1])), l2_factor)
    source = StackedExperts("mxfp4", _host(l1[0]).view(torch.uint8), sf13, _host(l2[0]).view(torch.uint8), sf2)
    return _weights.Transformed(lambda: source)


# ---- calls -----------------------------------------------------------------------------------------------------------------------------


def _check_call(name: str, recipe: Tuple[int, int, int], wanted: Tuple[int, int, int], activation: str) -> None:
    if tuple(recipe) != wanted:
        _refuse(name, "recipe", recipe, str(wanted))
    if activation != "swiglu":
        _refuse(name, "activation", activation, "'swiglu'")


def _refuse_given(name: str, **arguments: Any) -> None:
    for argument, value in arguments.items():
        if value is not None and value is not False:
            _refuse(name, argument, "given", "it left away")


def fp8_mega_moe(y: torch.Tensor, l1_weights: Pair, l2_weights: Pair, sym_buffer: SM90SymmBuffer,
                 cumulative_local_expert_recv_stats: Optional[torch.Tensor] = None, recipe: Tuple[int, int, int] = (128, 128, 128),
                 activation: str = "swiglu", activation_clamp: Optional[float] = None, fast_math: bool = True,
                 num_tokens_bound: Optional[int] = None) -> None:
    """The layer with FP8 weights on the buffer's first len(y) rows; y bfloat16 [num_tokens, hidden], num_tokens >= 0.

    The weights are those of transform_weights_for_mega_moe_sm90, or plain tensors in the other package's kernel layout (gate and up rows in
    turn, eight each; scales as in the checkpoint), which are packed again whenever they were written to since the last call.
    """
    name = "fp8_mega_moe"
    _check_call(name, recipe, (128, 128, 128), activation)
    if not _weights.is_placeholder(l1_weights[0]) and not _weights.is_placeholder(l2_weights[0]):
        _adopt_fp8(l1_weights, l2_weights)
    made = _weights.transformed(name, _FP8_MAKER, l1_weights[0], l2_weights[0])
    layer = made.layer(sym_buffer.living_workspace(), activation_clamp)
    sym_buffer.run(name, layer, y, len(y), cumulative_local_expert_recv_stats)


def nvfp4_mega_moe(y: torch.Tensor, l1_weights: Pair, l2_weights: Pair, sym_buffer: SM90SymmBuffer,
                   cumulative_local_expert_recv_stats: Optional[torch.Tensor] = None, l1_global_scales: Optional[torch.Tensor] = None,
                   l2_global_scales: Optional[torch.Tensor] = None, recipe: Tuple[int, int, int] = (128, 128, 128), activation: str = "swiglu",
                   activation_clamp: Optional[float] = None, fast_math: bool = True) -> None:
    """The layer with NVFP4 weights. l1/l2_global_scales: float32 [E], None = 1; packed with the weights at the first call."""
    name = "nvfp4_mega_moe"
    _check_call(name, recipe, (128, 128, 128), activation)
    made = _weights.transformed(name, _NVFP4_MAKER, l1_weights[0], l2_weights[0])
    layer = made.layer(sym_buffer.living_workspace(), activation_clamp, l1_global_scales, l2_global_scales)
    sym_buffer.run(name, layer, y, len(y), cumulative_local_expert_recv_stats)


def fp8_fp4_mega_moe(y: torch.Tensor, l1_weights: Pair, l2_weights: Pair, sym_buffer: SM90SymmBuffer,
                     shared_l1_weights: Optional[Pair] = None, shared_l2_weights: Optional[Pair] = None,
                     cumulative_local_expert_recv_stats: Optional[torch.Tensor] = None, recipe: Tuple[int, int, int] = (1, 1, 32),
                     activation: str = "swiglu", activation_clamp: Optional[float] = None, fast_math: bool = True) -> None:
    """The layer with MXFP4 weights."""
    name = "fp8_fp4_mega_moe"
    _refuse_given(name, shared_l1_weights=shared_l1_weights, shared_l2_weights=shared_l2_weights)
    _check_call(name, recipe, (1, 1, 32), activation)
    made = _weights.transformed(name, _MXFP4_MAKER, l1_weights[0], l2_weights[0])
    layer = made.layer(sym_buffer.living_workspace(), activation_clamp)
    sym_buffer.run(name, layer, y, len(y), cumulative_local_expert_recv_stats)


def fp8_mxfp4_mega_moe(y: torch.Tensor, l1_weights: Any, l2_weights: Any, sym_buffer: SM90SymmBuffer,
                       shared_l1_weights: Optional[Pair] = None, shared_l2_weights: Optional[Pair] = None,
                       cumulative_local_expert_recv_stats: Optional[torch.Tensor] = None, recipe: Tuple[int, int, int] = (1, 1, 32),
                       activation: str = "swiglu", activation_clamp: Optional[float] = None, fast_math: bool = True,
                       fp8_scale_mode: str = "blockwise", activation_dequant_scales: Tuple[float, float] = (1.0, 1.0)) -> None:
    """The layer with MXFP4 weights, under the name of the line that returns triples."""
    if fp8_scale_mode != "blockwise":
        _refuse("fp8_mxfp4_mega_moe", "fp8_scale_mode", fp8_scale_mode, "'blockwise'")
    fp8_fp4_mega_moe(y, l1_weights, l2_weights, sym_buffer, shared_l1_weights, shared_l2_weights, cumulative_local_expert_recv_stats, recipe,
                     activation, activation_clamp, fast_math)


def pack_weights(sym_buffer: SM90SymmBuffer, l1_weights: Any, l2_weights: Any, activation_clamp: Optional[float] = None,
                 l1_global_scales: Optional[torch.Tensor] = None, l2_global_scales: Optional[torch.Tensor] = None) -> None:
    """Packs transformed weights now, with what later calls will give, so that the first call may be in a CUDA graph. Not in the other package."""
    made = _weights.transformed("pack_weights", "a transform of this module", l1_weights[0], l2_weights[0])
    made.layer(sym_buffer.living_workspace(), activation_clamp, l1_global_scales, l2_global_scales)


def _adopt_fp8(l1_weights: Pair, l2_weights: Pair) -> None:
    """Marks plain tensors in the other package's kernel layout."""
    references = [weakref.ref(tensor) for tensor in (*l1_weights, *l2_weights)]

    def source() -> StackedExperts:
        w13, sf13, w2, sf2 = (_host(reference()) for reference in references)  # type: ignore[arg-type]
        return StackedExperts("fp8", _formats.separate_rows(w13.view(torch.uint8)).view(torch.float8_e4m3fn), sf13, w2, sf2)

    _weights.adopt(l1_weights, l2_weights, source)
