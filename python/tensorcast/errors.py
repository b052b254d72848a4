"""The exceptions. All derive from Error, and nearly all also from the matching built-in exception (NotFoundError:
KeyError).

The text is the daemon's own; `code` is the name of the gRPC status code.
"""

from __future__ import annotations


class Error(Exception):
    """The base of all exceptions of TensorCast."""

    code = "UNKNOWN"

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message


class InvalidArgumentError(Error, ValueError):
    """The arguments are invalid in every state of the store."""

    code = "INVALID_ARGUMENT"


class InvalidTypeError(InvalidArgumentError, TypeError):
    """An argument has the wrong type; the message names the argument."""


class NotFoundError(Error, KeyError):
    """The key, artifact, replica or tensor does not exist."""

    code = "NOT_FOUND"


class AlreadyExistsError(Error, FileExistsError):
    """The name is already in use."""

    code = "ALREADY_EXISTS"


class DeadlineExceededError(Error, TimeoutError):
    """The call took longer than its timeout."""

    code = "DEADLINE_EXCEEDED"


class CancelledError(Error):
    """The call was cancelled before it ended."""

    code = "CANCELLED"


class UnavailableError(Error, ConnectionError):
    """The daemon, or the global store behind it, cannot be reached."""

    code = "UNAVAILABLE"


class PermissionDeniedError(Error, PermissionError):
    """This user or this certificate may not make this call."""

    code = "PERMISSION_DENIED"


class UnauthenticatedError(PermissionDeniedError):
    """The call is unauthenticated: the daemon cannot identify the caller."""

    code = "UNAUTHENTICATED"


class ResourceExhaustedError(Error, MemoryError):
    """A pool has too little space (for example, all its replicas are in use), or a limit is reached."""

    code = "RESOURCE_EXHAUSTED"


class FailedPreconditionError(Error, RuntimeError):
    """The state of the store does not allow this call; the message says what to change."""

    code = "FAILED_PRECONDITION"


class AbortedError(Error, RuntimeError):
    """Another process interfered: for example, files changed while they were read."""

    code = "ABORTED"


class OutOfRangeError(Error, IndexError):
    """A value is outside of the valid range."""

    code = "OUT_OF_RANGE"


class UnimplementedError(Error, NotImplementedError):
    """The daemon does not support this call; its version may differ."""

    code = "UNIMPLEMENTED"


class InternalError(Error, RuntimeError):
    """A defect of TensorCast."""

    code = "INTERNAL"


class DataLossError(Error, OSError):
    """No source has intact bytes."""

    code = "DATA_LOSS"


class ForkedError(Error, RuntimeError):
    """This process was forked from a connected process. The message says what works in this process."""

    code = "FORKED"


class ClosedError(Error, ValueError):
    """The store, weights, files or group is closed."""

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


# By the number of the code (google.rpc.Code), as messages of proto/ carry it.
_CODES = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)


def of_code(code: int, message: str) -> Error:
    """Returns the exception for an error within a message of proto/, without raising it."""
    return of_status(_CODES[code] if 0 <= code < len(_CODES) else f"code {code}", message)


def of_status(code: str, message: str) -> Error:
    """Returns the exception for a status of the client library, without raising it."""
    kind = _BY_CODE.get(code)
    if kind is not None:
        return kind(message)
    return Error(f"{code}: {message}")
