"""`safetensors.numpy`, for files and for models of the store: see tensorcast.safetensors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tensorcast.safetensors._stored import StoredFile, attach, key_of, original, put

if TYPE_CHECKING:
    Path = str | os.PathLike[str]


def load_file(filename: Path, *, backend: str = "mmap") -> dict[str, Any]:
    """All tensors of a file, or of a model of the store ("tc://KEY"), as arrays that may be written to."""
    weights = attach(filename)
    if weights is None:
        read: dict[str, Any] = original("numpy").load_file(filename, backend=backend)
        return read
    return StoredFile(weights, "numpy").get_tensors()


def load(data: bytes) -> dict[str, Any]:
    """All tensors of a file's bytes."""
    read: dict[str, Any] = original("numpy").load(data)
    return read


def save_file(tensor_dict: Mapping[str, Any], filename: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Writes a file, or puts the arrays into the store under a key ("tc://KEY")."""
    if key_of(filename) is None:
        original("numpy").save_file(tensor_dict, filename, metadata)
    else:
        put(tensor_dict, filename, metadata)


def save(tensor_dict: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes of such a file."""
    written: bytes = original("numpy").save(tensor_dict, metadata)
    return written


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(original("numpy"), name)
