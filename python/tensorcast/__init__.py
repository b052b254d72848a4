"""TensorCast: model weights, stored once and mapped into every process that uses them.

    import tensorcast as tc
    with tc.connect() as store:
        store.put("/models/llama", key="llama/prod")
        with store.get("llama/prod") as weights:
            embedding = weights["model.embed_tokens.weight"].numpy()

get() maps memory of the host's store daemon and copies nothing. Every array made from the weights keeps the lease of
the weights. Class Store has the calls, class Weights is the result of get(), and module errors has the exceptions.
"""

import importlib
import sys

if sys.version_info < (3, 12):
    # Python 3.12 and later ask a native module whether it supports subinterpreters, and refuse the import themselves.
    _interpreters = importlib.import_module("_xxsubinterpreters")
    if _interpreters.get_current() != _interpreters.get_main():
        raise ImportError("import tensorcast: subinterpreters are not supported; import it in the main interpreter")

from tensorcast._native import Array
from tensorcast._native import version as __version__
from tensorcast.changes import Change, Changes, Elements, Written
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
from tensorcast.files import Files
from tensorcast.live import Follow, Version
from tensorcast.other_distributions import warn as _warn_of_other_distributions
from tensorcast.store import Key, Put, Store, Watch, connect, connect_async
from tensorcast.weights import Weights

_warn_of_other_distributions()

__all__ = [
    "AbortedError",
    "AlreadyExistsError",
    "Array",
    "CancelledError",
    "Change",
    "Changes",
    "ClosedError",
    "DataLossError",
    "DeadlineExceededError",
    "Elements",
    "Error",
    "FailedPreconditionError",
    "Files",
    "Follow",
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
    "Version",
    "Watch",
    "Weights",
    "Written",
    "__version__",
    "connect",
    "connect_async",
]
