"""Scales as other frameworks hold them, brought to what the layer takes."""

from __future__ import annotations

import torch

from monomoe.errors import UsageError


def exponent_bytes(name: str, scale: torch.Tensor) -> torch.Tensor:
    """E8M0 bytes of scales given as bytes, as float8_e8m0fnu or as float32 powers of two; any shape and device."""
    if scale.dtype is torch.uint8:
        return scale.contiguous()
    if scale.dtype is getattr(torch, "float8_e8m0fnu", None):
        return scale.contiguous().view(torch.uint8)
    if scale.dtype is not torch.float32:
        raise UsageError(f"{name} is {scale.dtype}, wanted uint8, float8_e8m0fnu or float32 powers of two; convert it")
    bits = scale.contiguous().view(torch.int32)
    smallest = bits == 1 << 22  # 2^-127, a subnormal
    exponent = bits >> 23
    if not bool((smallest | ((bits & 0x7FFFFF == 0) & (exponent >= 1) & (exponent <= 254))).all()):
        raise UsageError(f"{name} holds a float32 scale that is no positive power of two, wanted E8M0 scales; quantise the weights to MXFP4")
    return torch.where(smallest, torch.zeros_like(exponent), exponent).to(torch.uint8)
