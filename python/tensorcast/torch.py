"""Modules of PyTorch, filled from the store and put into it.

    with tensorcast.torch.parameters_on_meta():              # the parameters take no memory
        model = Llama(config)
    tensorcast.torch.load_model(model, "llama/prod")        # no copy: the parameters are the store's memory

Whatever is loaded to the CPU is private to the process: a write to a parameter (training it, say) costs the pages that
it touches and reaches nobody else.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Hashable, Iterator, Mapping

import torch

import tensorcast
from tensorcast import arguments, default_store
from tensorcast.dense import dense, identity, is_dtensor
from tensorcast.errors import InvalidTypeError
from tensorcast.modules import fill_module, has_own_dispatch, module_of, remade


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
    """Puts a state dict under a key. Of several names for the same memory one is stored.

    Of DTensors (FSDP2, tensor parallelism) those that are whole on this rank; others are refused. To put a sharded model,
    gather it: torch.distributed.checkpoint.state_dict.get_model_state_dict with full_state_dict, then put it on one rank.
    """
    arguments.text("key", key)
    if not isinstance(tensors, Mapping):
        raise InvalidTypeError(f"tensors is a mapping of names to tensors, not {arguments.shown(tensors)}")
    kept: dict[str, torch.Tensor] = {}
    notes = dict(metadata or {})
    seen: dict[Hashable, str] = {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise InvalidTypeError(f'tensor "{name}" is a torch.Tensor, not {arguments.shown(tensor)}')
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
    """Fills the module's parameters and buffers, and gives the names that were missing and those nothing took.

    With `assign` they become the store's memory itself, of the dtype that it has there, and nothing is copied;
    without, the module's own tensors are written. With `strict` a name of either list is a RuntimeError, and the module
    stays as it was.

    A parameter keeps its class and its attributes. A DTensor (FSDP2, tensor parallelism; since PyTorch 2.7) keeps its
    placements: each rank takes its part of the store's tensor, without communication, and writes it into the memory that
    the parameter has. What stays on the meta device is missing, also a buffer that no state dict has: make the module
    under `parameters_on_meta()`, which leaves buffers their values.
    """
    weights = _store(store).get(key, device=_location(device))
    return fill_module(module, weights.torch(), weights.metadata, strict=strict, assign=assign)


@contextlib.contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Parameters that this thread's new modules register are on the meta device, and take no memory, until load_model
    fills them. Buffers are computed as ever: many are in no checkpoint (positions, rotary frequencies). PyTorch 2.0 or later.
    """
    thread = threading.get_ident()
    moved: dict[int, tuple[weakref.ref[torch.nn.Parameter], torch.nn.Parameter]] = {}

    def move(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> torch.nn.Parameter | None:
        if threading.get_ident() != thread or parameter is None or parameter.device.type == "meta":
            return None  # as it is
        if torch.nn.parameter.is_lazy(parameter) or has_own_dispatch(parameter) or is_dtensor(parameter):
            return None
        known = moved.get(id(parameter))
        if known is None or known[0]() is not parameter:
            placed = remade(parameter, torch.empty_like(parameter, device="meta"))
            known = moved[id(parameter)] = (weakref.ref(parameter), placed)
        return known[1]  # one parameter that two modules register stays one

    hook = torch.nn.modules.module.register_module_parameter_registration_hook(move)
    try:
        yield
    finally:
        hook.remove()


def save_model(module: torch.nn.Module, key: str, *, metadata: Mapping[str, str] | None = None, store: tensorcast.Store | None = None) -> None:
    """Puts the module's state dict under a key; tied parameters once."""
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
