"""Reads the tensor behind __dlpack__ without taking it over: the capsule stays the producer's and is kept alive by whoever uses the view."""

from __future__ import annotations

import ctypes as c
from typing import Any, NamedTuple

# (type code, bits, lanes) of DLPack -> dtype name.
DTYPES = {
    (0, 8, 1): "int8", (0, 32, 1): "int32", (0, 64, 1): "int64", (1, 8, 1): "uint8", (1, 16, 1): "uint16", (2, 32, 1): "float32",
    (4, 16, 1): "bfloat16", (10, 8, 1): "float8_e4m3fn", (14, 8, 1): "float8_e8m0fnu", (17, 4, 2): "float4_e2m1fn_x2",
}
# typestr of the array interfaces -> dtype name, for producers without a dtype of their own.
NUMPY_NAMES = {"|i1": "int8", "<i4": "int32", "<i8": "int64", "|u1": "uint8", "<u2": "uint16", "<f4": "float32"}
_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13


class NotReadable(Exception):
    """Why a producer's tensor cannot be used."""


class _Tensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("device_type", c.c_int32), ("device_id", c.c_int32), ("ndim", c.c_int32), ("code", c.c_uint8),
                ("bits", c.c_uint8), ("lanes", c.c_uint16), ("shape", c.POINTER(c.c_int64)), ("strides", c.POINTER(c.c_int64)),
                ("byte_offset", c.c_uint64)]


class _Versioned(c.Structure):
    _fields_ = [("major", c.c_uint32), ("minor", c.c_uint32), ("context", c.c_void_p), ("deleter", c.c_void_p), ("flags", c.c_uint64),
                ("tensor", _Tensor)]


class Read(NamedTuple):
    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str
    gpu: int
    capsule: Any


_get_pointer = c.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = c.c_void_p, [c.py_object, c.c_char_p]
_is_valid = c.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = c.c_int, [c.py_object, c.c_char_p]


def _capsule(tensor: Any, stream: int | None) -> Any:
    arguments: dict[str, Any] = {}
    try:
        device_type = tensor.__dlpack_device__()[0] if hasattr(tensor, "__dlpack_device__") else _CPU
        if int(device_type) in (_CUDA, _CUDA_MANAGED):
            arguments["stream"] = stream if stream else 1  # 1 is the legacy default stream
        try:
            return tensor.__dlpack__(max_version=(1, 1), **arguments)
        except TypeError:  # a producer from before DLPack 1.0
            return tensor.__dlpack__(**arguments)
    except Exception as error:
        raise NotReadable(f"its __dlpack__ refused: {error}") from error


def _struct(capsule: Any) -> _Tensor:
    if _is_valid(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(_get_pointer(capsule, b"dltensor_versioned"))
        if versioned.major != 1:
            raise NotReadable(f"it speaks DLPack {versioned.major}.{versioned.minor}, wanted 1.x or older")
        return versioned.tensor
    if _is_valid(capsule, b"dltensor"):
        return _Tensor.from_address(_get_pointer(capsule, b"dltensor"))
    raise NotReadable("its __dlpack__ gave no fresh DLPack capsule")


def read(tensor: Any, stream: int | None) -> Read:
    """The tensor's address and layout. The result's capsule must live as long as the address is used."""
    capsule = _capsule(tensor, stream)
    t = _struct(capsule)
    dtype = DTYPES.get((t.code, t.bits, t.lanes))
    if dtype is None:
        raise NotReadable(f"it has DLPack type code {t.code} of {t.bits} bits and {t.lanes} lanes, wanted one of {', '.join(DTYPES.values())}")
    if t.device_type not in (_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED):
        raise NotReadable(f"it is on DLPack device type {t.device_type}, wanted a CPU or CUDA device")
    shape = tuple(t.shape[:t.ndim])
    strides = tuple(t.strides[:t.ndim]) if t.strides else None
    gpu = t.device_id if t.device_type in (_CUDA, _CUDA_MANAGED) else -1
    return Read((t.data or 0) + t.byte_offset, shape, strides, dtype, gpu, capsule)
