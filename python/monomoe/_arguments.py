"""Arguments before ctypes takes them: it wraps numbers that do not fit their C type and has no words for a wrong type."""

from __future__ import annotations

import ctypes as c
import math
import operator
import os
from typing import Any, Iterable, TypeVar

from monomoe.errors import UsageError

T = TypeVar("T")
INT32, INT64, UINT32, UINT64 = (-1 << 31, (1 << 31) - 1), (-1 << 63, (1 << 63) - 1), (0, (1 << 32) - 1), (0, (1 << 64) - 1)


def kind_of(given: Any) -> str:
    return f"{type(given).__module__}.{type(given).__qualname__}"


def integer(name: str, given: Any, limits: tuple[int, int]) -> int:
    """An int, or what stands for one (NumPy's integers, tensors of one), within the limits."""
    try:
        if isinstance(given, bool):
            raise TypeError
        value = operator.index(given)
    except Exception:  # torch and JAX raise others for tensors that are no integer
        raise UsageError(f"{name} is a {kind_of(given)}, wanted an integer; convert it") from None
    if not limits[0] <= value <= limits[1]:
        found = str(value) if value.bit_length() <= 128 else f"an integer of {value.bit_length()} bits"
        raise UsageError(f"{name} is {found}, wanted {limits[0]} to {limits[1]}; give a number that fits")
    return value


def int32(name: str, given: Any) -> int:
    return integer(name, given, INT32)


def int64(name: str, given: Any) -> int:
    return integer(name, given, INT64)


def number(name: str, given: Any) -> float:
    """A real number as the float32 that the library takes."""
    try:
        value = c.c_float(given).value
        if math.isinf(value) and not math.isinf(given):
            raise OverflowError
        return value
    except Exception:
        raise UsageError(f"{name} is a {kind_of(given)}, wanted a real number that fits a float; convert it") from None


def instance(name: str, given: Any, kind: type[T]) -> T:
    if not isinstance(given, kind):
        raise UsageError(f"{name} is a {kind_of(given)}, wanted a {kind.__name__}; give one")
    return given


def items(name: str, given: Iterable[T], of: str) -> list[T]:
    try:
        return list(given)
    except TypeError:
        raise UsageError(f"{name} is a {kind_of(given)}, wanted a sequence of {of}") from None


def path(name: str, given: Any) -> bytes:
    try:
        found = os.fsencode(given)
    except (TypeError, UnicodeError):
        raise UsageError(f"{name} is {ascii(given) if isinstance(given, str) else 'a ' + kind_of(given)}, wanted a path") from None
    if b"\0" in found:
        raise UsageError(f"{name} is {given!r}, which holds a NUL character, wanted a path; a path ends at its first NUL")
    return found
