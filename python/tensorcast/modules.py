"""Fills the parameters and buffers of a PyTorch module with tensors of the store."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

import torch

from tensorcast import arguments
from tensorcast.dense import identity, is_dtensor
from tensorcast.errors import InvalidTypeError

# A place where a module holds a tensor: the name from the root, the module, the attribute and the tensor.
_Place = tuple[str, torch.nn.Module, str, torch.Tensor]


def fill_module(
    module: torch.nn.Module, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str], *, strict: bool, assign: bool
) -> tuple[list[str], list[str]]:
    """Does what tensorcast.torch.load_model does, for given tensors. An exception leaves the module unchanged."""
    wanted: dict[str, torch.Tensor] = module_of(module).state_dict(keep_vars=True)
    given = dict(tensors)
    for name, kept in metadata.items():
        if name in wanted and name not in given and kept in given:
            given[name] = given[kept]
    # A tied parameter has several names in the module, and may have been saved under any of them.
    for names in tied(wanted):
        known = [name for name in names if name in given]
        check_equal(module, known, given)
        given.update({name: given[known[0]] for name in names if known and name not in given})
    places = list(_places(module))
    missing = [name for name in wanted if name not in given]
    # Buffers on the meta device that are in no state dict: nothing would fill them.
    saved = {id(tensor) for tensor in wanted.values()}
    unfilled = [name for name, _, _, old in places if old.device.type == "meta" and id(old) not in saved]
    missing += unfilled
    unexpected = [name for name in given if name not in wanted]
    if strict and (missing or unexpected):
        remedy = "pass strict=False to leave these out"
        if unfilled:
            remedy = "for buffers that no checkpoint has, make the module under tensorcast.torch.parameters_on_meta()"
        raise RuntimeError(f"load {_called(module)}: missing {missing}, unexpected {unexpected}; {remedy}")
    taken = {name: given[name] for name in wanted if name in given}
    for name, new in taken.items():
        _check_shape(module, name, wanted[name], new)
    if assign:
        _assign(module, places, wanted, taken)
    else:
        _copy(module, places, wanted, taken)
    return missing, unexpected


def module_of(module: torch.nn.Module) -> torch.nn.Module:
    if not isinstance(module, torch.nn.Module):
        raise InvalidTypeError(f"module must be a torch.nn.Module, not {arguments.shown(module)}")
    return module


def remade(old: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """`data` with the class and the attributes of `old`. (Engines keep the loader of a parameter in an attribute.)"""
    requires_grad = old.requires_grad and (data.is_floating_point() or data.is_complex())
    if is_dtensor(data):
        new = torch.nn.Parameter(data, requires_grad=requires_grad) if isinstance(old, torch.nn.Parameter) else data
    else:
        new = torch.Tensor._make_subclass(type(old), data.detach(), requires_grad)
    new.__dict__.update({name: value for name, value in old.__dict__.items() if name not in new.__dict__})
    return new


def _assign(module: torch.nn.Module, places: Sequence[_Place], wanted: Mapping[str, torch.Tensor], taken: Mapping[str, torch.Tensor]) -> None:
    """Does what load_state_dict(assign=True) does, which only PyTorch 2.1 and later have. Tied parameters stay tied."""
    owned = {id(old) for _, _, _, old in places}
    new_of: dict[int, torch.Tensor] = {}
    written: list[tuple[torch.Tensor, torch.Tensor]] = []
    derived: dict[str, torch.Tensor] = {}
    for name, data in taken.items():
        old = wanted[name]
        if id(old) not in owned:
            derived[name] = data  # a hook of the module made `old`, and another hook loads it
        elif has_own_dispatch(old):
            raise RuntimeError(f"load {_called(module)}: {name} is of type {type(old).__name__}, which cannot be replaced by "
                               "the store's memory; load the module with assign=False")
        elif is_dtensor(old) and old.device.type != "meta":
            written.append((old, _placed_as(name, old, data)))  # FSDP2 and optimizers hold the parameter and its memory
        elif id(old) not in new_of:
            new_of[id(old)] = remade(old, _placed_as(name, old, data))
    with torch.no_grad():
        for old, data in written:
            old.copy_(data)
    for _, part, attribute, old in places:
        if id(old) in new_of:
            setattr(part, attribute, new_of[id(old)])  # not part._parameters[...]: an LSTM also has a list of them
    if derived:
        module.load_state_dict(derived, strict=False)


def _copy(module: torch.nn.Module, places: Sequence[_Place], wanted: Mapping[str, torch.Tensor], taken: Mapping[str, torch.Tensor]) -> None:
    on_meta = [name for name, _, _, old in places if old.device.type == "meta"]
    if on_meta:
        raise RuntimeError(f"load {_called(module)}: {on_meta} are on the meta device and cannot be written to; load with assign=True")
    module.load_state_dict({name: _placed_as(name, wanted[name], data) for name, data in taken.items()}, strict=False)


def _placed_as(name: str, old: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """This rank's part of `data`, as a DTensor with the mesh and placements of `old`."""
    if not is_dtensor(old):
        return data
    if any(place.is_partial() for place in old.placements):
        raise RuntimeError(f"load {name}: a DTensor with placements {old.placements} is a sum over ranks, and the store does not have its parts; "
                           "redistribute the DTensor first")
    from torch.distributed.tensor import distribute_tensor

    # No source rank: each rank has the whole tensor in its host's memory and takes its part from there.
    return distribute_tensor(data, old.device_mesh, old.placements, src_data_rank=None)


def has_own_dispatch(tensor: torch.Tensor) -> bool:
    """Whether the tensor's class defines its own operations, and with them the meaning of its memory (for example
    torchao's).
    """
    return not is_dtensor(tensor) and type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def _check_shape(module: torch.nn.Module, name: str, old: torch.Tensor, new: torch.Tensor) -> None:
    if not isinstance(old, torch.Tensor):
        return  # an extra state
    if torch.nn.parameter.is_lazy(old):
        raise RuntimeError(f"load {_called(module)}: {name} has no shape yet; run the module once before the load")
    if new.shape != old.shape:
        raise RuntimeError(f"load {_called(module)}: {name} has shape {tuple(old.shape)} in the module and {tuple(new.shape)} in the store; "
                           "make the module with the configuration of these weights")


def check_equal(module: torch.nn.Module, names: Sequence[str], tensors: Mapping[str, torch.Tensor]) -> None:
    for name in names[1:]:
        one, other = tensors[names[0]], tensors[name]
        if one is not other and (one.dtype != other.dtype or one.shape != other.shape or not torch.equal(_bytes(one), _bytes(other))):
            raise RuntimeError(f"load {_called(module)}: {names[0]} and {name} are one parameter in the module but differ in the store; "
                               "make a module without tied parameters")


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)  # compares bytes, so that a NaN equals itself


def _places(module: torch.nn.Module) -> Iterator[_Place]:
    for prefix, part in module.named_modules(remove_duplicate=False):
        for attribute, tensor in (*part._parameters.items(), *part._buffers.items()):
            if tensor is not None:
                yield f"{prefix}.{attribute}" if prefix else attribute, part, attribute, tensor


def tied(tensors: Mapping[str, torch.Tensor]) -> Iterator[list[str]]:
    """Groups the names of the same tensor: the same parameter object (the only test on the meta device), or the same
    memory.
    """
    names: dict[Hashable, list[str]] = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor):
            names.setdefault(identity(tensor) or id(tensor), []).append(name)
    return (same for same in names.values() if len(same) > 1)


def _called(module: torch.nn.Module) -> str:
    return type(module).__name__
