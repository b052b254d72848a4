"""Updates a PyTorch module in place from one version to another: implements tensorcast.torch.update_module."""

from __future__ import annotations

import dataclasses
import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from tensorcast import _native, arrays, calls, changes, indexed
from tensorcast.dense import is_dtensor
from tensorcast.errors import DataLossError
from tensorcast.modules import check_equal, has_own_dispatch, tied
from tensorcast.weights import Weights

if TYPE_CHECKING:
    from tensorcast.store import Store

# For each module with an unfinished update: the versions of which it may hold elements. _UNKNOWN: any version.
_unfinished: weakref.WeakKeyDictionary[torch.nn.Module, set[str]] = weakref.WeakKeyDictionary()
_UNKNOWN = ""


@dataclasses.dataclass
class _Target:
    """A tensor of the module to write."""

    names: list[str]  # in the module; a tied parameter has several names
    tensor: torch.Tensor
    place: int  # in the weights
    array: _native.Array

    @property
    def packed(self) -> bool:
        return bool(self.tensor.device.type == "cpu" and self.tensor.is_contiguous())

    def __str__(self) -> str:
        name, *others = self.names
        notes = [f"tied to {', '.join(others)}"] if others else []
        if not self.tensor.is_contiguous():
            notes.append("transposed" if self.tensor.dim() > 1 else "not contiguous")
        return f"{name} ({'; '.join(notes)})" if notes else name


def update(module: torch.nn.Module, store: Store, key: str, from_: Any, *, strict: bool, verify: bool,
           timeout: float | None) -> changes.Written:
    begun = time.perf_counter()
    bases = set(changes.held(from_))
    options = store.options(timeout)
    with store.get(key, timeout=timeout, progress=False) as weights:
        targets = _targets(module, weights, strict)
        unfinished = _unfinished.get(module, set())
        bases = bases | unfinished if bases and _UNKNOWN not in unfinished else set()
        _unfinished[module] = (bases or {_UNKNOWN}) | {weights.artifact_id}
        found: list[_native.Changes] = calls.run(changes.find(store, weights, sorted(bases), options))
        memory = changes.Memory()
        for target in targets:
            if target.packed:
                memory.add(target.place, target.array, target.tensor)
        by_index = [indexed.Target(target.place, target.array, target.tensor) for target in targets if not target.packed]
        elements = whole_bytes = 0
        for one in found:
            for count in (calls.finish(one.write(memory.tensors, options=options)), indexed.write(one, by_index)):
                elements, whole_bytes = elements + count[0], whole_bytes + count[1]
        if verify:
            _verify(module, weights, targets, options)
        del _unfinished[module]
        return changes.Written(weights.artifact_id, changes.source_of(found), elements, whole_bytes, time.perf_counter() - begun)


def _targets(module: torch.nn.Module, weights: Weights, strict: bool) -> list[_Target]:
    """The tensors of the module, each once, with the tensors of the store to write into them."""
    wanted: dict[str, torch.Tensor] = module.state_dict(keep_vars=True)
    called = type(module).__name__
    stored = {name: name for name in wanted if name in weights}
    stored.update({name: weights.metadata[name] for name in wanted
                   if name not in stored and weights.metadata.get(name) in weights})
    groups = list(tied(wanted))
    for names in groups:
        known = [name for name in names if name in stored]
        if len({stored[name] for name in known}) > 1:
            check_equal(module, known, {name: weights[stored[name]].torch() for name in known})
        stored.update({name: stored[known[0]] for name in names if known})
    missing = [name for name in wanted if name not in stored]
    unexpected = [name for name in weights if name not in wanted and name not in stored.values()]
    if strict and (missing or unexpected):
        raise RuntimeError(f"update {called}: missing {missing}, unexpected {unexpected}; pass strict=False to leave these out")
    places = {name: place for place, name in enumerate(weights)}
    same_tensor = {name: names for names in groups for name in names}
    targets: list[_Target] = []
    done: set[str] = set()
    for name in wanted:
        if name not in stored or name in done:
            continue
        names = same_tensor.get(name, [name])
        done.update(names)
        array = weights[stored[name]]
        targets.append(_Target(names, _checked(called, name, wanted[name], array), places[stored[name]], array))
    return targets


def _checked(called: str, name: str, tensor: torch.Tensor, array: _native.Array) -> torch.Tensor:
    """Returns the tensor if its memory holds the parameter's elements, and raises RuntimeError if not."""
    if not isinstance(tensor, torch.Tensor):
        _refuse(called, name, "is an extra state of its module and not a tensor", "load it with load_model")
    if torch.nn.parameter.is_lazy(tensor) or tensor.device.type == "meta":
        _refuse(called, name, "has no memory yet", "load the module first, with load_model")
    if is_dtensor(tensor) or has_own_dispatch(tensor) or tensor.layout != torch.strided or tensor.is_quantized:
        _refuse(called, name, f"is of type {type(tensor).__name__}, and update_module cannot write its memory", "use load_model with assign=False")
    dtype, shape = arrays.torch_dtype(array.dtype), arrays.torch_shape(array)
    if (tensor.dtype, tuple(tensor.shape)) != (dtype, shape):
        _refuse(called, name, f"is {tensor.dtype} {tuple(tensor.shape)} in the module and {dtype} {shape} in the store",
                "load it with load_model, which takes the store's dtype")
    if any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride())):
        _refuse(called, name, "is expanded: several of its elements share one place in memory", "make the tensor contiguous")
    return tensor.detach()


def _verify(module: torch.nn.Module, weights: Weights, targets: Sequence[_Target], options: _native.CallOptions) -> None:
    memory = changes.Memory()
    for target in targets:
        tensor = target.tensor if target.packed else target.tensor.cpu().contiguous()
        memory.add(target.place, target.array, tensor)
    places = set(calls.finish(_native.differing(weights.native, memory.tensors, options=options)))
    if places:
        _unfinished[module] = {_UNKNOWN}
        differing = ", ".join(str(target) for target in targets if target.place in places)
        raise DataLossError(f"update {type(module).__name__}: {differing} differ from {weights.artifact_id} after the update, so "
                            "the module did not hold the version that from_ names; call update_module again, which writes everything")


def _refuse(called: str, name: str, what: str, remedy: str) -> NoReturn:
    raise RuntimeError(f"update {called}: {name} {what}; {remedy}")
