"""How the other packages order weights before and after their transforms, and the way back to a checkpoint's order. Host tensors of torch."""

from __future__ import annotations

import torch

from monomoe.errors import UsageError

_ROWS = 8  # gate and up rows alternate in runs of this many in the other packages' kernel layout


def separate_rows(tensor: torch.Tensor) -> torch.Tensor:
    """[E, 2 * I, ...] with gate and up rows in turn, eight each, to gate rows, then up rows."""
    experts, rows, *rest = tensor.shape
    if rows % (2 * _ROWS) != 0:
        raise UsageError(f"l1_weights has {rows} rows an expert, wanted a multiple of {2 * _ROWS}: gate and up in turn, {_ROWS} rows each")
    pairs = tensor.reshape(experts, rows // (2 * _ROWS), 2, _ROWS, *rest)
    return pairs.transpose(1, 2).reshape(experts, rows, *rest).contiguous()


def from_word_order(packed: torch.Tensor) -> torch.Tensor:
    """FP4 codes whose 4-byte words hold column b high and b + 4 low in byte b, to two neighbouring columns a byte, the even one low."""
    if packed.shape[-1] % 4 != 0:
        raise UsageError(f"packed FP4 weights have {packed.shape[-1]} bytes a row, wanted a multiple of 4; they come in words of 8 codes")
    words = packed.reshape(*packed.shape[:-1], -1, 4)
    columns = torch.cat((words >> 4, words & 15), dim=-1)
    return (columns[..., 0::2] | (columns[..., 1::2] << 4)).reshape(packed.shape).contiguous()


def fold_power(name: str, exponents: torch.Tensor, factor: torch.Tensor | None) -> torch.Tensor:
    """E8M0 bytes [E, ...] times a float32 factor per expert, which must be a power of two."""
    if factor is None:
        return exponents
    if tuple(factor.shape) != (exponents.shape[0],):
        raise UsageError(f"{name} has shape {tuple(factor.shape)}, wanted ({exponents.shape[0]},), one factor an expert")
    mantissa, power = torch.frexp(factor.detach().cpu().float())
    if not bool((mantissa == 0.5).all()):
        raise UsageError(f"{name} holds a factor that is no positive power of two, and MXFP4 weights have no other scale it could go into; "
                         "multiply it into the scales when quantising, or use NVFP4")
    moved = exponents.to(torch.int32) + (power.to(torch.int32) - 1).reshape(-1, *[1] * (exponents.dim() - 1))
    if bool(((moved < 0) | (moved > 254)).any()):
        raise UsageError(f"{name} moves a scale out of E8M0's range 2^-127..2^127; use factors nearer to 1")
    return moved.to(torch.uint8)
