"""Models of the store as safetensors shows files: which paths are models, and `safe_open` over one of them."""

from __future__ import annotations

import importlib
import json
import operator
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import tensorcast
from tensorcast import default_store

if TYPE_CHECKING:
    Path = str | os.PathLike[str]

try:
    from safetensors import SafetensorError as SafetensorError
except ImportError:

    class SafetensorError(Exception):  # type: ignore[no-redef]
        """As the original's, where that is not installed."""


_SCHEME = "tc://"
_FRAMEWORKS = {"pt": True, "torch": True, "pytorch": True, "np": False, "numpy": False}  # whether torch's
_DEVICE = re.compile(r"(cpu|cuda|musa|mps|npu|xpu|xla|mlu|hpu)|(cuda|musa|npu|xpu|xla|mlu|hpu):[0-9]+|mps:0")


def knows(framework: object) -> bool:
    """Whether models of the store can be shown as that framework's tensors."""
    return isinstance(framework, str) and framework in _FRAMEWORKS


def original(flavour: str = "") -> Any:
    """The module of the `safetensors` package that does what the store does not."""
    name = f"safetensors.{flavour}" if flavour else "safetensors"
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"files that are not in the store need the safetensors package ({name}: {error})") from error


def key_of(filename: Path) -> str | None:
    """The key that "tc://KEY" names; None for a path."""
    name = os.fspath(filename)
    return name[len(_SCHEME) :] if isinstance(name, str) and name.startswith(_SCHEME) else None


def attach(filename: Path) -> tensorcast.Weights | None:
    """The weights of a key, or of a path that the store knows; None for one that is to be read.

    FileNotFoundError for a key that is not there.
    """
    key = key_of(filename)
    if key is not None:
        try:
            if not key:
                raise tensorcast.NotFoundError
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
            return None  # a shard of nothing
        return store.get(artifact_id, tensors=names, progress=False)
    except tensorcast.Error:
        return None  # unknown, or not to be had just now: there is still the file


def put(tensors: Mapping[str, Any], filename: Path, metadata: Mapping[str, str] | None) -> None:
    key = key_of(filename)
    assert key is not None
    default_store.connect().put(dict(tensors), key=key, metadata=dict(metadata or {}), progress=False)


def _names_in(path: Path) -> list[str]:
    """The tensors of a shard, of which its header tells. What is wrong with it the original says."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    # A pattern's characters stand for themselves in a set of their own.
    special = str.maketrans({"*": "[*]", "?": "[?]", "[": "[[]"})
    return [name.translate(special) for name in header if name != "__metadata__"]


class StoredFile:
    """What `safe_open` gives for a model of the store. Its tensors outlive it."""

    def __init__(self, weights: tensorcast.Weights, framework: str, device: str | int = "cpu") -> None:
        _check_str("framework", framework)
        if not knows(framework):
            raise SafetensorError(f"framework {framework} is not to be had from the store: pt or numpy")
        if not (device is None or isinstance(device, int) or isinstance(device, str) and _DEVICE.fullmatch(device)):
            raise SafetensorError(f"device {device} is invalid")
        self._weights: tensorcast.Weights | None = weights
        self._torch = _FRAMEWORKS[framework]
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
        self._weights = None  # the lease goes when the last tensor has gone, too

    def _open(self) -> tensorcast.Weights:
        if self._weights is None:
            raise SafetensorError("File is closed")
        return self._weights

    def _array(self, name: str) -> tensorcast.Array:
        _check_str("name", name)
        try:
            return self._open()[name]
        except KeyError:
            raise SafetensorError(f"File does not contain tensor {name}") from None

    def _whole(self, name: str) -> Any:
        array = self._array(name)
        return array.torch() if self._torch else _private_numpy(array)

    def _placed(self, tensor: Any) -> Any:
        if not self._torch or self._device in ("cpu", None):
            return tensor
        import torch

        return tensor.to(torch.device(self._device))


class StoredSlice:
    """A tensor of which a part is wanted: `slice_[2:, 0]` touches that part alone."""

    def __init__(self, file: StoredFile, name: str, array: tensorcast.Array) -> None:
        self._file = file
        self._name = name
        self._array = array

    def get_shape(self) -> list[int]:
        return list(self._array.shape)

    def get_dtype(self) -> str:
        return self._array.dtype

    def __getitem__(self, index: Any) -> Any:
        whole = self._file._whole(self._name)
        if self._file._torch:
            return self._file._placed(whole[index])
        return whole[(*_indices(index, self.get_shape()), ...)]  # the last makes of an element an array, too


def _private_numpy(array: tensorcast.Array) -> Any:
    """As the original's arrays, which may be written to."""
    import numpy

    return numpy.ndarray(array.shape, array.numpy().dtype, buffer=cast(Any, array.private_raw()))


def _indices(index: Any, shape: list[int]) -> list[int | slice]:
    """One for each leading dimension: what the original takes of an index, and its errors, which numpy would not all make."""
    if isinstance(index, list):
        if index:
            raise SafetensorError("Non empty lists are not implemented")
        index = slice(0, 0)
    items = index if isinstance(index, tuple) else (index,)
    ellipses = sum(item is Ellipsis for item in items)
    if ellipses > 1:
        raise SafetensorError("Only one ellipsis (...) is allowed in slice index")
    indices: list[int | slice] = []
    for item in items:
        if item is Ellipsis:
            indices += [slice(None)] * (len(shape) - (len(items) - 1))
        elif isinstance(item, slice):
            indices.append(slice(_bound(item.start), _bound(item.stop), _step(item.step)))
        else:
            indices.append(_element(item, len(indices), shape))
    _check_bounds(indices, shape)
    return indices


def _bound(bound: Any) -> int | None:
    if bound is None:
        return None
    number = operator.index(bound)
    if number < 0:
        raise OverflowError("can't convert negative int to unsigned")
    return number


def _step(step: Any) -> int | None:
    number = 1 if step is None else operator.index(step)
    if number <= 0:
        raise SafetensorError(f"Slice step must be a positive integer, got {number}")
    return None if number == 1 else number


def _element(item: Any, axis: int, shape: list[int]) -> int:
    try:
        number = operator.index(item)
    except TypeError:
        raise SafetensorError(f"Unsupported slice index at position {axis}: expected slice, int, or ellipsis") from None
    size = shape[axis] if axis < len(shape) else 0
    if number + size < 0:
        raise SafetensorError(f"Invalid index {number} for dimension {axis} of size {size}")
    return number if number >= 0 else number + size


def _check_bounds(indices: Sequence[int | slice], shape: list[int]) -> None:
    def refuse(why: str) -> None:
        raise SafetensorError(f"Error during slicing [{', '.join(map(_written, indices))}] with shape {shape}: {why}")

    if len(indices) > len(shape):
        refuse("more slicing indexes than dimensions in tensor")
    for axis in reversed(range(len(indices))):
        index, size = indices[axis], shape[axis]
        if isinstance(index, slice):
            start, stop = index.start or 0, size if index.stop is None else index.stop
        else:
            start, stop = index, index + 1
        if start >= size or stop > size:
            asked = start if start >= size else stop - 1
            refuse(f"index {asked} out of bounds for tensor dimension #{axis} of size {size}")


def _written(index: int | slice) -> str:
    if not isinstance(index, slice):
        return str(index)
    return ":".join(["" if index.start is None else str(index.start), "" if index.stop is None else str(index.stop)]
                    + ([] if index.step is None else [str(index.step)]))


def _check_str(what: str, value: object) -> None:
    if not isinstance(value, str):
        of = "'None'" if value is None else f"'{type(value).__name__}' object"
        raise TypeError(f"argument '{what}': {of} is not an instance of 'str'")
