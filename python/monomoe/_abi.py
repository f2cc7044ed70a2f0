"""The C ABI as ctypes sees it: mirrors of the structs and enums of include/monomoe, and the functions' signatures.

tests/python/test_abi.py compiles the headers and holds every size, offset and enum value here against them.
"""

from __future__ import annotations

import ctypes as c
import enum

ABI_VERSION = 2


class Status(enum.IntEnum):
    OK = 0
    CHECK_FAILED = 1
    USAGE = 2
    BAD_INPUT = 3
    UNAVAILABLE = 4
    INTERNAL = 5
    TIMEOUT = 6
    REJECTED = 7
    POISONED = 8


class Backend(enum.IntEnum):
    AUTO = 0
    CPU = 1
    CUDA = 2


class Format(enum.IntEnum):
    FP8 = 0
    NVFP4 = 1
    MXFP4 = 2
    BF16 = 3


class ScaleType(enum.IntEnum):
    NONE = 0
    F32 = 1
    BF16 = 2
    E8M0 = 3
    E4M3 = 4


class DType(enum.IntEnum):
    BF16 = 0
    F32 = 1
    I32 = 2
    I64 = 3
    E4M3 = 4


class Sharing(enum.IntEnum):
    AUTO = 0
    FILE = 1
    IPC = 2


class ContextOptions(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("backend", c.c_int), ("num_ranks", c.c_int32), ("num_threads", c.c_int32),
                ("vector_bits", c.c_int32), ("timeout_ms", c.c_uint32), ("launch", c.c_int32), ("world_ranks", c.c_int32), ("rank", c.c_int32), ("gpu", c.c_int32),
                ("ranks_per_gpu", c.c_int32)]


class Matrix(c.Structure):
    _fields_ = [("format", c.c_int), ("scale_type", c.c_int), ("rows", c.c_int64), ("cols", c.c_int64), ("codes", c.c_void_p),
                ("scales", c.c_void_p), ("global_scale", c.c_float)]


class Expert(c.Structure):
    _fields_ = [("gate", Matrix), ("up", Matrix), ("down", Matrix)]


class Placement(c.Structure):
    _fields_ = [("count", c.c_int64), ("expert", c.POINTER(c.c_int32)), ("rank", c.POINTER(c.c_int32)), ("slot", c.POINTER(c.c_int32))]


class Layer(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("num_experts", c.c_int32), ("hidden", c.c_int64), ("intermediate", c.c_int64),
                ("experts", c.POINTER(Expert)), ("placement", c.POINTER(Placement)), ("swiglu_limit", c.c_float), ("tag", c.c_uint64)]


class PackedExperts(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("num_experts", c.c_int32), ("data", c.c_void_p), ("expert_bytes", c.c_int64),
                ("gpu", c.c_int32)]


class WorkspaceOptions(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("topk", c.c_int32), ("hidden", c.c_int64), ("max_intermediate", c.c_int64),
                ("max_experts", c.c_int32), ("capacity", c.c_int64), ("launch", c.c_int32), ("peers", c.POINTER(c.c_void_p))]


class Tokens(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("x_dtype", c.c_int), ("num_tokens", c.c_int64), ("x", c.c_void_p), ("x_scales", c.c_void_p),
                ("ids_dtype", c.c_int), ("topk_ids", c.c_void_p), ("topk_weights", c.c_void_p), ("y", c.c_void_p)]


class Times(c.Structure):
    _fields_ = [("struct_size", c.c_uint32)] + [(name, c.c_double) for name in ("wall", "dispatch", "routes", "gemm1", "gemm2", "combine",
                                                                                 "wait")]


class Problem(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("format", c.c_int)] + [(name, c.c_int64) for name in ("hidden", "intermediate", "experts",
                                                                                                    "topk", "ranks", "capacity")]


class LayerInfo(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("format", c.c_int), ("hidden", c.c_int64), ("intermediate", c.c_int64),
                ("num_experts", c.c_int32), ("topk", c.c_int32), ("has_router", c.c_int32), ("needs_token_ids", c.c_int32),
                ("has_shared_expert", c.c_int32), ("swiglu_limit", c.c_float), ("routed_scaling_factor", c.c_float),
                ("shared_intermediate", c.c_int64)]


class WorldOptions(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("name", c.c_char_p), ("ranks", c.c_int32), ("rank", c.c_int32), ("timeout_ms", c.c_uint32),
                ("sharing", c.c_int)]


# C name -> mirror: what the test compares. Struct names lose the prefix monomoe_.
STRUCTS = {"context_options": ContextOptions, "matrix": Matrix, "expert": Expert, "placement": Placement, "layer": Layer,
           "packed_experts": PackedExperts, "workspace_options": WorkspaceOptions, "tokens": Tokens, "times": Times, "problem": Problem, "layer_info": LayerInfo,
           "world_options": WorldOptions}
ENUMS = {"MONOMOE_": Status, "MONOMOE_BACKEND_": Backend, "MONOMOE_SCALE_": ScaleType, "MONOMOE_DTYPE_": DType,
         "MONOMOE_SHARING_": Sharing}

_P, _OUT = c.c_void_p, c.POINTER(c.c_void_p)
_TEXT_OUT = c.POINTER(c.c_void_p)  # char**: taken as an address so that it can be freed

# name -> (result, arguments). Functions that can fail return a status as int.
FUNCTIONS = {
    "last_error": (c.c_char_p, []),
    "status_name": (c.c_char_p, [c.c_int]),
    "version": (c.c_char_p, []),
    "abi_version": (c.c_uint32, []),
    "context_create": (c.c_int, [c.POINTER(ContextOptions), _OUT]),
    "context_destroy": (None, [_P]),
    "context_backend": (c.c_int, [_P, c.POINTER(c.c_char_p)]),
    "weights_create": (c.c_int, [_P, c.POINTER(Layer), _OUT]),
    "weights_destroy": (None, [_P]),
    "weights_replace_expert": (c.c_int, [_P, c.c_int32, c.POINTER(Expert)]),
    "weights_packed_experts": (c.c_int, [_P, c.c_int32, c.POINTER(PackedExperts)]),
    "weights_max_local_experts": (c.c_int32, [_P]),
    "workspace_create": (c.c_int, [_P, c.POINTER(WorkspaceOptions), _OUT]),
    "workspace_destroy": (None, [_P]),
    "symmetric_bytes": (c.c_int, [_P, c.POINTER(WorkspaceOptions), c.POINTER(c.c_int64)]),
    "workspace_poison": (c.c_int, [_P, c.c_uint8]),
    "workspace_status": (c.c_int, [_P]),
    "forward": (c.c_int, [_P, _P, c.POINTER(Tokens), c.POINTER(Times)]),
    # tokens as an address: a pointer made by byref() is converted faster than a typed one
    "forward_rank": (c.c_int, [_P, _P, c.c_int32, _P, _P, _P]),
    "plan": (c.c_int, [c.POINTER(Problem), _TEXT_OUT]),
    "doctor": (c.c_int, [_TEXT_OUT]),
    "free_text": (None, [_P]),
    "checkpoint_open": (c.c_int, [c.c_char_p, _OUT]),
    "checkpoint_close": (None, [_P]),
    "checkpoint_layer_info": (c.c_int, [_P, c.c_int32, c.POINTER(LayerInfo)]),
    "checkpoint_weights": (c.c_int, [_P, _P, c.c_int32, c.POINTER(Placement), c.c_float, _OUT]),
    "checkpoint_shared_weights": (c.c_int, [_P, _P, c.c_int32, c.c_float, _OUT]),
    "checkpoint_route": (c.c_int, [_P, c.c_int32, _P, c.c_int64, _P, _P, _P]),
    "checkpoint_inspect": (c.c_int, [c.c_char_p, c.c_int32, c.c_int32, _TEXT_OUT]),
    "checkpoint_verify": (c.c_int, [c.c_char_p, c.c_int32, c.c_int32, _TEXT_OUT]),
    "world_join": (c.c_int, [c.POINTER(WorldOptions), _OUT]),
    "world_leave": (None, [_P, c.c_char_p]),
    "world_memory_create": (c.c_int, [_P, c.c_int, c.c_int32, c.c_int64, _OUT]),
    "world_memory_peers": (c.POINTER(c.c_void_p), [_P]),
    "world_memory_how": (c.c_char_p, [_P]),
    "world_memory_destroy": (None, [_P]),
}
