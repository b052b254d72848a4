"""The elements that differ between two versions of a model, and how they are written into tensors of the program.

    for name, indices, values in store.changes(previous, "policy"):
        if indices is None:                                    # the tensor changed so much that it comes whole
            engine.load(name, values.torch())
        else:
            engine.patch(name, indices.torch(), values.torch())

A difference of the store tells *which* elements changed. Their values always come from the target, which the daemon has
verified. So an interrupted write may be repeated; after the repetition the tensors hold the target.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from tensorcast import _native, arguments, arrays, calls
from tensorcast.errors import InvalidArgumentError, InvalidTypeError
from tensorcast.tables import Shown

if TYPE_CHECKING:
    from tensorcast.store import Store
    from tensorcast.weights import Weights


class Elements:
    """A one-dimensional array in its own memory: the flat indices of a change, or the values at these indices."""

    device = "cpu"

    def __init__(self, name: str, dtype: str, raw: _native.RawBytes, count: int) -> None:
        self.name = name
        self.dtype = dtype
        self.raw = raw
        self.shape = (count,)

    @property
    def nbytes(self) -> int:
        return len(self.raw)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<tensorcast.Elements {self.name} {self.dtype} {self.shape}>"

    def numpy(self) -> Any:
        """The elements as a numpy.ndarray. Raises TypeError for a dtype that numpy does not have."""
        import numpy

        raw: Any = self.raw
        return numpy.frombuffer(raw, dtype=arrays.numpy_dtype(self.dtype))

    def torch(self) -> Any:
        """The elements as a torch.Tensor."""
        import torch

        dtype = arrays.torch_dtype(self.dtype)
        return torch.frombuffer(self.raw, dtype=dtype) if len(self.raw) else torch.empty(0, dtype=dtype)


class Change(NamedTuple):
    """A tensor of the target that differs from the base: the changed elements and their new values."""

    name: str
    indices: Elements | None  # flat indices in row-major order, ascending, I64; None: the whole tensor
    values: Elements | _native.Array  # the elements' values; without indices, the whole tensor in the store's memory


class Changes(calls.Closing, Iterator[Change]):
    """The result of Store.changes(): an iterator over the tensors of the target that differ from the base.

    A tensor is given whole if more than a quarter of it changed, if the base has no such tensor, or if an element takes
    less than a byte. The iterator keeps the lease on the target until close(), the end of a `with` block, or its garbage
    collection. Whole tensors that it gave also keep the lease.
    """

    def __init__(self, weights: Weights, found: _native.Changes) -> None:
        self._weights = weights
        self._found: _native.Changes | None = found
        self._tensors = enumerate(list(weights))
        self.source = found.source  # "differences", "comparison" of both images, or "same"
        self.base_id = found.base_id
        self.target_id = weights.artifact_id

    def close(self) -> None:
        self._found = None
        self._weights.close()

    def __iter__(self) -> Iterator[Change]:
        return self

    def __next__(self) -> Change:
        while self._found is not None:
            place, name = next(self._tensors)
            changed = self._found.of(place)
            tensor = self._weights[name]
            if changed is None:
                return Change(name, None, tensor)
            indices, values = changed
            count = len(indices) // 8
            if count:
                return Change(name, Elements(name, "I64", indices, count), Elements(name, tensor.dtype, values, count))
        raise StopIteration


@dataclasses.dataclass(frozen=True)
class Written(Shown):
    """The result of a write into tensors of the program."""

    artifact_id: str  # the version that the tensors hold now
    source: str  # where the changes came from: "differences", "same" (nothing to write), or "whole" (everything was copied)
    elements: int  # the number of elements that were written one by one
    whole_bytes: int  # the bytes that were copied in rows
    seconds: float


class Memory:
    """The tensors of the program that a write changes, by their index in the weights."""

    def __init__(self) -> None:
        self.tensors: list[tuple[int, Any]] = []  # the index, and the tensor's bytes as a one-dimensional array
        self.on_gpus: list[tuple[int, _native.Array, Any]] = []  # the index, the array to write, and the torch tensor
        self.addresses: list[tuple[str, int, int]] = []  # the name, the address, and the number of bytes

    def add(self, place: int, array: _native.Array, tensor: Any) -> None:
        """Adds the tensor. Raises if the tensor cannot hold the array's bytes in their order."""
        flat, address = _flat(array, tensor)
        if array.nbytes and flat is tensor:
            self.on_gpus.append((place, array, tensor.detach()))
        elif array.nbytes:
            self.tensors.append((place, flat))
        self.addresses.append((array.name, address, array.nbytes))


def memory_of(weights: Weights, into: Mapping[str, Any]) -> Memory:
    """The memory of the tensors in `into`. Raises unless `into` has exactly the tensors of the weights."""
    if not isinstance(into, Mapping):
        raise InvalidTypeError(f"into must be a mapping of names to tensors, not {arguments.shown(into)}")
    missing = [name for name in weights if name not in into]
    unknown = [name for name in into if name not in set(weights)]
    if missing or unknown:
        what = f"into has no tensor for {missing[:3]}" if missing else f"{unknown[:3]} of into are not in the artifact"
        raise InvalidArgumentError(f"write {weights.artifact_id}: {what}; give a tensor for each name, or choose names with tensors=")
    memory = Memory()
    for place, (name, array) in enumerate(weights.items()):
        memory.add(place, array, into[name])
    return memory


def find(store: Store, weights: Weights, bases: Iterable[str], options: _native.CallOptions) -> calls.Steps[list[_native.Changes]]:
    """Finds the elements to write into memory that holds a mixture of the versions `bases`. Without bases, finds
    all elements of the weights.
    """
    found: list[_native.Changes] = []
    for base in list(bases) or [""]:
        one = yield store.native.find_changes(weights.native, base, compare=False, options=options)
        if one.source == "whole":
            return [one]  # it writes what the others would
        found.append(one)
    return found


def source_of(found: Iterable[_native.Changes]) -> str:
    """The value of Written.source for these changes."""
    return next((one.source for one in found if one.source != "same"), "same")


def write(weights: Weights, memory: Memory, found: Sequence[_native.Changes], options: _native.CallOptions) -> calls.Steps[Written]:
    """Writes the changes of find() into the memory, which holds the weights after the write."""
    begun = time.perf_counter()
    elements = whole_bytes = 0
    for one in found:
        by_element, in_rows = yield one.write(memory.tensors, options=options)
        elements, whole_bytes = elements + by_element, whole_bytes + in_rows
        if memory.on_gpus:
            from tensorcast import indexed  # it imports torch

            by_element, in_rows = indexed.write(one, [indexed.Target(*target) for target in memory.on_gpus])
            elements, whole_bytes = elements + by_element, whole_bytes + in_rows
    return Written(weights.artifact_id, source_of(found), elements, whole_bytes, time.perf_counter() - begun)


def held(version: Any) -> list[str]:
    """The artifact ids that `from_` names: one version or several, each an artifact id or a value with an artifact_id."""
    if version is None:
        return []
    several = isinstance(version, Sequence) and not isinstance(version, str)
    ids = [getattr(one, "artifact_id", one) for one in (version if several else [version])]
    for one in ids:
        if not arguments.text("from_", one).startswith("tc2:"):
            raise InvalidArgumentError(f'from_ must be an artifact id, or a value that has one, not the key "{one}": '
                                       "a key may name another artifact by now; keep the artifact id of what was loaded")
    return ids


def _flat(array: _native.Array, tensor: Any) -> tuple[Any, int]:
    """The bytes of a tensor as a one-dimensional array that shares its memory, and their address.

    For a tensor on a GPU, returns the tensor itself and its address.
    """
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        if tensor.device.type not in ("cpu", "cuda"):
            _refuse(array, f"is on {tensor.device}", "give a tensor in host memory or on a GPU")
        if tensor.layout != torch.strided or not tensor.is_contiguous():
            _refuse(array, "is not contiguous", "give a contiguous tensor, or use tensorcast.torch.update_module for parameters")
        _check(array, str(tensor.dtype).removeprefix("torch.") == str(arrays.torch_dtype(array.dtype)).removeprefix("torch."),
               tuple(tensor.shape) == arrays.torch_shape(array), tensor)
        if tensor.device.type == "cuda":
            return tensor, tensor.data_ptr()
        flat = tensor.detach().view(-1).view(torch.uint8) if tensor.numel() else None
        return flat, tensor.data_ptr()
    if numpy is not None and isinstance(tensor, numpy.ndarray):
        if not tensor.flags.c_contiguous or not tensor.flags.writeable:
            _refuse(array, "is not contiguous, or is read-only", "give a contiguous array that may be written")
        _check(array, tensor.dtype == arrays.numpy_dtype(array.dtype), tensor.shape == array.shape, tensor)
        return tensor.reshape(-1).view(numpy.uint8), tensor.ctypes.data
    raise InvalidTypeError(f'write tensor "{array.name}": the target must be a numpy.ndarray or a torch.Tensor, not {arguments.shown(tensor)}')


def _check(array: _native.Array, same_dtype: bool, same_shape: bool, tensor: Any) -> None:
    if not same_dtype or not same_shape:
        _refuse(array, f"is {tensor.dtype} {tuple(tensor.shape)}, and {array.dtype} {array.shape} in the store",
                "give a tensor of the same dtype and shape")


def _refuse(array: _native.Array, what: str, remedy: str) -> NoReturn:
    raise InvalidArgumentError(f'write tensor "{array.name}": the target {what}; {remedy}')
