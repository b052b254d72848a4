"""Finds the torch tensors that have memory, and the tensors that share memory.

Many torch tensors are wrappers without memory: DTensor, FakeTensor, the tensors inside torch.func and torch.compile. Their
data_ptr() returns 0 or raises an error.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable
from typing import Any, NoReturn

from tensorcast.errors import InvalidArgumentError


def dense(name: str, tensor: Any) -> Any:
    """Returns the torch.Tensor in memory with the elements of `tensor`.

    This is the tensor itself, or the local tensor of a DTensor that is whole on this rank. Waits for the result of an
    asynchronous collective. Raises InvalidArgumentError for a tensor without memory; the message says what to put instead.
    """
    import torch

    tensor = _local(name, tensor)
    kind = type(tensor).__name__
    if torch.nn.parameter.is_lazy(tensor):
        _refuse(name, f"is of type {kind}, so it has no shape yet", "run the module once before the put")
    if tensor.device.type == "meta":
        _refuse(name, "is on the meta device, so it has no bytes", "put a tensor that was loaded or initialized")
    if tensor.is_nested:
        _refuse(name, "is nested, so it has no shape", "put tensor.to_padded_tensor(...), or the parts that tensor.unbind() returns")
    if tensor.layout != torch.strided:
        _refuse(name, f"is not dense: {tensor.layout}", "put tensor.to_dense()")
    if tensor.is_quantized:
        _refuse(name, f"is quantized: {tensor.dtype}", "put tensor.int_repr(), its scale and its zero point")
    if tensor.numel() and not _has_memory(tensor):
        _refuse(name, f"is of type {kind} and has no memory of its own",
                "put the plain tensor that it stands for, outside of torch.compile and torch.func, and after FSDP has gathered it")
    return tensor


def identity(tensor: Any) -> Hashable | None:
    """A value that is equal for tensors with the same elements of one storage in the same order. None: the tensor has no
    memory.
    """
    import torch

    if torch.nn.parameter.is_lazy(tensor) or tensor.is_nested or not tensor.numel() or not _has_memory(tensor):
        return None
    return (_storage(tensor)._cdata, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg())


def is_dtensor(tensor: Any) -> bool:
    return _is_a(tensor, "torch.distributed.tensor", "DTensor")


def _local(name: str, tensor: Any) -> Any:
    if is_dtensor(tensor):
        whole = all(place.is_replicate() or (place.is_shard() and tensor.device_mesh.size(axis) == 1)
                    for axis, place in enumerate(tensor.placements))
        if not whole or tensor.device_mesh.get_coordinate() is None:
            _refuse(name, f"is a DTensor with placements {tensor.placements}, and this rank has only a part of it",
                    "put tensor.full_tensor(), which gathers it on every rank")
        tensor = tensor.to_local()
    if _is_a(tensor, "torch.distributed._functional_collectives", "AsyncCollectiveTensor"):
        tensor = tensor.wait()
    return tensor


def _has_memory(tensor: Any) -> bool:
    """Whether the elements lie in an allocated storage. FSDP1 frees the storage of tensors that it keeps."""
    try:
        storage = _storage(tensor)
        if storage.device.type == "meta" or not storage.data_ptr():
            return False
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
        return bool(storage.nbytes() >= (tensor.storage_offset() + last + 1) * tensor.element_size())
    except (NotImplementedError, RuntimeError):
        return False  # torch raises these for a tensor without storage


def _storage(tensor: Any) -> Any:
    # torch has `untyped_storage` since 2.0.
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor._storage()


def _is_a(tensor: Any, module: str, name: str) -> bool:
    """isinstance() for a class of a module that may not be imported. If it is not, no tensor has the class."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(tensor, kind)


def _refuse(name: str, what: str, remedy: str) -> NoReturn:
    raise InvalidArgumentError(f'put tensor "{name}": the tensor {what}; {remedy}')
