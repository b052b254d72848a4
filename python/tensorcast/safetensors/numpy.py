"""The interface of `safetensors.numpy`, for files and for models of the store. See tensorcast.safetensors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tensorcast.safetensors._stored import StoredFile, attach, key_of, original, put

if TYPE_CHECKING:
    Path = str | os.PathLike[str]


def load_file(filename: Path, *, backend: str = "mmap") -> dict[str, Any]:
    """Loads all tensors of a file, or of a model of the store ("tc://KEY"), as writable arrays."""
    weights = attach(filename)
    if weights is None:
        read: dict[str, Any] = original("numpy").load_file(filename, backend=backend)
        return read
    return StoredFile(weights, "numpy").get_tensors()


def load(data: bytes) -> dict[str, Any]:
    """Loads all tensors from the bytes of a safetensors file."""
    read: dict[str, Any] = original("numpy").load(data)
    return read


def save_file(tensor_dict: Mapping[str, Any], filename: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Writes a file, or puts the arrays into the store under a key ("tc://KEY")."""
    if key_of(filename) is None:
        original("numpy").save_file(tensor_dict, filename, metadata)
    else:
        put(tensor_dict, filename, metadata)


def save(tensor_dict: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """Returns the tensors as the bytes of a safetensors file."""
    written: bytes = original("numpy").save(tensor_dict, metadata)
    return written


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(original("numpy"), name)
