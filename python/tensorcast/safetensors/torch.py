"""The interface of `safetensors.torch`, for files and for models of the store. See tensorcast.safetensors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tensorcast.safetensors._stored import StoredFile, attach, key_of, original, put

if TYPE_CHECKING:
    Path = str | os.PathLike[str]


def load_file(filename: Path, device: str | int = "cpu", *, backend: str = "mmap") -> dict[str, Any]:
    """Loads all tensors of a file, or of a model of the store ("tc://KEY")."""
    weights = attach(filename)
    if weights is None:
        read: dict[str, Any] = original("torch").load_file(filename, device=device, backend=backend)
        return read
    return StoredFile(weights, "pt", device).get_tensors()


def load(data: bytes) -> dict[str, Any]:
    """Loads all tensors from the bytes of a safetensors file."""
    read: dict[str, Any] = original("torch").load(data)
    return read


def save_file(tensors: Mapping[str, Any], filename: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Writes a file, or puts the tensors into the store under a key ("tc://KEY")."""
    if key_of(filename) is None:
        original("torch").save_file(tensors, filename, metadata)
    else:
        put(tensors, filename, metadata)


def save(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """Returns the tensors as the bytes of a safetensors file."""
    written: bytes = original("torch").save(tensors, metadata)
    return written


def load_model(model: Any, filename: Path, strict: bool = True, device: str | int = "cpu", *, backend: str = "mmap") -> Any:
    """Copies the tensors of a file, or of a model of the store ("tc://KEY"), into a module.

    Returns the missing names and the unexpected names. tensorcast.torch.load_model does the same without a copy.
    """
    weights = attach(filename)
    if weights is None:
        return original("torch").load_model(model, filename, strict, device, backend=backend)
    from tensorcast.modules import fill_module

    return fill_module(model, StoredFile(weights, "pt", device).get_tensors(), weights.metadata, strict=strict, assign=False)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(original("torch"), name)
