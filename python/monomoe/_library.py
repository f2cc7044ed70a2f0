"""Loads the shared library that lies in this package, and turns statuses into exceptions."""

from __future__ import annotations

import ctypes as c
from pathlib import Path
from typing import Any, Callable

from monomoe import _abi
from monomoe.errors import BY_STATUS, InternalError

PATH = Path(__file__).with_name("libmonomoe.so")


def _load() -> c.CDLL:
    try:
        library = c.CDLL(str(PATH))  # calls release the GIL: ranks on threads run side by side
    except OSError as error:
        raise ImportError(f"monomoe: {PATH} cannot be loaded ({error}); install the package with pip, which builds it") from error
    missing = [name for name in _abi.FUNCTIONS if not hasattr(library, "monomoe_" + name)]
    found = 0 if "abi_version" in missing else library.monomoe_abi_version()
    if missing or found != _abi.ABI_VERSION:
        lack = f" and lacks monomoe_{', monomoe_'.join(missing)}" if missing else ""
        raise ImportError(f"monomoe: {PATH} has ABI version {found}{lack}, this package was written for version {_abi.ABI_VERSION}; install both anew")
    for name, (result, arguments) in _abi.FUNCTIONS.items():
        function = getattr(library, "monomoe_" + name)
        function.restype, function.argtypes = result, arguments
    return library


library = _load()


def fail(status: int) -> None:
    """Raises the exception of a status other than OK, with the calling thread's last sentence."""
    sentence = library.monomoe_last_error().decode("utf-8", "replace")
    error = BY_STATUS.get(status, InternalError)
    raise error(sentence or f"status {status} without a sentence")


def check(status: int) -> None:
    if status != 0:
        fail(status)


def text(function: Callable[..., int], *arguments: Any) -> str:
    """Calls a function whose last parameter is a char** and returns what it wrote."""
    out = c.c_void_p()
    check(function(*arguments, c.byref(out)))
    try:
        return c.string_at(out).decode()
    finally:
        library.monomoe_free_text(out)


class Handle:
    """Owns what a *_create function made. Keeps what it was made from alive, so that children are destroyed before parents."""

    __slots__ = ("pointer", "_destroy", "_parents")

    def __init__(self, destroy: Callable[[int], None], create: Callable[..., int], *arguments: Any, parents: tuple[Any, ...] = ()):
        out = c.c_void_p()
        self.pointer: int | None = None
        self._destroy = destroy
        self._parents = parents
        check(create(*arguments, c.byref(out)))
        self.pointer = out.value

    def __reduce__(self) -> Any:
        raise TypeError("what monomoe packed or allocated cannot be copied or pickled; make it anew where it is needed")

    def __del__(self) -> None:
        if self.pointer is not None:
            self._destroy(self.pointer)
            self.pointer = None
