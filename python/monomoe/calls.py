"""The layer on tensors of any framework: one rank's tokens in, their outputs out."""

from __future__ import annotations

import ctypes as c
import functools
import sys
from typing import Any, Literal, NamedTuple, Sequence, Union

from monomoe import _abi, tensors
from monomoe._arguments import UINT64, instance, integer, items
from monomoe._library import check, library
from monomoe.errors import UsageError
from monomoe.layer import Weights, Workspace
from monomoe.tensors import View

Stream = Union[int, None, Literal["current"]]
_LEGACY_STREAM = 1  # cudaStreamLegacy, which frameworks call stream 0
_BF16, _E4M3 = int(_abi.DType.BF16), int(_abi.DType.E4M3)
_X_DTYPES = {"bfloat16": _BF16, "uint16": _BF16, "float8_e4m3fn": _E4M3, "uint8": _E4M3}
_IDS_DTYPES = {"int32": int(_abi.DType.I32), "int64": int(_abi.DType.I64)}


class Tokens(NamedTuple):
    """One rank's tokens.

    x: bfloat16 [num_tokens, hidden] (or its bits as uint16), or e4m3 rows already quantised, with x_scales float32
    [num_tokens, hidden/128]. topk_ids: int32 or int64 [num_tokens, topk]; a negative id drops the slot. topk_weights: float32
    [num_tokens, topk], used as they are. out: bfloat16 [num_tokens, hidden], made like x if None.
    """

    x: Any
    topk_ids: Any
    topk_weights: Any
    x_scales: Any = None
    out: Any = None


def _empty_like(x: Any, found: View) -> Any:
    """bfloat16 of x's shape, framework and device. For JAX, whose arrays cannot be written, a NumPy array that becomes one afterwards."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return torch.empty(found.shape, dtype=torch.bfloat16, device=x.device)
    numpy = sys.modules.get("numpy")
    if numpy is not None and (isinstance(x, numpy.ndarray) or (_is_jax(x) and found.gpu < 0)):
        if found.dtype == "uint16":
            return numpy.empty(found.shape, dtype=numpy.uint16)
        return numpy.empty(found.shape, dtype=_ml_bfloat16())
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(x, cupy.ndarray):
        return cupy.empty(found.shape, dtype=x.dtype if found.dtype in ("bfloat16", "uint16") else cupy.uint16)
    raise UsageError(f"out is None and x is a {type(x).__module__}.{type(x).__name__}, for which no output can be made; give out, a writable "
                     "bfloat16 tensor of x's shape on its device")


def _ml_bfloat16() -> Any:
    try:
        import ml_dtypes
    except ImportError as error:
        raise UsageError("the output is bfloat16, which NumPy has from ml_dtypes only; install ml_dtypes, or give x as uint16 bits") from error
    return ml_dtypes.bfloat16


@functools.lru_cache(maxsize=None)
def _is_jax_type(kind: Any) -> bool:
    return kind.__module__.split(".")[0] in ("jax", "jaxlib")


def _is_jax(x: Any) -> bool:
    return _is_jax_type(type(x))


def current_stream(x: Any, gpu: int) -> int:
    """The stream of x's framework that is current on a GPU, as a cudaStream_t; the legacy default stream for frameworks without one."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return torch.cuda.current_stream(gpu).cuda_stream or _LEGACY_STREAM
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(x, cupy.ndarray):
        return cupy.cuda.get_current_stream().ptr or _LEGACY_STREAM
    interface = getattr(x, "__cuda_array_interface__", None) or {}
    return interface.get("stream") or _LEGACY_STREAM


def _require_writable(out: Any) -> None:
    if _is_jax(out):
        raise UsageError("out is a JAX array, which cannot be written; leave out away, or give a tensor of another framework")
    flags = getattr(out, "flags", None)
    if getattr(flags, "writeable", True) is False:
        raise UsageError("out is a read-only array, wanted one that can be written")


def _wait_for(tokens: Tokens) -> None:
    """JAX computes on streams of its own."""
    for array in (tokens.x, tokens.topk_ids, tokens.topk_weights, tokens.x_scales):
        if hasattr(array, "block_until_ready"):
            array.block_until_ready()


def _finish_work(tokens: Tokens, gpu: int) -> None:
    """A call that blocks reads GPU memory on a stream of its own: what torch or CuPy still compute on their current stream ends first. Other
    frameworks' tensors must be ready."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    given = [array for array in tokens if array is not None]
    if torch is not None and any(isinstance(array, torch.Tensor) for array in given):
        torch.cuda.current_stream(gpu).synchronize()
    if cupy is not None and any(isinstance(array, cupy.ndarray) for array in given):
        cupy.cuda.get_current_stream().synchronize()


_X_NAMES, _IDS_NAMES = tuple(_X_DTYPES), tuple(_IDS_DTYPES)
_STRUCT_SIZE = c.sizeof(_abi.Tokens)


class _Call:
    """One rank's tokens, checked, as the ABI's struct; keeps every tensor of the call alive."""

    def __init__(self, tokens: Tokens, workspace: Workspace, stream: Stream):
        if stream is not None and not isinstance(stream, str):
            stream = integer("stream", stream, UINT64)
        elif stream not in (None, "current"):
            raise UsageError(f"stream is {stream!r}, wanted 'current', a cudaStream_t as a number, or None")
        self.is_jax = _is_jax(tokens.x)
        if self.is_jax:
            _wait_for(tokens)
        producer_stream = stream if isinstance(stream, int) else None
        x = tensors.view("x", tokens.x, producer_stream)
        if len(x.shape) != 2 or x.shape[1] != workspace.hidden:
            raise UsageError(f"x has shape {x.shape}, wanted [num_tokens, {workspace.hidden}]; give one row of hidden channels a token")
        rows = x.shape[0]
        ids = tensors.view("topk_ids", tokens.topk_ids, producer_stream)
        weights = tensors.view("topk_weights", tokens.topk_weights, producer_stream)
        tensors.require(x, "x", _X_NAMES, x.shape)
        tensors.require(ids, "topk_ids", _IDS_NAMES, (rows, workspace.topk))
        tensors.require(weights, "topk_weights", ("float32",), (rows, workspace.topk))
        views = [x, ids, weights]
        self.out = _empty_like(tokens.x, x) if tokens.out is None else tokens.out
        _require_writable(self.out)
        y = tensors.require(tensors.view("out", self.out, producer_stream), "out", ("bfloat16", "uint16"), x.shape)
        views.append(y)
        quantised = _X_DTYPES[x.dtype] == _E4M3
        if quantised != (tokens.x_scales is not None):
            raise UsageError(f"x is {x.dtype} and x_scales is {'not given' if quantised else 'given'}; e4m3 rows need their scales and bfloat16 "
                             "rows have none")
        scales = None
        if quantised:
            scales = tensors.require(tensors.view("x_scales", tokens.x_scales, producer_stream), "x_scales", ("float32",),
                                     (rows, workspace.hidden // 128))
            views.append(scales)
        self.views = views
        self.stream = self._stream(tokens, workspace, stream)
        self.struct = _abi.Tokens(_STRUCT_SIZE, _X_DTYPES[x.dtype], rows, x.pointer, scales.pointer if scales else None,
                                  _IDS_DTYPES[ids.dtype], ids.pointer, weights.pointer, y.pointer)

    def _stream(self, tokens: Tokens, workspace: Workspace, stream: Stream) -> int | None:
        on_gpu = [view.gpu for view in self.views if view.gpu >= 0]
        if workspace.context.backend == "cpu":
            if on_gpu:
                raise UsageError(f"x, topk_ids, topk_weights or out is memory of GPU {on_gpu[0]} and the context's backend is cpu; move the tensors "
                                 "to the host, or make a Context of backend cuda")
            if isinstance(stream, int):
                raise UsageError("stream is given and the context's backend is cpu, which has none; leave it away")
            return None
        if isinstance(stream, int):
            return stream
        if stream == "current" and len(on_gpu) == len(self.views) and not self.is_jax:
            return current_stream(tokens.x, on_gpu[0])
        if on_gpu and not self.is_jax:
            _finish_work(tokens, on_gpu[0])
        return None

    def result(self, given: Any) -> Any:
        if given is None and self.is_jax:
            return sys.modules["jax"].numpy.asarray(self.out)
        return self.out


def forward(weights: Weights, workspace: Workspace, x: Any, topk_ids: Any, topk_weights: Any, *, x_scales: Any = None, out: Any = None,
            rank: int | None = None, stream: Stream = "current") -> Any:
    """One rank's part of a call (see Tokens for shapes); returns out.

    Collective: every rank of the context or world calls it, from its own thread if the call blocks. rank: None = the context's own in a world,
    or its only one. stream: "current" enqueues on the framework's current stream where all tensors are GPU memory, and blocks otherwise; a number is a
    cudaStream_t; None blocks. On a stream the call neither waits nor allocates, so it may be captured in a CUDA graph, and failures of the launch
    are told by Workspace.check and by the next call. A call that blocks finishes torch's and CuPy's work on their current stream first.
    """
    instance("weights", weights, Weights)
    rank = instance("workspace", workspace, Workspace).context.rank_of_call(rank)
    call = _Call(Tokens(x, topk_ids, topk_weights, x_scales, out), workspace, stream)
    check(library.monomoe_forward_rank(weights._handle.pointer, workspace._handle.pointer, rank, c.byref(call.struct), call.stream, None))
    return call.result(out)


def forward_ranks(weights: Weights, workspace: Workspace, ranks: Sequence[Tokens]) -> list[Any]:
    """All ranks of the context in one blocking call; ranks[r] is rank r's. Returns their outputs."""
    instance("weights", weights, Weights)
    ranks = [instance("ranks", tokens, Tokens) for tokens in items("ranks", ranks, "Tokens")]
    if len(ranks) != instance("workspace", workspace, Workspace).context.num_ranks:
        raise UsageError(f"ranks holds the tokens of {len(ranks)} ranks, the context has {workspace.context.num_ranks}; give one each")
    calls = [_Call(tokens, workspace, None) for tokens in ranks]
    structs = (_abi.Tokens * len(calls))(*(call.struct for call in calls))
    check(library.monomoe_forward(weights._handle.pointer, workspace._handle.pointer, structs, None))
    return [call.result(tokens.out) for call, tokens in zip(calls, ranks)]
