"""The interface of the `safetensors` package, for files and for models of the store.

    from tensorcast.safetensors import safe_open            # instead of: from safetensors import safe_open
    from tensorcast.safetensors.torch import load_file      # and so on

    load_file("tc://llama/prod")                            # a key
    load_file("/models/llama/model.safetensors")            # attached if the store has it, otherwise read

Signatures, results and errors are those of safetensors 0.8 (https://huggingface.co/docs/safetensors). If this host's daemon
imported a file, and its size and mtime are unchanged, the model is attached instead of read. The `safetensors` package,
which must be installed for that, reads every other path. Attached memory is copy-on-write: a write takes a page of memory,
and no other process sees it.

Names of `safetensors` that are not defined here come from that package.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tensorcast.safetensors._stored import SafetensorError, StoredFile, attach, original

if TYPE_CHECKING:
    Path = str | os.PathLike[str]

__all__ = ["SafetensorError", "StoredFile", "load", "load_file", "safe_open", "save", "save_file"]


def safe_open(filename: Path, framework: str, device: str | int = "cpu", *, backend: str = "mmap") -> Any:
    """Opens a file, or a model of the store ("tc://KEY"), to read its tensors one by one.

    framework: "pt" or "numpy" ("np") for a model of the store; for a file, any that the safetensors package supports.
    """
    if backend not in ("mmap", "pread"):
        return original().safe_open(filename, framework, device, backend=backend)  # raises that package's error
    weights = attach(filename)
    if weights is None:
        return original().safe_open(filename, framework, device, backend=backend)
    return StoredFile(weights, framework, device)


def load_file(filename: Path, framework: str = "pt", device: str | int = "cpu", *, backend: str = "mmap") -> dict[str, Any]:
    """Loads all tensors of a file, or of a model of the store ("tc://KEY")."""
    read: dict[str, Any] = _flavour(framework).load_file(filename, **_where(framework, device), backend=backend)
    return read


def load(data: bytes, framework: str = "pt") -> dict[str, Any]:
    """Loads all tensors from the bytes of a safetensors file."""
    read: dict[str, Any] = _flavour(framework).load(data)
    return read


def save_file(tensors: Mapping[str, Any], filename: Path, metadata: Mapping[str, str] | None = None, framework: str = "pt") -> None:
    """Writes a file, or puts the tensors into the store under a key ("tc://KEY")."""
    _flavour(framework).save_file(tensors, filename, metadata)


def save(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None, framework: str = "pt") -> bytes:
    """Returns the tensors as the bytes of a safetensors file."""
    written: bytes = _flavour(framework).save(tensors, metadata)
    return written


def _flavour(framework: str) -> Any:
    if framework in ("np", "numpy"):
        return importlib.import_module("tensorcast.safetensors.numpy")
    if framework in ("pt", "torch", "pytorch"):
        return importlib.import_module("tensorcast.safetensors.torch")
    raise SafetensorError(f"framework {framework} is not supported; use pt or numpy")


def _where(framework: str, device: str | int) -> dict[str, Any]:
    return {} if framework in ("np", "numpy") else {"device": device}


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(original(), name)
