"""TensorCast: model weights, stored once and mapped wherever they are wanted.

    import tensorcast as tc
    with tc.connect() as store:
        store.put("/models/llama", key="llama/prod")
        with store.get("llama/prod") as weights:
            embedding = weights["model.embed_tokens.weight"].numpy()

What is got is memory of the host's store daemon, mapped and not copied; every array that is made of it keeps
the lease on it. Store has the calls, Weights what a get gives, and errors the exceptions.
"""

import importlib
import sys

if sys.version_info < (3, 12):
    # Later ones ask a native module whether it serves subinterpreters, and refuse by themselves.
    _interpreters = importlib.import_module("_xxsubinterpreters")
    if _interpreters.get_current() != _interpreters.get_main():
        raise ImportError("tensorcast does not support loading in subinterpreters")

from tensorcast._native import Array
from tensorcast._native import version as __version__
from tensorcast.errors import (
    AbortedError,
    AlreadyExistsError,
    CancelledError,
    ClosedError,
    DataLossError,
    DeadlineExceededError,
    Error,
    FailedPreconditionError,
    ForkedError,
    InternalError,
    InvalidArgumentError,
    InvalidTypeError,
    NotFoundError,
    OutOfRangeError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)
from tensorcast.store import Key, Put, Store, Watch, connect, connect_async
from tensorcast.weights import Weights

__all__ = [
    "AbortedError",
    "AlreadyExistsError",
    "Array",
    "CancelledError",
    "ClosedError",
    "DataLossError",
    "DeadlineExceededError",
    "Error",
    "FailedPreconditionError",
    "ForkedError",
    "InternalError",
    "InvalidArgumentError",
    "InvalidTypeError",
    "Key",
    "NotFoundError",
    "OutOfRangeError",
    "PermissionDeniedError",
    "Put",
    "ResourceExhaustedError",
    "Store",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "Watch",
    "Weights",
    "__version__",
    "connect",
    "connect_async",
]
