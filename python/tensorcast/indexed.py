"""Writes changed elements by their indices into torch tensors that the native module cannot write: on a GPU, or not
contiguous.
"""

from __future__ import annotations

import collections
import concurrent.futures
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from tensorcast import _native

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

# The number of tensors for which threads find the changed elements at the same time. Each holds memory for its indices.
_AT_ONCE = min(8, os.cpu_count() or 1)


class Target(NamedTuple):
    """A tensor to write."""

    place: int  # its index in the weights
    array: _native.Array  # the new content
    tensor: torch.Tensor


def write(found: _native.Changes, targets: Sequence[Target]) -> tuple[int, int]:
    """Writes the changes to the tensors. Returns (elements written one by one, bytes copied in rows). Enqueues writes to a
    GPU on torch's current stream.
    """
    elements = whole_bytes = 0
    for target, changed in _with_changes(found, targets):
        if changed is None or not target.tensor.dim():
            target.tensor.copy_(target.array.torch())
            whole_bytes += target.array.nbytes
        elif len(changed[0]):
            elements += _write(target.tensor, *changed)
    return elements, whole_bytes


def _with_changes(
    found: _native.Changes, targets: Sequence[Target]
) -> Iterator[tuple[Target, tuple[_native.RawBytes, _native.RawBytes] | None]]:
    """The targets with their changes, in order. While the caller writes one, threads find the changes of the next ones."""
    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as threads:
        ahead: collections.deque[tuple[Target, concurrent.futures.Future[tuple[_native.RawBytes, _native.RawBytes] | None]]] = collections.deque()
        for target in targets:
            ahead.append((target, threads.submit(found.of, target.place)))
            if len(ahead) > _AT_ONCE:
                first, changed = ahead.popleft()
                yield first, changed.result()
        for first, changed in ahead:
            yield first, changed.result()


def _write(tensor: torch.Tensor, raw_indices: _native.RawBytes, raw_values: _native.RawBytes) -> int:
    integer = _INTEGERS[tensor.element_size()]
    rest = torch.frombuffer(raw_indices, dtype=torch.int64).to(tensor.device)
    values = torch.frombuffer(raw_values, dtype=integer).to(tensor.device)
    if tensor.is_contiguous():
        tensor.view(-1).view(integer).index_copy_(0, rest, values)
        return len(values)
    coordinates: list[torch.Tensor] = []
    for size in reversed(tensor.shape):
        coordinates.insert(0, rest % size)
        rest = torch.div(rest, size, rounding_mode="floor")
    tensor.view(integer).index_put_(tuple(coordinates), values)
    return len(values)
