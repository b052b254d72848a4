"""Converts tensors of the store to arrays of numpy, torch and jax without a copy, and such arrays to tensors to put.

A library is imported only when a caller asks for its arrays.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tensorcast import _native, arguments
from tensorcast.dense import dense
from tensorcast.errors import InvalidArgumentError, InvalidTypeError

# The dtypes of numpy itself; ml_dtypes has the others.
_NUMPY = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}
_ML_DTYPES = {
    "BF16": "bfloat16",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}
_TORCH = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
    **{name: of_ml for name, of_ml in _ML_DTYPES.items() if name != "BF16"},
}
# The dtypes that torch takes by DLPack, since 1.13. This takes half the time of torch.frombuffer and a reshape.
_TORCH_BY_DLPACK = frozenset(("U8", "I8", "I16", "I32", "I64", "F16", "BF16", "F32", "F64", "C64"))
# The dtypes with two elements in a byte. torch has one element for each pair: its last dimension is half of the tensor's.
_TORCH_PAIRS = {"F4": "float4_e2m1fn_x2"}
_OF_NUMPY = {theirs: name for name, theirs in {**_NUMPY, **_ML_DTYPES}.items()}
_OF_TORCH = {theirs: name for name, theirs in {**_TORCH, **_TORCH_PAIRS}.items()}


def numpy_dtype(name: str) -> Any:
    """numpy's dtype for a safetensors name. Raises TypeError if numpy has none."""
    import numpy

    if name in _NUMPY:
        return numpy.dtype(_NUMPY[name])
    if name not in _ML_DTYPES:
        raise TypeError(f"numpy has no dtype for {name}, because its elements do not fill whole bytes; use .raw")
    try:
        import ml_dtypes
    except ImportError as error:
        raise TypeError(f"numpy needs the package ml_dtypes for {name}; install ml_dtypes") from error
    return numpy.dtype(getattr(ml_dtypes, _ML_DTYPES[name]))


def torch_dtype(name: str) -> Any:
    """torch's dtype for a safetensors name. Raises TypeError if torch has none."""
    import torch

    dtype = getattr(torch, {**_TORCH, **_TORCH_PAIRS}.get(name, ""), None)
    if dtype is None:
        raise TypeError(f"torch {torch.__version__} has no dtype for {name}; use .raw")
    return dtype


def to_numpy(array: _native.Array) -> Any:
    """A read-only numpy.ndarray of the same memory."""
    import numpy

    raw: Any = array.raw
    return numpy.frombuffer(raw, dtype=numpy_dtype(array.dtype)).reshape(array.shape)


def as_numpy(array: _native.Array, dtype: Any, copy: bool | None) -> Any:
    """The result of numpy.asarray(array, dtype, copy=copy)."""
    shown = to_numpy(array)
    if dtype is not None and shown.dtype != dtype:
        if copy is False:
            raise ValueError(f"{array!r} cannot be seen as {dtype} without a copy; leave copy=False or dtype out")
        return shown.astype(dtype)
    return shown.copy() if copy else shown


class _Bytes:
    """The bytes of an array on a GPU, for torch.from_dlpack."""

    def __init__(self, array: _native.Array) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.raw_dlpack(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def torch_shape(array: _native.Array) -> tuple[int, ...]:
    """The shape of torch's tensor. Raises TypeError if a byte would belong to two rows."""
    shape = array.shape
    if array.dtype not in _TORCH_PAIRS:
        return shape
    if not shape or shape[-1] % 2:
        raise TypeError(f"torch stores {array.dtype} in pairs along the last dimension, and {array.name} with shape {shape} has no even last dimension; use .raw")
    return *shape[:-1], shape[-1] // 2


def to_torch(array: _native.Array) -> Any:
    """A torch.Tensor of the same memory, in host memory or on its GPU."""
    import torch

    if array.dtype in _TORCH_BY_DLPACK and array.nbytes:
        return torch.from_dlpack(array) if array.device != "cpu" else torch.utils.dlpack.from_dlpack(array.__dlpack__())
    dtype, shape = torch_dtype(array.dtype), torch_shape(array)
    if array.nbytes == 0:
        return torch.empty(shape, dtype=dtype, device=array.device.replace("gpu", "cuda"))
    if array.device != "cpu":
        return torch.from_dlpack(_Bytes(array)).view(dtype).view(shape)
    flat = torch.frombuffer(array.private_raw(), dtype=dtype)
    return flat if len(shape) == 1 else flat.view(shape)


def to_jax(array: _native.Array) -> Any:
    """A jax.Array of the same memory."""
    import jax

    return jax.dlpack.from_dlpack(array)


@dataclasses.dataclass(frozen=True)
class Packed:
    """A tensor to put, as packed bytes: `data` is an array of U8 with one dimension, of any library."""

    dtype: str  # as safetensors writes it
    shape: tuple[int, ...]
    data: Any


# A tensor for the native module: its name, dtype, shape (None: those of the array) and the array.
_Put = tuple[str, str | None, Sequence[int] | None, Any]


def _put_numpy(name: str, array: Any) -> _Put:
    import numpy

    dtype = _OF_NUMPY.get(array.dtype.name)
    if dtype is None or not array.dtype.isnative:
        raise InvalidArgumentError(f'put tensor "{name}": safetensors has no name for the dtype {array.dtype!r}; convert the array to another dtype')
    packed = numpy.ascontiguousarray(array)
    return name, dtype, array.shape, packed.reshape(-1).view(numpy.uint8)


def _put_torch(name: str, tensor: Any) -> _Put:
    import torch

    tensor = dense(name, tensor)
    dtype = _OF_TORCH.get(str(tensor.dtype).removeprefix("torch."))
    if dtype is None:
        raise InvalidArgumentError(f'put tensor "{name}": safetensors has no name for the dtype {tensor.dtype}; convert the tensor to another dtype')
    shape = tuple(tensor.shape)
    if dtype in _TORCH_PAIRS:
        if not shape:
            raise InvalidArgumentError(f'put tensor "{name}": torch has {dtype} in pairs along the last dimension, and this tensor '
                                       "has no dimension; reshape the tensor to one dimension")
        tensor = tensor.view(torch.uint8)  # torch cannot copy these dtypes
        shape = *shape[:-1], shape[-1] * 2
    packed = tensor.detach().resolve_conj().resolve_neg().contiguous()
    flat = packed.reshape(-1).view(torch.uint8) if packed.numel() else torch.empty(0, dtype=torch.uint8, device="cpu")
    return name, dtype, shape, flat


def _buffer(name: str, tensor: Any) -> memoryview:
    """The buffer of a tensor, with strides for the native module, also if the buffer itself has none (ctypes)."""
    try:
        return memoryview(tensor)
    except (TypeError, ValueError, BufferError) as error:
        raise InvalidTypeError(f'put tensor "{name}": the value is not an array with DLPack or the buffer protocol ({error}); '
                               "pass a numpy.ndarray or a torch.Tensor") from None


def to_put(tensors: Mapping[str, Any]) -> list[_Put]:
    """Converts the arrays of Store.put for the native module. Copies only arrays with gaps, to pack them."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    listed: list[_Put] = []
    for name, tensor in tensors.items():
        if not isinstance(name, str):
            raise InvalidTypeError(f"the name of a tensor must be a str, not {arguments.shown(name)}")
        arguments.text("the name of a tensor", name)
        if name == "__metadata__":
            raise InvalidArgumentError("a tensor cannot have the name __metadata__, which safetensors files use for metadata; rename the tensor")
        if isinstance(tensor, _native.Array):
            source = tensor.raw if tensor.device == "cpu" else tensor
            listed.append((name, tensor.dtype, tensor.shape, source))
        elif isinstance(tensor, Packed):
            listed.append((name, tensor.dtype, tensor.shape, tensor.data))
        elif numpy is not None and isinstance(tensor, (numpy.ndarray, numpy.generic)):
            listed.append(_put_numpy(name, numpy.asarray(tensor)))
        elif torch is not None and isinstance(tensor, torch.Tensor):
            listed.append(_put_torch(name, tensor))
        else:
            listed.append((name, None, None, tensor if hasattr(tensor, "__dlpack__") else _buffer(name, tensor)))
    return listed


def elements(shape: Sequence[int]) -> int:
    """The number of elements of an array with this shape."""
    return math.prod(shape)
