"""monomoe: one expert-parallel Mixture-of-Experts layer, on Hopper GPUs or, with the same bits, on the CPU.

    context = monomoe.Context()
    weights = monomoe.Checkpoint("DIR").weights(context, layer=3)
    workspace = monomoe.Workspace(weights, topk=6, capacity=8192)
    y = monomoe.forward(weights, workspace, x, topk_ids, topk_weights)

Tensors are torch's, NumPy's (bfloat16 and FP8 from ml_dtypes), CuPy's or JAX's, used where they lie. monomoe.torch has the layer as a
module, monomoe.compat the entry points of other packages. Everything that fails raises a subclass of monomoe.Error.
"""

from __future__ import annotations

import ctypes as _c
import json as _json
from typing import Any as _Any

from monomoe import _abi
from monomoe._arguments import int64 as _int64
from monomoe._library import library as _abi_library
from monomoe._library import text as _text
from monomoe.calls import Tokens, forward, forward_ranks
from monomoe.checkpoint import Checkpoint, LayerInfo, inspect, verify
from monomoe.errors import (BadInputError, CheckFailedError, Error, InternalError, PoisonedError, RankTimeoutError, RejectedError,
                            UnavailableError, UsageError)
from monomoe.layer import Context, Expert, FormatName, Matrix, StackedExperts, Weights, Workspace, _FORMATS, choice as _choice

__version__: str = _abi_library.monomoe_version().decode()


def plan(format: FormatName, *, hidden: int, intermediate: int, experts: int, topk: int, ranks: int = 1, capacity: int = 1) -> dict[str, _Any]:
    """Is a problem legal ("legal", "rule"), and how much memory does each rank need ("bytes_per_rank")."""
    sizes = {"hidden": hidden, "intermediate": intermediate, "experts": experts, "topk": topk, "ranks": ranks, "capacity": capacity}
    problem = _abi.Problem(_c.sizeof(_abi.Problem), _choice("format", format, _FORMATS), **{name: _int64(name, size) for name, size in sizes.items()})
    return _json.loads(_text(_abi_library.monomoe_plan, _c.byref(problem)))


def doctor() -> dict[str, _Any]:
    """What this machine can run, and why not the rest."""
    return _json.loads(_text(_abi_library.monomoe_doctor))


__all__ = [
    "BadInputError", "CheckFailedError", "Checkpoint", "Context", "Error", "Expert", "InternalError", "LayerInfo", "Matrix", "PoisonedError",
    "RankTimeoutError", "RejectedError", "StackedExperts", "Tokens", "UnavailableError", "UsageError", "Weights", "Workspace", "doctor",
    "forward", "forward_ranks", "inspect", "plan", "verify",
]
