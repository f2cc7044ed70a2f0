"""MoELayer: packed experts and a workspace behind an nn.Module."""

from __future__ import annotations

import ctypes as c
import functools
import itertools
import os
import struct
import weakref
from typing import Any, Sequence

import torch

from monomoe import _abi
from monomoe._arguments import instance, int32, int64
from monomoe._library import fail, library
from monomoe.calls import forward as generic_forward
from monomoe.checkpoint import Checkpoint
from monomoe.errors import UsageError
from monomoe.layer import BackendName, Context, Expert, FormatName, PackedExperts, PlacementLike, StackedExperts, Weights, Workspace, World, _BACKENDS, choice

_keys = itertools.count(1)
_layers: "weakref.WeakValueDictionary[int, MoELayer]" = weakref.WeakValueDictionary()
# A function object without argument types takes pointers as they come, and packed bytes for the struct: half the time of typed arguments.
_forward_rank = library["monomoe_forward_rank"]
_pack_tokens = struct.Struct("@IiqPPiPPP").pack
_STRUCT_SIZE, _BF16, _E4M3 = c.sizeof(_abi.Tokens), int(_abi.DType.BF16), int(_abi.DType.E4M3)
assert struct.calcsize("@IiqPPiPPP") == _STRUCT_SIZE
_IDS = {torch.int32: int(_abi.DType.I32), torch.int64: int(_abi.DType.I64)}
_LEGACY_STREAM = 1  # cudaStreamLegacy, torch's stream 0


def _usual(x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, x_scales: torch.Tensor | None, out: torch.Tensor | None,
           device: int, hidden: int, topk: int) -> bool:
    """Whether everything is as the ABI takes it, with as few questions to torch as that needs."""
    shape, slots = x.shape, topk_ids.shape
    if len(shape) != 2 or shape[1] != hidden or slots != (shape[0], topk) or slots != topk_weights.shape:
        return False
    if not (topk_ids.dtype in _IDS and topk_weights.dtype is torch.float32 and x.is_contiguous() and topk_ids.is_contiguous()
            and topk_weights.is_contiguous() and topk_ids.get_device() == device and topk_weights.get_device() == device):
        return False
    if out is not None and not (out.dtype is torch.bfloat16 and out.shape == shape and out.is_contiguous() and out.get_device() == device):
        return False
    if x_scales is None:
        return x.dtype is torch.bfloat16
    return (x.dtype is torch.float8_e4m3fn and x_scales.dtype is torch.float32 and x_scales.shape == (shape[0], hidden // 128)
            and x_scales.is_contiguous() and x_scales.get_device() == device)


def _raw_stream(device: int) -> int:
    return torch.cuda.current_stream(device).cuda_stream


# The binding torch's own compiler calls for each kernel: a quarter of the time of building a Stream object.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _raw_stream)


def default_context(backend: BackendName = "auto") -> Context:
    """The process's context of one rank, on torch's current GPU where it has one, shared by all layers that are given none."""
    choice("backend", backend, _BACKENDS)
    gpu = torch.cuda.current_device() if backend != "cpu" and torch.cuda.is_available() else 0
    return _default_context(backend, gpu)


@functools.lru_cache(maxsize=None)
def _default_context(backend: BackendName, gpu: int) -> Context:
    if gpu == 0:
        return Context(backend)
    from monomoe.torch.distributed import LocalMemory
    context = Context(backend, world=World(1, 0, LocalMemory(gpu), gpu))
    return context if context.backend == "cuda" else Context("cpu")


def _in_place(packed: PackedExperts) -> torch.Tensor:
    device = torch.device("cuda", packed.gpu) if packed.gpu >= 0 else torch.device("cpu")
    if packed.num_experts == 0:
        return torch.empty((0, packed.expert_bytes), dtype=torch.uint8, device=device)
    if packed.gpu >= 0:
        return torch.as_tensor(packed, device=device)
    memory = (c.c_uint8 * (packed.num_experts * packed.expert_bytes)).from_address(packed.pointer)
    memory.owner = packed  # type: ignore[attr-defined]  # the tensor keeps the buffer, the buffer the weights
    return torch.frombuffer(memory, dtype=torch.uint8).view(packed.num_experts, packed.expert_bytes)


class MoELayer(torch.nn.Module):
    """One Mixture-of-Experts layer for inference.

    forward takes x bfloat16 [num_tokens, hidden] (or e4m3 with x_scales float32 [num_tokens, hidden/128]), topk_ids int32 or int64 and
    topk_weights float32 [num_tokens, topk], and returns bfloat16 [num_tokens, hidden]. num_tokens may be 0 and is at most max_tokens;
    a negative id drops its slot. Weights are used as they are: no renormalisation, no scaling factor.

    On CUDA tensors the call is enqueued on torch's current stream and returns at once; it can be captured in a CUDA graph from the first
    call on. Ids are then checked by the launch: a bad one poisons the workspace, which check() and the next call tell. CPU tensors run on
    the CPU backend, or are copied if the context is a GPU's. Layers of one context may share a workspace as long as they run one after
    the other. The experts are packed, not Parameters: they are in no state_dict, and update_expert replaces one.
    """

    def __init__(self, weights: Weights, *, topk: int = 0, max_tokens: int = 0, workspace: Workspace | None = None, rank: int | None = None):
        super().__init__()
        instance("weights", weights, Weights)
        topk, max_tokens = int32("topk", topk), int64("max_tokens", max_tokens)
        if workspace is None:
            workspace = Workspace(weights, topk=topk, capacity=max_tokens)
        elif topk not in (0, instance("workspace", workspace, Workspace).topk) or max_tokens > workspace.capacity:
            raise UsageError(f"topk {topk} and max_tokens {max_tokens} do not fit the workspace of topk {workspace.topk} and capacity "
                             f"{workspace.capacity}; leave them away or give another workspace")
        self.weights, self.workspace, self.rank = weights, workspace, weights.context.rank_of_call(rank)
        self.hidden, self.topk = weights.hidden, workspace.topk
        self.key = next(_keys)
        _layers[self.key] = self
        self._weights_pointer, self._workspace_pointer = c.c_void_p(weights._handle.pointer), c.c_void_p(workspace._handle.pointer)
        self._on_gpu = weights.context.backend == "cuda"

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint | str | os.PathLike[str], layer: int, *, max_tokens: int = 0, topk: int | None = None,
                        context: Context | None = None, workspace: Workspace | None = None, swiglu_limit: float | None = None,
                        placement: PlacementLike | None = None) -> "MoELayer":
        """The routed experts of a checkpoint's layer. topk and swiglu_limit: None = config.json's."""
        opened = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
        if topk is None and workspace is None:
            topk = opened.layer_info(layer).topk
            if topk is None:
                raise UsageError(f"{opened.directory}: config.json does not say how many experts a token has; give topk")
        weights = opened.weights(default_context() if context is None else context, layer, placement=placement, swiglu_limit=swiglu_limit)
        return cls(weights, topk=0 if topk is None else topk, max_tokens=max_tokens, workspace=workspace)

    @classmethod
    def from_tensors(cls, format: FormatName, w13: torch.Tensor, w13_scale: torch.Tensor, w2: torch.Tensor, w2_scale: torch.Tensor, *,
                     topk: int = 0, max_tokens: int = 0, w13_global: torch.Tensor | None = None, w2_global: torch.Tensor | None = None,
                     swiglu_limit: float | None = None, context: Context | None = None, workspace: Workspace | None = None,
                     placement: PlacementLike | None = None, num_experts: int | None = None, ids: Sequence[int] | None = None,
                     tag: int = 0) -> "MoELayer":
        """All experts from stacked tensors (monomoe.StackedExperts has their shapes), or this rank's (monomoe.Weights: num_experts, ids, tag); read
        here only, on any device."""
        experts = StackedExperts(format, w13, w13_scale, w2, w2_scale, w13_global, w2_global)
        weights = Weights(default_context() if context is None else context, experts, swiglu_limit=swiglu_limit, placement=placement,
                          num_experts=num_experts, ids=ids, tag=tag)
        return cls(weights, topk=topk, max_tokens=max_tokens, workspace=workspace)

    def update_expert(self, index: int, expert: Expert) -> None:
        """Replaces one expert in all its copies. Not while a forward uses the layer: synchronise its streams first."""
        self.weights.update_expert(index, expert)

    def packed_experts(self) -> torch.Tensor:
        """This rank's packed experts in place: uint8 [num_experts, expert_bytes], a row for each, on the layer's device. A framework that moves
        experts between ranks moves rows (monomoe.layer.PackedExperts has the rules); on the layer's stream that needs no synchronisation."""
        with torch.inference_mode(False):  # a tensor made in inference mode could not be written outside of it
            return _in_place(self.weights.packed_experts(self.rank))

    def check(self) -> None:
        """Raises PoisonedError if an earlier call on a stream went wrong. Does not wait: synchronise first to know of all calls."""
        self.workspace.check()

    def forward(self, x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, x_scales: torch.Tensor | None = None,
                out: torch.Tensor | None = None) -> torch.Tensor:
        if torch.is_grad_enabled() and (getattr(x, "requires_grad", False) or getattr(topk_weights, "requires_grad", False)):
            raise UsageError("x or topk_weights requires a gradient and MoELayer computes none; call it under torch.inference_mode() or "
                             "torch.no_grad()")
        if torch.compiler.is_compiling() or (type(x) is not torch.Tensor and isinstance(x, torch.Tensor)):
            if out is not None:
                torch.ops.monomoe.moe_forward_out(x, topk_ids, topk_weights, x_scales, out, self.key)
                return out
            return torch.ops.monomoe.moe_forward(x, topk_ids, topk_weights, x_scales, self.key)
        return self.run(x, topk_ids, topk_weights, x_scales, out)

    def run(self, x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, x_scales: torch.Tensor | None,
            out: torch.Tensor | None) -> torch.Tensor:
        """The call itself. What is not the usual case goes the way that finds the words for it."""
        try:
            device = x.get_device()
            usual = (device >= 0) is self._on_gpu and _usual(x, topk_ids, topk_weights, x_scales, out, device, self.hidden, self.topk)
        except (AttributeError, TypeError):  # not all of them are tensors of torch
            usual = False
        if not usual:
            return generic_forward(self.weights, self.workspace, x, topk_ids, topk_weights, x_scales=x_scales, out=out, rank=self.rank)
        if out is None:
            out = torch.empty_like(x) if x_scales is None else torch.empty_like(x, dtype=torch.bfloat16)
        stream = c.c_void_p(_raw_stream(device) or _LEGACY_STREAM) if device >= 0 else None
        tokens = _pack_tokens(_STRUCT_SIZE, _BF16 if x_scales is None else _E4M3, len(x), x.data_ptr(),
                              0 if x_scales is None else x_scales.data_ptr(), _IDS[topk_ids.dtype], topk_ids.data_ptr(),
                              topk_weights.data_ptr(), out.data_ptr())
        status = _forward_rank(self._weights_pointer, self._workspace_pointer, self.rank, tokens, stream, None)
        if status:
            fail(status)
        return out

    def extra_repr(self) -> str:
        w = self.weights
        return f"experts={w.num_experts}, hidden={w.hidden}, intermediate={w.intermediate}, topk={self.topk}, backend={w.context.backend}"


def layer_of(key: int) -> MoELayer:
    """The living layer with a key, for the ops."""
    layer = _layers.get(int(key))
    if layer is None:
        raise UsageError(f"torch.ops.monomoe was called for layer {int(key)}, which is gone; keep the MoELayer alive as long as its graphs")
    return layer


def _op(x: Any, topk_ids: Any, topk_weights: Any, x_scales: Any, key: int) -> torch.Tensor:
    return layer_of(key).run(x, topk_ids, topk_weights, x_scales, None)


def _op_out(x: Any, topk_ids: Any, topk_weights: Any, x_scales: Any, out: Any, key: int) -> None:
    layer_of(key).run(x, topk_ids, topk_weights, x_scales, out)


def _op_fake(x: Any, topk_ids: Any, topk_weights: Any, x_scales: Any, key: int) -> torch.Tensor:
    torch._check(x.dim() == 2, lambda: f"x has {x.dim()} dimensions, wanted [num_tokens, hidden]")
    return x.new_empty(x.shape, dtype=torch.bfloat16)


def _op_out_fake(x: Any, topk_ids: Any, topk_weights: Any, x_scales: Any, out: Any, key: int) -> None:
    return None


_ops = torch.library.Library("monomoe", "DEF")
_tags = (torch.Tag.needs_fixed_stride_order,)
_ops.define("moe_forward(Tensor x, Tensor topk_ids, Tensor topk_weights, Tensor? x_scales, SymInt layer) -> Tensor", tags=_tags)
_ops.define("moe_forward_out(Tensor x, Tensor topk_ids, Tensor topk_weights, Tensor? x_scales, Tensor(a!) out, SymInt layer) -> ()", tags=_tags)
for _device in ("CPU", "CUDA"):
    _ops.impl("moe_forward", _op, _device)
    _ops.impl("moe_forward_out", _op_out, _device)
torch.library.register_fake("monomoe::moe_forward", _op_fake, lib=_ops)
torch.library.register_fake("monomoe::moe_forward_out", _op_out_fake, lib=_ops)
