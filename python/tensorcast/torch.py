"""Modules of PyTorch, filled from the store and put into it.

    with torch.device("meta"):
        model = Llama(config)
    tensorcast.torch.load_model(model, "llama/prod")        # no copy: the parameters are the store's memory

Whatever is loaded to the CPU is private to the process: a write to a parameter (training it, say) costs the pages that
it touches and reaches nobody else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

import tensorcast
from tensorcast import arguments, default_store
from tensorcast.errors import InvalidTypeError


def state_dict(key: str, *, device: str | torch.device = "cpu", store: tensorcast.Store | None = None) -> dict[str, torch.Tensor]:
    """The tensors of a key or artifact id, as `Module.load_state_dict` takes them; no copy.

    `device` is "cpu", or "cuda:N" for tensors in the memory of a GPU of this host, which all who attach share: they
    must not be written to. Names that `save_model` left out, since another has the same memory, are there again.
    """
    weights = _store(store).get(key, device=_location(device))
    return _with_aliases(weights.torch(), weights.metadata)


def save_state_dict(
    tensors: Mapping[str, torch.Tensor], key: str, *, metadata: Mapping[str, str] | None = None, store: tensorcast.Store | None = None
) -> None:
    """Puts a state dict under a key. Of several names for the same memory one is stored."""
    arguments.text("key", key)
    if not isinstance(tensors, Mapping):
        raise InvalidTypeError(f"tensors is a mapping of names to tensors, not {arguments.shown(tensors)}")
    kept: dict[str, torch.Tensor] = {}
    notes = dict(metadata or {})
    seen: dict[Any, str] = {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise InvalidTypeError(f'tensor "{name}" is a torch.Tensor, not {arguments.shown(tensor)}')
        tensor = tensor.detach()
        if tensor.layout != torch.strided or tensor.is_nested or tensor.device.type == "meta":
            kept[name] = tensor  # the put says what is wrong with it
            continue
        same = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg())
        if tensor.numel() and same in seen:
            notes.setdefault(name, seen[same])
            continue
        seen[same] = name
        kept[name] = tensor.contiguous()
    _store(store).put(kept, key=key, metadata=notes)


def load_model(
    module: torch.nn.Module,
    key: str,
    *,
    assign: bool = True,
    strict: bool = True,
    device: str | torch.device = "cpu",
    store: tensorcast.Store | None = None,
) -> tuple[list[str], list[str]]:
    """Fills the module's parameters and buffers, and gives the names that were missing and those nothing took.

    With `assign` they become the store's memory itself, of the dtype that it has there, and nothing is copied;
    without, the module's own tensors are written. With `strict` a name of either list is a RuntimeError.
    """
    weights = _store(store).get(key, device=_location(device))
    return fill_module(module, weights.torch(), weights.metadata, strict=strict, assign=assign)


def save_model(module: torch.nn.Module, key: str, *, metadata: Mapping[str, str] | None = None, store: tensorcast.Store | None = None) -> None:
    """Puts the module's state dict under a key; tied parameters once."""
    save_state_dict(_module(module).state_dict(), key, metadata=metadata, store=store)


def fill_module(
    module: torch.nn.Module, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str], *, strict: bool, assign: bool
) -> tuple[list[str], list[str]]:
    """load_model, of tensors that are there."""
    wanted = _module(module).state_dict()
    given = dict(tensors)
    for name, kept in metadata.items():
        if name in wanted and name not in given and kept in given:
            given[name] = given[kept]
    # A tied parameter has several names in the module, and may have had another one where it was saved.
    for names in _tied(wanted):
        known = next((name for name in names if name in given), None)
        if known is not None:
            given.update({name: given[known] for name in names if name not in given})
    missing = [name for name in wanted if name not in given]
    unexpected = [name for name in given if name not in wanted]
    if strict and (missing or unexpected):
        raise RuntimeError(f"{module.__class__.__name__}: missing {missing}, unexpected {unexpected}")
    for name in unexpected:
        del given[name]
    if assign:
        _assign(module, given)
    else:
        module.load_state_dict(given, strict=False)
    return missing, unexpected


def _tied(tensors: Mapping[str, torch.Tensor]) -> Iterator[list[str]]:
    names: dict[Any, list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.device.type != "meta" and tensor.numel():
            names.setdefault((tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride()), []).append(name)
    return (same for same in names.values() if len(same) > 1)


def _assign(module: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """load_state_dict(assign=True), which PyTorch has since 2.1. Parameters that were one stay one."""
    made: dict[int, torch.nn.Parameter] = {}
    for prefix, part in module.named_modules(remove_duplicate=False):
        for owned, is_parameter in ((part._parameters, True), (part._buffers, False)):
            for name, old in owned.items():
                full = f"{prefix}.{name}" if prefix else name
                if old is None or full not in tensors:
                    continue
                new = tensors[full]
                if new.shape != old.shape:
                    raise RuntimeError(f"{full}: the module has {tuple(old.shape)}, the store {tuple(new.shape)}")
                if is_parameter:
                    if id(old) not in made:
                        made[id(old)] = torch.nn.Parameter(new, requires_grad=old.requires_grad and new.is_floating_point())
                    new = made[id(old)]
                owned[name] = new


def _with_aliases(tensors: dict[str, torch.Tensor], metadata: Mapping[str, str]) -> dict[str, torch.Tensor]:
    aliases = {name: tensors[kept] for name, kept in metadata.items() if kept in tensors and name not in tensors}
    return {**tensors, **aliases}


def _module(module: torch.nn.Module) -> torch.nn.Module:
    if not isinstance(module, torch.nn.Module):
        raise InvalidTypeError(f"module is a torch.nn.Module, not {arguments.shown(module)}")
    return module


def _location(device: str | torch.device) -> str:
    name = str(device) if isinstance(device, torch.device) else arguments.text("device", device)
    kind, _, index = name.partition(":")
    return f"gpu:{index or torch.cuda.current_device()}" if kind == "cuda" else name


def _store(store: tensorcast.Store | None) -> tensorcast.Store:
    return store if store is not None else default_store.connect()
