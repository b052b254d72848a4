"""Presents models of the store as safetensors files: finds the model for a path, and implements `safe_open` for it."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import tensorcast
from tensorcast import arguments, default_store

if TYPE_CHECKING:
    Path = str | os.PathLike[str]

try:
    from safetensors import SafetensorError as SafetensorError
except ImportError:

    class SafetensorError(Exception):  # type: ignore[no-redef]
        """Replaces the class of the safetensors package if that is not installed."""


_SCHEME = "tc://"


def original(flavour: str = "") -> Any:
    """Returns the `safetensors` package, or its submodule `flavour`, for files that are not in the store."""
    name = f"safetensors.{flavour}" if flavour else "safetensors"
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"files that are not in the store need the safetensors package: {name}: {error}; install safetensors") from error


def key_of(filename: Path) -> str | None:
    """The key that "tc://KEY" names; None for a path."""
    name = os.fspath(filename)
    return name[len(_SCHEME) :] if isinstance(name, str) and name.startswith(_SCHEME) else None


def attach(filename: Path) -> tensorcast.Weights | None:
    """Returns the weights of a key, or of a path that the daemon imported. None: read the path as a file.

    Raises FileNotFoundError for a key that is not bound.
    """
    key = key_of(filename)
    if key is not None:
        try:
            return default_store.connect().get(key, progress=False)
        except tensorcast.NotFoundError as error:
            raise FileNotFoundError(f"No such key in the store: {key}") from error
    store = default_store.find()
    if store is None or not os.path.isfile(filename):
        return None
    try:
        artifact_id, files = store.find_imported(os.fspath(filename))
        names = None if files == 1 else _names_in(filename)
        if names == []:
            return None  # a shard without tensors
        return store.get(artifact_id, tensors=names, progress=False)
    except tensorcast.Error:
        return None  # the daemon does not know it or is unavailable: the caller can read the file


def put(tensors: Mapping[str, Any], filename: Path, metadata: Mapping[str, str] | None) -> None:
    key = key_of(filename)
    assert key is not None
    default_store.connect().put(dict(tensors), key=key, metadata=dict(metadata or {}), progress=False)


def _names_in(path: Path) -> list[str]:
    """The names in the header of a shard. The safetensors package raises the error for a malformed file."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return [arguments.pattern_of(name) for name in header if name != "__metadata__"]


class StoredFile:
    """The result of `safe_open` for a model of the store. Its tensors may outlive it."""

    def __init__(self, weights: tensorcast.Weights, framework: str, device: str | int = "cpu") -> None:
        if framework not in ("pt", "torch", "pytorch", "np", "numpy"):
            raise SafetensorError(f"the store does not support framework {framework}; use pt or numpy")
        self._weights: tensorcast.Weights | None = weights
        self._torch = framework in ("pt", "torch", "pytorch")
        self._device = device

    def keys(self) -> list[str]:
        return sorted(self._open())

    def offset_keys(self) -> list[str]:
        return list(self._open())

    def metadata(self) -> dict[str, str] | None:
        return dict(self._open().metadata) or None

    def get_tensor(self, name: str) -> Any:
        return self._placed(self._whole(name))

    def get_tensors(self) -> dict[str, Any]:
        return {name: self.get_tensor(name) for name in self._open()}

    def get_slice(self, name: str) -> StoredSlice:
        return StoredSlice(self, name, self._array(name))

    def __enter__(self) -> StoredFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._weights = None  # the lease ends with the last tensor

    def _open(self) -> tensorcast.Weights:
        if self._weights is None:
            raise SafetensorError("File is closed")
        return self._weights

    def _array(self, name: str) -> tensorcast.Array:
        try:
            return self._open()[name]
        except KeyError:
            raise SafetensorError(f"File does not contain tensor {name}") from None

    def _whole(self, name: str) -> Any:
        array = self._array(name)
        try:
            return array.torch() if self._torch else _private_numpy(array)
        except TypeError as error:
            raise SafetensorError(f"Dtype not understood: {array.dtype} ({error})") from error

    def _placed(self, tensor: Any) -> Any:
        if not self._torch or self._device in ("cpu", None):
            return tensor
        import torch

        return tensor.to(torch.device(self._device))


class StoredSlice:
    """A tensor to read in part: `slice_[2:, 0]` reads only that part."""

    def __init__(self, file: StoredFile, name: str, array: tensorcast.Array) -> None:
        self._file = file
        self._name = name
        self._array = array

    def get_shape(self) -> list[int]:
        return list(self._array.shape)

    def get_dtype(self) -> str:
        return self._array.dtype

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, list):
            if index:
                raise SafetensorError("Non empty lists are not implemented")
            index = slice(0, 0)
        indices = index if isinstance(index, tuple) else (index,)
        _check_bounds(indices, self.get_shape())
        if self._array.dtype == "F4":
            # The safetensors package also refuses it, because torch's tensor has another shape than the stored one.
            raise SafetensorError(f"{self._name} cannot be sliced, because its elements do not fill whole bytes; use get_tensor")
        return self._file._placed(self._file._whole(self._name)[index if indices else ...])


def _private_numpy(array: tensorcast.Array) -> Any:
    """A writable array, like those of the safetensors package."""
    import numpy

    return numpy.ndarray(array.shape, array.numpy().dtype, buffer=cast(Any, array.private_raw()))


def _check_bounds(indices: Sequence[Any], shape: list[int]) -> None:
    """Raises the same errors as the safetensors package, because numpy and torch do not raise all of them."""
    if Ellipsis in indices:
        return
    if len(indices) > len(shape):
        raise SafetensorError(f"Error during slicing {_written(indices)} with shape {shape}: too many slices")
    for axis, (index, size) in enumerate(zip(indices, shape)):
        if isinstance(index, slice):
            last = (index.stop if index.stop is not None else size) - 1
        else:
            last = index
            if index < 0:
                if index + size < 0:
                    raise SafetensorError(f"Invalid index {index} for dimension {axis} of size {size}")
                continue
        if last >= size:
            raise SafetensorError(
                f"Error during slicing {_written(indices)} with shape {shape}: "
                f"index {last} out of bounds for tensor dimension #{axis} of size {size}"
            )


def _written(indices: Sequence[Any]) -> str:
    def one(index: Any) -> str:
        if not isinstance(index, slice):
            return str(index)
        return f"{'' if index.start is None else index.start}:{'' if index.stop is None else index.stop}"

    return f"[{', '.join(map(one, indices))}]"
