"""One exception class per status of the C ABI. The message is the library's sentence: what, where, found, wanted, what to do."""

from __future__ import annotations

from monomoe._abi import Status


class Error(Exception):
    """Base of everything monomoe raises. `status` is the C ABI's number."""

    status: Status = Status.INTERNAL


class CheckFailedError(Error):
    """A comparison did not hold."""

    status = Status.CHECK_FAILED


class UsageError(Error, ValueError):
    """An argument is wrong."""

    status = Status.USAGE


class BadInputError(Error, ValueError):
    """A file or tensor is wrong."""

    status = Status.BAD_INPUT


class UnavailableError(Error, RuntimeError):
    """Not possible on this machine."""

    status = Status.UNAVAILABLE


class InternalError(Error, RuntimeError):
    """A fault of the library."""

    status = Status.INTERNAL


class RankTimeoutError(Error, TimeoutError):
    """A rank did not arrive in time. The workspace is poisoned: make a new one."""

    status = Status.TIMEOUT


class RejectedError(Error, RuntimeError):
    """Another rank refused this call's arguments. Nothing was computed; the next call may succeed."""

    status = Status.REJECTED


class PoisonedError(Error, RuntimeError):
    """An earlier call failed in the middle: make a new workspace."""

    status = Status.POISONED


BY_STATUS: dict[int, type[Error]] = {
    error.status: error
    for error in (CheckFailedError, UsageError, BadInputError, UnavailableError, InternalError, RankTimeoutError, RejectedError, PoisonedError)
}
