"""Contexts, packed expert weights and workspaces: what a call of the layer needs."""

from __future__ import annotations

import ctypes as c
from dataclasses import dataclass
from typing import Any, Iterable, Literal, NamedTuple, Protocol, Sequence, Union

from monomoe import _abi, tensors
from monomoe._arguments import INT32, UINT32, UINT64, instance, int32, int64, integer, items, kind_of, number
from monomoe._library import Handle, check, library
from monomoe.errors import UsageError

FormatName = Literal["fp8", "nvfp4", "mxfp4"]
BackendName = Literal["auto", "cpu", "cuda"]
PlacementLike = Iterable[tuple[int, int, int]]

_BACKENDS = {"auto": _abi.Backend.AUTO, "cpu": _abi.Backend.CPU, "cuda": _abi.Backend.CUDA}
_FORMATS = {"fp8": _abi.Format.FP8, "nvfp4": _abi.Format.NVFP4, "mxfp4": _abi.Format.MXFP4}
_CODES = {"fp8": ("float8_e4m3fn", "uint8"), "nvfp4": ("uint8", "int8", "float4_e2m1fn_x2"), "mxfp4": ("uint8", "int8", "float4_e2m1fn_x2")}
_SCALES = {
    "fp8": {"float32": _abi.ScaleType.F32, "bfloat16": _abi.ScaleType.BF16, "float8_e8m0fnu": _abi.ScaleType.E8M0,
            "uint8": _abi.ScaleType.E8M0},
    "nvfp4": {"float8_e4m3fn": _abi.ScaleType.E4M3, "uint8": _abi.ScaleType.E4M3},
    "mxfp4": {"float8_e8m0fnu": _abi.ScaleType.E8M0, "uint8": _abi.ScaleType.E8M0},
}


def choice(name: str, given: Any, choices: dict[str, Any]) -> Any:
    """choices[given], or a sentence that lists them."""
    if not isinstance(given, str) or given not in choices:
        raise UsageError(f"{name} is {given!r}, wanted one of {', '.join(map(repr, choices))}")
    return choices[given]


class SymmetricMemory(Protocol):
    """What gives the ranks of a world memory that all of them can write (monomoe.torch.distributed has implementations)."""

    def allocate(self, num_bytes: int) -> tuple[Sequence[int], Any]:
        """Collective. Zeroed memory of num_bytes on every rank: the address of each rank's in this process, and what keeps it mapped."""


class World(NamedTuple):
    """One rank of a world whose other ranks are other processes. gpu: the CUDA device of this process, None = the current one. ranks_per_gpu: ranks
    that share this GPU at the same time."""

    size: int
    rank: int
    memory: SymmetricMemory
    gpu: int | None = None
    ranks_per_gpu: int = 1


class Context:
    """A backend and the ranks of this process, or, with world, one rank of several processes.

    backend: "auto" takes the best this machine runs; `backend` and `why` say which. ranks: 1..64, all in this process. threads: CPU
    threads over all ranks, 0 = one per core. vector_bits: 0 = widest, or 128, 256, 512. timeout_ms: longest wait for another rank,
    0 = 30000.
    """

    def __init__(self, backend: BackendName = "auto", *, ranks: int = 1, threads: int = 0, vector_bits: int = 0, timeout_ms: int = 0,
                 world: World | None = None):
        options = _abi.ContextOptions(c.sizeof(_abi.ContextOptions), choice("backend", backend, _BACKENDS), int32("ranks", ranks),
                                      int32("threads", threads), int32("vector_bits", vector_bits), integer("timeout_ms", timeout_ms, UINT32))
        if world is not None:
            instance("world", world, World)
            options.world_ranks, options.rank = int32("world.size", world.size), int32("world.rank", world.rank)
            options.ranks_per_gpu = int32("world.ranks_per_gpu", world.ranks_per_gpu)
            options.gpu = 0 if world.gpu is None else integer("world.gpu", world.gpu, (0, INT32[1] - 1)) + 1
        self._handle = Handle(library.monomoe_context_destroy, library.monomoe_context_create, c.byref(options))
        self.num_ranks, self.world = int(options.num_ranks), world
        why = c.c_char_p()
        taken = library.monomoe_context_backend(self._handle.pointer, c.byref(why))
        self.backend: str = _abi.Backend(taken).name.lower()
        self.why: str = (why.value or b"").decode()

    def rank_of_call(self, rank: int | None) -> int:
        """The rank that a call is for; None is legal where there is only one it can be."""
        if rank is not None:
            given = int32("rank", rank)
            if self.world is not None and given != self.world.rank:
                raise UsageError(f"rank is {given}, but this context is rank {self.world.rank} of {self.world.size}")
            if self.world is None and not 0 <= given < self.num_ranks:
                raise UsageError(f"rank is {given}, the context has ranks 0..{self.num_ranks - 1}")
            return given
        if self.world is None and self.num_ranks > 1:
            raise UsageError(f"rank is not given and the context has {self.num_ranks} ranks; give each rank's call its rank, from a thread of its own, "
                             "or bring all ranks' tokens with forward_ranks")
        return self.world.rank if self.world else 0

    def __repr__(self) -> str:
        return f"<monomoe.Context {self.backend}, {self.num_ranks} rank{'s' if self.num_ranks > 1 else ''}: {self.why}>"


@dataclass(frozen=True)
class Matrix:
    """A weight matrix [rows, cols] as checkpoints hold it; rows are output channels.

    fp8:   codes e4m3 [rows, cols]; scales [ceil(rows/128), ceil(cols/128)] float32, bfloat16 or e8m0
    nvfp4: codes [rows, cols/2] uint8, low nibble = even column; scales e4m3 [rows, cols/16]; global_scale = weight_scale_2
    mxfp4: codes [rows, cols/2] uint8, low nibble = even column; scales e8m0 [rows, cols/32]
    Codes and scales may have their own dtype or be uint8; GPU tensors of torch and CuPy are copied to the host.
    """

    format: FormatName
    codes: Any
    scales: Any
    global_scale: float = 1.0


class Expert(NamedTuple):
    """gate, up: [intermediate, hidden]; down: [hidden, intermediate]."""

    gate: Matrix
    up: Matrix
    down: Matrix


@dataclass(frozen=True)
class StackedExperts:
    """All experts in the tensors that serving frameworks hold.

    w13 [E, 2 * intermediate, hidden]: gate rows, then up rows; w2 [E, hidden, intermediate]; FP4 codes have half the columns. w13_scale
    and w2_scale: the scales of Matrix with a leading E; w13_scale has the gate's rows, then the up's.
    w13_global: float32 [E] or [E, 2] (gate, up); w2_global: float32 [E]; NVFP4's weight_scale_2. None = 1.
    """

    format: FormatName
    w13: Any
    w13_scale: Any
    w2: Any
    w2_scale: Any
    w13_global: Any = None
    w2_global: Any = None


_MOST_EXPERTS = 1 << 16  # far more than the library takes, and little memory for their structs
ExpertSource = Union[StackedExperts, Sequence[Expert]]


class _Packed(NamedTuple):
    """Expert structs of the ABI with what keeps their memory alive."""

    experts: Any
    hidden: int
    intermediate: int
    alive: list[Any]


def _scale_type(name: str, format_name: str, dtype: str) -> int:
    scales = _SCALES[format_name]
    if dtype not in scales:
        raise UsageError(f"{name} is {dtype}, wanted {' or '.join(scales)} for {format_name}; convert or view it")
    return scales[dtype]


def _matrix_struct(name: str, matrix: Matrix, alive: list[Any]) -> _abi.Matrix:
    format_number = choice(f"{name}.format", instance(name, matrix, Matrix).format, _FORMATS)
    codes, scales = tensors.host_view(f"{name}.codes", matrix.codes), tensors.host_view(f"{name}.scales", matrix.scales)
    if len(codes.shape) != 2:
        raise UsageError(f"{name}.codes has shape {codes.shape}, wanted [rows, cols]; give one matrix")
    rows, cols = codes.shape[0], codes.shape[1] * (1 if matrix.format == "fp8" else 2)
    tensors.require(codes, f"{name}.codes", _CODES[matrix.format], codes.shape)
    tensors.require(scales, f"{name}.scales", (scales.dtype,), _scale_shape(matrix.format, rows, cols))
    alive += [codes, scales]
    return _abi.Matrix(format_number, _scale_type(f"{name}.scales", matrix.format, scales.dtype), rows, cols, codes.pointer, scales.pointer,
                       number(f"{name}.global_scale", matrix.global_scale))


def _scale_shape(format_name: str, rows: int, cols: int) -> tuple[int, int]:
    if format_name == "fp8":
        return (-(-rows // 128), -(-cols // 128))
    return (rows, cols // (16 if format_name == "nvfp4" else 32))


def _expert_struct(name: str, expert: Expert, alive: list[Any]) -> _abi.Expert:
    parts = items(name, expert, "gate, up and down")
    if len(parts) != 3:
        raise UsageError(f"{name} has {len(parts)} matrices, wanted gate, up and down")
    return _abi.Expert(*(_matrix_struct(f"{name} {part}", matrix, alive) for part, matrix in zip(("gate", "up", "down"), parts)))


def _floats(name: str, tensor: Any, count: int, widths: Sequence[int]) -> list[list[float]]:
    """float32 [count] or [count, width] as one list per row."""
    if tensor is None:
        return [[1.0]] * count
    found = tensors.host_view(name, tensor)
    legal = [(count,), *((count, width) for width in widths)]
    if found.dtype != "float32" or found.shape not in legal:
        raise UsageError(f"{name} is {found.dtype} {found.shape}, wanted float32 {' or '.join(map(str, legal))}")
    width = 1 if len(found.shape) == 1 else found.shape[1]
    values: Any = (c.c_float * (count * width)).from_address(found.pointer) if count else []
    return [list(values[i * width:(i + 1) * width]) for i in range(count)]


def _pack_stacked(source: StackedExperts) -> _Packed:
    format_number = choice("format", source.format, _FORMATS)
    per_byte = 1 if source.format == "fp8" else 2
    w13, w13_scale, w2, w2_scale = (tensors.host_view(name, getattr(source, name)) for name in ("w13", "w13_scale", "w2", "w2_scale"))
    if len(w2.shape) != 3 or w2.shape[0] == 0:
        raise UsageError(f"w2 has shape {w2.shape}, wanted [experts, hidden, intermediate] with at least one expert")
    experts, hidden, inter = w2.shape[0], w2.shape[1], w2.shape[2] * per_byte
    codes = _CODES[source.format]
    tensors.require(w2, "w2", codes, (experts, hidden, inter // per_byte))
    tensors.require(w13, "w13", codes, (experts, 2 * inter, hidden // per_byte))
    up_scale, down_scale = _scale_shape(source.format, inter, hidden), _scale_shape(source.format, hidden, inter)
    tensors.require(w13_scale, "w13_scale", (w13_scale.dtype,), (experts, 2 * up_scale[0], up_scale[1]))
    tensors.require(w2_scale, "w2_scale", (w2_scale.dtype,), (experts, *down_scale))
    types = _scale_type("w13_scale", source.format, w13_scale.dtype), _scale_type("w2_scale", source.format, w2_scale.dtype)
    globals13 = _floats("w13_global", source.w13_global, experts, (1, 2))
    globals2 = _floats("w2_global", source.w2_global, experts, (1,))
    up_bytes, down_bytes = inter * hidden // per_byte, hidden * inter // per_byte
    up_scale_bytes = up_scale[0] * up_scale[1] * tensors.ITEM_BYTES[w13_scale.dtype]
    down_scale_bytes = down_scale[0] * down_scale[1] * tensors.ITEM_BYTES[w2_scale.dtype]
    structs = (_abi.Expert * experts)()
    for e in range(experts):
        for half, part in enumerate((structs[e].gate, structs[e].up)):
            part.format, part.scale_type, part.rows, part.cols = format_number, types[0], inter, hidden
            part.codes = w13.pointer + (2 * e + half) * up_bytes
            part.scales = w13_scale.pointer + (2 * e + half) * up_scale_bytes
            part.global_scale = globals13[e][min(half, len(globals13[e]) - 1)]
        down = structs[e].down
        down.format, down.scale_type, down.rows, down.cols = format_number, types[1], hidden, inter
        down.codes, down.scales = w2.pointer + e * down_bytes, w2_scale.pointer + e * down_scale_bytes
        down.global_scale = globals2[e][0]
    return _Packed(structs, hidden, inter, [w13, w13_scale, w2, w2_scale])


def _pack_list(experts: Sequence[Expert]) -> _Packed:
    experts = items("experts", experts, "Expert, or a StackedExperts")
    if not experts:
        raise UsageError("experts is empty, wanted at least one")
    alive: list[Any] = []
    structs = (_abi.Expert * len(experts))(*(_expert_struct(f"expert {e}", expert, alive) for e, expert in enumerate(experts)))
    return _Packed(structs, structs[0].gate.cols, structs[0].gate.rows, alive)


def _spread(packed: _Packed, num_experts: int | None, ids: Sequence[int] | None, context: Context) -> _Packed:
    """The experts at their numbers among all of the layer; those of other ranks stay zero and are not read."""
    given = len(packed.experts)
    total = given if num_experts is None else integer("num_experts", num_experts, (given, _MOST_EXPERTS))
    if total == given and ids is None:
        return packed
    if ids is None:
        size, rank = (context.world.size, context.world.rank) if context.world else (1, 0)
        if given * size != total:
            raise UsageError(f"{given} experts are given of {total} on {size} ranks, wanted an equal share on each; give their ids")
        ids = range(rank * given, (rank + 1) * given)
    ids = [int32("ids", e) for e in items("ids", ids, "expert numbers")]
    if len(ids) != given or any(not 0 <= e < total for e in ids) or len(set(ids)) != given:
        raise UsageError(f"ids are {ids}, wanted {given} different numbers below {total}, one for each expert given")
    structs = (_abi.Expert * total)()
    for place, expert in zip(ids, packed.experts):
        structs[place] = expert
    return packed._replace(experts=structs)


def placement_struct(entries: PlacementLike | None) -> tuple[Any, list[Any]]:
    """The ABI's placement (a pointer or None) of (expert, rank, slot) triples, and what keeps it alive."""
    if entries is None:
        return None, []
    triples = [items("placement", entry, "(expert, rank, slot) triples") for entry in items("placement", entries, "(expert, rank, slot) triples")]
    if not triples or any(len(triple) != 3 for triple in triples):
        raise UsageError("placement holds no (expert, rank, slot) triples; give one for each copy of an expert, or None for the even placement")
    columns = [[int32(f"placement: {name}", entry) for entry in column] for name, column in zip(("expert", "rank", "slot"), zip(*triples))]
    arrays = [(c.c_int32 * len(column))(*column) for column in columns]
    struct = _abi.Placement(len(columns[0]), *arrays)
    return c.byref(struct), [struct, *arrays]


class Weights:
    """The experts of one layer, checked and packed. NaN codes and negative or non-finite scales are refused, naming expert, matrix and place.

    experts: a StackedExperts, or one Expert each. swiglu_limit: clamp of gate (above) and up (both sides); None = none. placement:
    (expert, rank, slot) triples, None = experts on ranks in order, as even as possible.
    In a context of one rank of a world: num_experts of the whole layer, ids of the experts given here (None = all, or this rank's equal share
    in order), tag a number that is the same on all ranks and another for each layer, e.g. its number in the model.
    """

    def __init__(self, context: Context, experts: ExpertSource, *, swiglu_limit: float | None = None, placement: PlacementLike | None = None,
                 num_experts: int | None = None, ids: Sequence[int] | None = None, tag: int = 0):
        instance("context", context, Context)
        limit, tag = number("swiglu_limit", 0.0 if swiglu_limit is None else swiglu_limit), integer("tag", tag, UINT64)
        packed = _pack_stacked(experts) if isinstance(experts, StackedExperts) else _pack_list(experts)
        packed = _spread(packed, num_experts, ids, context)
        where, alive = placement_struct(placement)
        layer = _abi.Layer(c.sizeof(_abi.Layer), len(packed.experts), packed.hidden, packed.intermediate, packed.experts,
                           c.cast(where, c.POINTER(_abi.Placement)) if where is not None else None, limit, tag)
        handle = Handle(library.monomoe_weights_destroy, library.monomoe_weights_create, context._handle.pointer, c.byref(layer),
                        parents=(context._handle,))
        del alive, packed.alive[:]
        self._take(context, handle, len(packed.experts), packed.hidden, packed.intermediate)

    def _take(self, context: Context, handle: Handle, experts: int, hidden: int, intermediate: int) -> None:
        self._handle, self.context = handle, context
        self.num_experts, self.hidden, self.intermediate = experts, hidden, intermediate
        self.max_local_experts: int = library.monomoe_weights_max_local_experts(handle.pointer)

    @classmethod
    def _of_handle(cls, context: Context, handle: Handle, experts: int, hidden: int, intermediate: int) -> "Weights":
        weights = cls.__new__(cls)
        weights._take(context, handle, experts, hidden, intermediate)
        return weights

    def update_expert(self, index: int, expert: Expert) -> None:
        """Replaces one expert in all its copies. Not while a forward uses the weights. If it is refused the old expert stays."""
        alive: list[Any] = []
        index = int32("index", index)
        struct = _expert_struct(f"expert {index}", expert, alive)
        check(library.monomoe_weights_replace_expert(self._handle.pointer, index, c.byref(struct)))

    def packed_experts(self, rank: int | None = None) -> "PackedExperts":
        """A rank's packed experts in place, for whoever moves them. Refused if one of them has other copies, which would stay as they are."""
        return PackedExperts(self, self.context.rank_of_call(rank))


class PackedExperts:
    """One rank's packed experts where they are: uint8 [num_experts, expert_bytes], a row for each of the rank's slots in order.

    A row is a whole expert: its copy in another slot of a layer of the same format and sizes, here or on another rank, is that expert. So whoever
    moves experts moves rows; any other bytes make the layer's results worthless. Rows are written while no forward uses the weights, or on its
    stream. Host memory has NumPy's array interface, GPU memory the one of torch and CuPy; the weights live as long as this and what was made of it.
    """

    def __init__(self, weights: Weights, rank: int):
        found = _abi.PackedExperts(c.sizeof(_abi.PackedExperts))
        handle = instance("weights", weights, Weights)._handle
        check(library.monomoe_weights_packed_experts(handle.pointer, int32("rank", rank), c.byref(found)))
        self.num_experts, self.expert_bytes, self.pointer = int(found.num_experts), int(found.expert_bytes), int(found.data or 0)
        self.gpu = int(found.gpu)  # -1: host memory
        self._handle = handle
        interface = {"shape": (self.num_experts, self.expert_bytes), "typestr": "|u1", "data": (self.pointer, False), "version": 3}
        setattr(self, "__cuda_array_interface__" if self.gpu >= 0 else "__array_interface__", interface)


class Workspace:
    """Symmetric memory, local memory and flags of all ranks. One call at a time; several layers may share one. Making one is collective over the
    ranks of a world.

    layers: the weights that will use it. topk: slots per token, 1..32. capacity: most tokens one rank may bring in one call.
    """

    def __init__(self, layers: Weights | Sequence[Weights], *, topk: int, capacity: int):
        users = [layers] if isinstance(layers, Weights) else [instance("layers", user, Weights) for user in items("layers", layers, "Weights")]
        if not users:
            raise UsageError("layers is empty, wanted the weights that will use the workspace")
        context = users[0].context
        if any(user.context is not context for user in users):
            raise UsageError("the layers of a workspace are of different contexts, wanted one; make them with the same Context")
        self._make(context, topk, capacity, users[0].hidden, max(u.intermediate for u in users), max(u.max_local_experts for u in users))

    @classmethod
    def sized(cls, context: Context, *, topk: int, capacity: int, hidden: int, max_intermediate: int, max_experts: int) -> "Workspace":
        """A workspace for layers that are not packed yet. max_experts: the largest number of experts one rank will hold."""
        workspace = cls.__new__(cls)
        workspace._make(context, topk, capacity, hidden, max_intermediate, max_experts)
        return workspace

    def _make(self, context: Context, topk: int, capacity: int, hidden: int, max_intermediate: int, max_experts: int) -> None:
        instance("context", context, Context)
        options = _abi.WorkspaceOptions(c.sizeof(_abi.WorkspaceOptions), int32("topk", topk), int64("hidden", hidden),
                                        int64("max_intermediate", max_intermediate), int32("max_experts", max_experts), int64("capacity", capacity))
        self._memory: Any = None
        if context.world is not None:
            if not hasattr(context.world.memory, "allocate"):
                raise UsageError(f"world.memory is a {kind_of(context.world.memory)}, wanted an object with allocate(num_bytes)")
            size = c.c_int64()
            check(library.monomoe_symmetric_bytes(context._handle.pointer, c.byref(options), c.byref(size)))
            addresses, self._memory = context.world.memory.allocate(size.value)
            peers = [integer("address of memory.allocate", address, UINT64) for address in items("memory.allocate", addresses, "addresses")]
            if len(peers) != context.world.size:
                raise UsageError(f"memory.allocate gave {len(peers)} addresses for {context.world.size} ranks, wanted one each")
            options.peers = (c.c_void_p * len(peers))(*peers)
        self._handle = Handle(library.monomoe_workspace_destroy, library.monomoe_workspace_create, context._handle.pointer, c.byref(options),
                              parents=(context._handle, self._memory))
        self.context, self.topk, self.hidden, self.capacity = context, int(options.topk), int(options.hidden), int(options.capacity)

    def check(self) -> None:
        """Raises PoisonedError with the cause if an earlier call, also one on a stream, left the workspace useless. Does not wait."""
        check(library.monomoe_workspace_status(self._handle.pointer))
