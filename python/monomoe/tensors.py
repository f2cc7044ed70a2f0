"""Zero-copy views of foreign tensors: torch, NumPy (with ml_dtypes), CuPy, JAX, and whatever speaks DLPack or an array interface.

A view is an address with a shape and a dtype name; it keeps its tensor alive. Nothing is copied or converted: a tensor that is not
contiguous, or not of a wanted dtype, is refused by name.
"""

from __future__ import annotations

import ctypes as c
import sys
from typing import Any, NamedTuple, Sequence

from monomoe import _dlpack
from monomoe.errors import UsageError

# Bytes of one element, by dtype name. float4_e2m1fn_x2 is a byte with two codes, the low nibble the even column.
ITEM_BYTES = {
    "bfloat16": 2, "float32": 4, "int32": 4, "int64": 8, "uint8": 1, "int8": 1, "float8_e4m3fn": 1, "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1, "uint16": 2,
}


class View(NamedTuple):
    """A contiguous tensor in memory. `gpu` is the CUDA device number, or -1 for host memory."""

    pointer: int
    shape: tuple[int, ...]
    dtype: str
    gpu: int
    owner: Any


def _refuse(name: str, found: str, wanted: str, remedy: str) -> UsageError:
    return UsageError(f"{name} {found}, wanted {wanted}; {remedy}")


def _is_contiguous(shape: Sequence[int], strides: Sequence[int] | None) -> bool:
    """Row-major; strides in elements. Dimensions of one element may have any stride, and empty tensors any strides."""
    if strides is None or 0 in shape:
        return True
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def _require_contiguous(name: str, shape: Sequence[int], strides: Sequence[int] | None) -> None:
    if not _is_contiguous(shape, strides):
        raise _refuse(name, f"of shape {tuple(shape)} has strides {tuple(strides or ())}", "row-major contiguous memory",
                      "make it contiguous first")


def _of_torch(name: str, tensor: Any) -> View:
    if tensor.layout is not sys.modules["torch"].strided:
        raise _refuse(name, f"has layout {tensor.layout}", "a dense tensor", "call to_dense()")
    shape = tuple(tensor.shape)
    if not tensor.is_contiguous():
        _require_contiguous(name, shape, tensor.stride())
    device = tensor.device
    if device.type not in ("cpu", "cuda"):
        raise _refuse(name, f"is on {device}", "a tensor on a CPU or CUDA device", "move it there")
    return View(tensor.data_ptr(), shape, str(tensor.dtype)[6:], device.index if device.type == "cuda" else -1, tensor)


_numpy_names: dict[Any, str] = {}  # dtype.name is computed each time it is asked for


def _require_byte_order(name: str, order: str) -> None:
    """order: of a dtype or an array interface's typestr."""
    if order == (">" if sys.byteorder == "little" else "<"):
        raise _refuse(name, "has the byte order of another machine", f"{sys.byteorder}-endian numbers", "convert it, e.g. astype(dtype.newbyteorder('='))")


def _of_numpy(name: str, array: Any) -> View:
    interface = array.__array_interface__  # ml_dtypes have no buffer or DLPack type there, but a pointer
    dtype = _numpy_names.get(array.dtype)
    if dtype is None:
        _require_byte_order(name, array.dtype.byteorder)
        dtype = _numpy_names[array.dtype] = array.dtype.name
    if dtype == "float4_e2m1fn":
        raise _refuse(name, "is float4_e2m1fn, which holds one code a byte", "two codes a byte",
                      "pack them, the low nibble the even column, as uint8")
    if not array.flags.c_contiguous:
        _require_contiguous(name, array.shape, tuple(s // array.dtype.itemsize for s in array.strides))
    return View(interface["data"][0], array.shape, dtype, -1, array)


def _of_cuda_interface(name: str, array: Any) -> View:
    interface = array.__cuda_array_interface__
    _require_byte_order(name, interface["typestr"][0])
    shape = tuple(interface["shape"])
    dtype = getattr(getattr(array, "dtype", None), "name", None) or _dlpack.NUMPY_NAMES.get(interface["typestr"], interface["typestr"])
    strides = interface.get("strides")
    if strides is not None:
        strides = tuple(s // max(1, int(interface["typestr"][2:])) for s in strides)
    _require_contiguous(name, shape, strides)
    gpu = getattr(getattr(array, "device", None), "id", 0)
    return View(interface["data"][0] or 0, shape, dtype, gpu, array)


def _of_dlpack(name: str, tensor: Any, stream: int | None) -> View:
    try:
        view = _dlpack.read(tensor, stream)
    except _dlpack.NotReadable as error:
        raise UsageError(f"{name}: {error}") from error
    _require_contiguous(name, view.shape, view.strides)
    return View(view.pointer, view.shape, view.dtype, view.gpu, (tensor, view.capsule))


def _is_numpy(tensor: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(tensor, numpy.ndarray)


def view(name: str, tensor: Any, stream: int | None = None) -> View:
    """The view of a tensor; `name` is how messages call it. `stream`: the CUDA stream that will read it, which a DLPack producer then
    makes wait for its own work."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return _of_torch(name, tensor)
    if _is_numpy(tensor):
        return _of_numpy(name, tensor)
    if hasattr(tensor, "__cuda_array_interface__") and not hasattr(tensor, "unsafe_buffer_pointer"):
        return _of_cuda_interface(name, tensor)
    if hasattr(tensor, "__dlpack__"):
        return _of_dlpack(name, tensor, stream)
    raise _refuse(name, f"is a {type(tensor).__module__}.{type(tensor).__name__}",
                  "a tensor of torch, NumPy, CuPy or JAX, or an object with __dlpack__", "convert it")


def require(found: View, name: str, dtypes: Sequence[str], shape: tuple[int, ...]) -> View:
    """Refuses a view whose dtype is none of `dtypes` or whose shape differs."""
    if found.dtype not in dtypes:
        raise _refuse(name, f"is {found.dtype}", " or ".join(dtypes), "convert or view it")
    if found.shape != shape:
        raise _refuse(name, f"has shape {found.shape}", str(shape), "reshape it")
    return found


def host_view(name: str, tensor: Any) -> View:
    """The view of a tensor in host memory; a GPU tensor of torch or CuPy is copied there first."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return _of_torch(name, tensor.detach().cpu())
    found = view(name, tensor)
    if found.gpu < 0:
        return found
    if hasattr(tensor, "get"):  # CuPy
        return view(name, tensor.get())
    raise _refuse(name, f"is memory of GPU {found.gpu}", "host memory", "copy it there")


def as_bytes(found: View) -> bytes:
    """A copy of the view's bytes; for tests and small host tensors."""
    count = ITEM_BYTES[found.dtype]
    for size in found.shape:
        count *= size
    return c.string_at(found.pointer, count) if count else b""
