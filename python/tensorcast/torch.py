"""Loads PyTorch modules from the store and puts them into it.

    with tensorcast.torch.parameters_on_meta():              # the parameters take no memory
        model = Llama(config)
    tensorcast.torch.load_model(model, "llama/prod")        # no copy: the parameters are the store's memory

Tensors on the CPU are copy-on-write. A write to a parameter (for example in training) takes memory for the pages that it
touches, and no other process sees it.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import torch

import tensorcast
from tensorcast import arguments, default_store
from tensorcast.changes import Written
from tensorcast.dense import dense, identity, is_dtensor
from tensorcast.errors import InvalidTypeError
from tensorcast.modules import fill_module, has_own_dispatch, module_of, remade
from tensorcast.updates import update


def state_dict(key: str, *, device: str | torch.device = "cpu", store: tensorcast.Store | None = None) -> dict[str, torch.Tensor]:
    """Returns the tensors of a key or artifact id for `Module.load_state_dict`, without a copy.

    `device` is "cpu", or "cuda:N" for a GPU of this host. All processes that attach share the tensors on a GPU: do not
    write to them. The result also has the names that `save_model` did not store because another name has the same memory.
    """
    weights = _store(store).get(key, device=_location(device))
    return _with_aliases(weights.torch(), weights.metadata)


def save_state_dict(
    tensors: Mapping[str, torch.Tensor], key: str, *, metadata: Mapping[str, str] | None = None, store: tensorcast.Store | None = None
) -> None:
    """Puts a state dict under a key. If several names have the same memory, only one of them is stored.

    A DTensor (FSDP2, tensor parallelism) must be whole on this rank; if not, raises InvalidArgumentError. To put a sharded
    model, gather it with torch.distributed.checkpoint.state_dict.get_model_state_dict and full_state_dict, then put it on
    one rank.
    """
    arguments.text("key", key)
    if not isinstance(tensors, Mapping):
        raise InvalidTypeError(f"tensors must be a mapping of names to tensors, not {arguments.shown(tensors)}")
    kept: dict[str, torch.Tensor] = {}
    notes = dict(metadata or {})
    seen: dict[Hashable, str] = {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise InvalidTypeError(f'tensor "{name}" must be a torch.Tensor, not {arguments.shown(tensor)}')
        tensor = dense(name, tensor)
        same = identity(tensor)
        if same is not None and seen.setdefault(same, name) != name:
            notes.setdefault(name, seen[same])
        else:
            kept[name] = tensor
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
    """Fills the module's parameters and buffers. Returns the missing names and the unexpected names.

    assign: the parameters become the store's memory, with the store's dtype, and nothing is copied. False: the values are
        copied into the module's own tensors.
    strict: raise RuntimeError for a missing or unexpected name, and leave the module unchanged.

    A parameter keeps its class and its attributes. A DTensor (FSDP2, tensor parallelism; since PyTorch 2.7) keeps its
    placements: each rank takes its part of the store's tensor without communication, and writes it into the parameter's
    memory. A tensor that stays on the meta device counts as missing, even a buffer that is in no state dict. To avoid that,
    make the module under `parameters_on_meta()`, which computes buffers as usual.
    """
    weights = _store(store).get(key, device=_location(device))
    return fill_module(module, weights.torch(), weights.metadata, strict=strict, assign=assign)


def update_module(
    module: torch.nn.Module,
    key: str,
    *,
    from_: Any = None,
    strict: bool = True,
    verify: bool = False,
    timeout: float | None = None,
    store: tensorcast.Store | None = None,
) -> Written:
    """Updates a module's own tensors in place from one version to another. The result describes the write.

    key: the key or artifact id of the version to write.
    from_: the version that the module holds: an artifact id, or a value with an artifact_id (Written, Put, Version,
        Weights). If the store has the differences from that version, only the changed elements are written. None:
        everything is written.
    strict: as in load_model.
    verify: after the write, compare the module's bytes with the digests of the version, and raise DataLossError with the
        names of the parameters that differ. The call after that error writes everything.

    The tensors keep their addresses, dtypes and shapes; dtypes and shapes must equal those of the store. After an error, or
    after a process that shares the module's memory was killed, repeat the call to finish the update. A partial write does
    no harm: a difference tells only which elements changed, and the values always come from the verified version.
    """
    return update(module_of(module), _store(store), key, from_, strict=strict, verify=verify, timeout=timeout)


@contextlib.contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Within this context, puts the parameters of modules that this thread makes on the meta device, without memory.

    After that, load_model fills the parameters. Buffers are computed as usual, because many are in no checkpoint
    (positions, rotary frequencies). Needs PyTorch 2.0 or later.
    """
    thread = threading.get_ident()
    moved: dict[int, tuple[weakref.ref[torch.nn.Parameter], torch.nn.Parameter]] = {}

    def move(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> torch.nn.Parameter | None:
        if threading.get_ident() != thread or parameter is None or parameter.device.type == "meta":
            return None  # unchanged
        if torch.nn.parameter.is_lazy(parameter) or has_own_dispatch(parameter) or is_dtensor(parameter):
            return None
        known = moved.get(id(parameter))
        if known is None or known[0]() is not parameter:
            placed = remade(parameter, torch.empty_like(parameter, device="meta"))
            known = moved[id(parameter)] = (weakref.ref(parameter), placed)
        return known[1]  # a parameter that two modules share stays one parameter

    hook = torch.nn.modules.module.register_module_parameter_registration_hook(move)
    try:
        yield
    finally:
        hook.remove()


def save_model(module: torch.nn.Module, key: str, *, metadata: Mapping[str, str] | None = None, store: tensorcast.Store | None = None) -> None:
    """Puts the module's state dict under a key. Tied parameters are stored once."""
    save_state_dict(module_of(module).state_dict(), key, metadata=metadata, store=store)


def _with_aliases(tensors: dict[str, torch.Tensor], metadata: Mapping[str, str]) -> dict[str, torch.Tensor]:
    aliases = {name: tensors[kept] for name, kept in metadata.items() if kept in tensors and name not in tensors}
    return {**tensors, **aliases}


def _location(device: str | torch.device) -> str:
    name = str(device) if isinstance(device, torch.device) else arguments.text("device", device)
    kind, _, index = name.partition(":")
    return f"gpu:{index or torch.cuda.current_device()}" if kind == "cuda" else name


def _store(store: tensorcast.Store | None) -> tensorcast.Store:
    return store if store is not None else default_store.connect()
