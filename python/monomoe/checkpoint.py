"""Checkpoints in safetensors: what their layers are, their experts packed, their router, and reports about them."""

from __future__ import annotations

import ctypes as c
import json
import math
import os
from dataclasses import dataclass
from typing import Any

from monomoe import _abi, tensors
from monomoe._arguments import instance, int32, number, path
from monomoe._library import Handle, check, library, text
from monomoe.errors import UsageError
from monomoe.layer import Context, PlacementLike, Weights, placement_struct


@dataclass(frozen=True)
class LayerInfo:
    """What one layer is. None where config.json does not say."""

    format: str
    hidden: int
    intermediate: int
    num_experts: int
    topk: int | None
    has_router: bool
    needs_token_ids: bool
    has_shared_expert: bool
    swiglu_limit: float | None
    routed_scaling_factor: float | None
    shared_intermediate: int


def _known(value: float) -> Any:
    return None if value == -1 or math.isnan(value) else value


class Checkpoint:
    """A directory of safetensors shards with config.json, mapped while this object lives."""

    def __init__(self, directory: str | os.PathLike[str]):
        name = path("directory", directory)
        self.directory = os.fspath(directory)
        self._handle = Handle(library.monomoe_checkpoint_close, library.monomoe_checkpoint_open, name)

    def layer_info(self, layer: int) -> LayerInfo:
        raw = _abi.LayerInfo(c.sizeof(_abi.LayerInfo))
        check(library.monomoe_checkpoint_layer_info(self._handle.pointer, int32("layer", layer), c.byref(raw)))
        return LayerInfo(_abi.Format(raw.format).name.lower(), raw.hidden, raw.intermediate, raw.num_experts, _known(raw.topk),
                         raw.has_router == 1, raw.needs_token_ids == 1, raw.has_shared_expert == 1, _known(raw.swiglu_limit) or None,
                         _known(raw.routed_scaling_factor), raw.shared_intermediate)

    def weights(self, context: Context, layer: int, *, placement: PlacementLike | None = None, swiglu_limit: float | None = None) -> Weights:
        """The layer's routed experts, packed. swiglu_limit: None = config.json's (none if it has none); 0 = no clamp."""
        context, info = instance("context", context, Context), self.layer_info(layer)
        where, alive = placement_struct(placement)
        handle = Handle(library.monomoe_weights_destroy, library.monomoe_checkpoint_weights, context._handle.pointer, self._handle.pointer,
                        int32("layer", layer), where, -1.0 if swiglu_limit is None else number("swiglu_limit", swiglu_limit),
                        parents=(context._handle,))
        del alive
        return Weights._of_handle(context, handle, info.num_experts, info.hidden, info.intermediate)

    def shared_weights(self, context: Context, layer: int, *, swiglu_limit: float | None = None) -> Weights:
        """The layer's shared expert(s), packed as one expert."""
        context, info = instance("context", context, Context), self.layer_info(layer)
        handle = Handle(library.monomoe_weights_destroy, library.monomoe_checkpoint_shared_weights, context._handle.pointer,
                        self._handle.pointer, int32("layer", layer), -1.0 if swiglu_limit is None else number("swiglu_limit", swiglu_limit),
                        parents=(context._handle,))
        return Weights._of_handle(context, handle, 1, info.hidden, info.shared_intermediate)

    def route(self, layer: int, x: Any, token_ids: Any = None) -> tuple[Any, Any]:
        """The checkpoint's router on the host: x bfloat16 [num_tokens, hidden]; token_ids int64 [num_tokens] for hash layers.

        Returns topk_ids int64 and topk_weights float32 [num_tokens, topk], scaling factor included: as torch tensors if x is one,
        else as NumPy arrays.
        """
        info = self.layer_info(layer)
        found = tensors.host_view("x", x)
        if len(found.shape) != 2:
            raise UsageError(f"x has shape {found.shape}, wanted [num_tokens, {info.hidden}]; reshape it")
        tensors.require(found, "x", ("bfloat16", "uint16"), (found.shape[0], info.hidden))
        ids_in = None
        if token_ids is not None:
            ids_in = tensors.require(tensors.host_view("token_ids", token_ids), "token_ids", ("int64",), (found.shape[0],))
        if info.topk is None:
            raise UsageError(f"{self.directory}: config.json does not say how many experts a token has; route the tokens yourself")
        ids, weights = _routing_like(x, (found.shape[0], info.topk))
        ids_view, weights_view = tensors.view("topk_ids", ids), tensors.view("topk_weights", weights)
        check(library.monomoe_checkpoint_route(self._handle.pointer, int32("layer", layer), found.pointer, found.shape[0],
                                               ids_in.pointer if ids_in else None, ids_view.pointer, weights_view.pointer))
        return ids, weights


def _routing_like(x: Any, shape: tuple[int, int]) -> tuple[Any, Any]:
    if type(x).__module__.split(".")[0] == "torch":
        import torch
        return torch.empty(shape, dtype=torch.int64), torch.empty(shape, dtype=torch.float32)
    import numpy
    return numpy.empty(shape, dtype=numpy.int64), numpy.empty(shape, dtype=numpy.float32)


def inspect(directory: str | os.PathLike[str], layer: int = -1, *, costs: bool = False) -> dict[str, Any]:
    """Layers, formats and router, from headers and settings alone. costs: also what converting each matrix costs, which reads the weights.

    layer -1 = all; of one layer the matrices are listed.
    """
    return json.loads(text(library.monomoe_checkpoint_inspect, path("directory", directory), int32("layer", layer), int(instance("costs", costs, bool))))


def verify(directory: str | os.PathLike[str], layer: int = -1, *, values: bool = True) -> dict[str, Any]:
    """{"ok", "problems", "notes"}: every problem of the files is listed. Problems are a report, not an error. layer -1 = all.

    values=False: headers, index and settings alone are read; NaN codes and bad scales are not found then.
    """
    return json.loads(text(library.monomoe_checkpoint_verify, path("directory", directory), int32("layer", layer), int(instance("values", values, bool))))
