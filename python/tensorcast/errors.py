"""The exceptions: one tree below Error, each also the kind of Python's own that a program would expect.

The text is the daemon's, as it said it; `code` is the name of gRPC's status code.
"""

from __future__ import annotations


class Error(Exception):
    """Whatever TensorCast has to say."""

    code = "UNKNOWN"

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message


class InvalidArgumentError(Error, ValueError):
    """What was asked makes no sense, to whichever daemon."""

    code = "INVALID_ARGUMENT"


class InvalidTypeError(InvalidArgumentError, TypeError):
    """An argument is of a type that it cannot be; the message names it."""


class NotFoundError(Error, KeyError):
    """No such key, artifact, replica or tensor."""

    code = "NOT_FOUND"


class AlreadyExistsError(Error, FileExistsError):
    """There is one of that name already."""

    code = "ALREADY_EXISTS"


class DeadlineExceededError(Error, TimeoutError):
    """The call took longer than its timeout."""

    code = "DEADLINE_EXCEEDED"


class CancelledError(Error):
    """The call was given up before its end."""

    code = "CANCELLED"


class UnavailableError(Error, ConnectionError):
    """The daemon, or the global store behind it, cannot be reached."""

    code = "UNAVAILABLE"


class PermissionDeniedError(Error, PermissionError):
    """This user, or this certificate, may not."""

    code = "PERMISSION_DENIED"


class UnauthenticatedError(PermissionDeniedError):
    """The daemon does not know who this is."""

    code = "UNAUTHENTICATED"


class ResourceExhaustedError(Error, MemoryError):
    """A pool is full of what is in use, or this process may have no more of something."""

    code = "RESOURCE_EXHAUSTED"


class FailedPreconditionError(Error, RuntimeError):
    """Not here, or not now: the message says what has to be otherwise."""

    code = "FAILED_PRECONDITION"


class AbortedError(Error, RuntimeError):
    """Somebody else was first: files changed while they were read, for example."""

    code = "ABORTED"


class OutOfRangeError(Error, IndexError):
    """Beyond what there is, or what can be expressed."""

    code = "OUT_OF_RANGE"


class UnimplementedError(Error, NotImplementedError):
    """The daemon is of another version, or the thing is not done."""

    code = "UNIMPLEMENTED"


class InternalError(Error, RuntimeError):
    """A defect of TensorCast."""

    code = "INTERNAL"


class DataLossError(Error, OSError):
    """No source has the bytes as they were stored."""

    code = "DATA_LOSS"


class ForkedError(Error, RuntimeError):
    """This process was forked from one that had connected; the message says what works here."""

    code = "FORKED"


class ClosedError(Error, ValueError):
    """The store, or the weights, were closed before."""

    code = "CLOSED"


_BY_CODE = {
    kind.code: kind
    for kind in (
        InvalidArgumentError,
        NotFoundError,
        AlreadyExistsError,
        DeadlineExceededError,
        CancelledError,
        UnavailableError,
        PermissionDeniedError,
        UnauthenticatedError,
        ResourceExhaustedError,
        FailedPreconditionError,
        AbortedError,
        OutOfRangeError,
        UnimplementedError,
        InternalError,
        DataLossError,
        ForkedError,
    )
}


def of_status(code: str, message: str) -> Error:
    """The exception for a status of the client library; it is not raised."""
    kind = _BY_CODE.get(code)
    if kind is not None:
        return kind(message)
    return Error(f"{code}: {message}")
