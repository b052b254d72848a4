"""Updates a model in vLLM by only the changed elements, if such a patch has the same result as a load of the whole version.

vLLM writes a patch through the model's own loaders, with NaN in place of the elements that do not change. For some models
the result is wrong without an error: for a loader that computes (`composed_weight_loader`), and for a layer that keeps a
second form of its weights (MLA). So each patch is tested here: after the first patch of a tensor the whole version is
loaded. If both leave the same bytes, later versions are only patched.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from vllm.model_executor.model_loader.checkpoint_weight_patch import CheckpointWeightPatch, load_checkpoint_weight_patches
from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check

from tensorcast import arrays, calls, changes

if TYPE_CHECKING:
    from tensorcast.store import Store
    from tensorcast.weights import Weights

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
_HASHED_AT_ONCE = 1 << 22  # elements; a hash takes 16 bytes for each
_FULL_BYTES_AT_ONCE = 512 << 20  # of patched tensors: vLLM makes a whole tensor for each, with NaN

_log = logging.getLogger(__name__)


def patchable(model_config: Any, device: torch.device) -> bool:
    """Whether to try patches. A patch cannot change weights that vLLM packs: on the CPU, or quantized ones."""
    return device.type != "cpu" and model_config.quantization is None


class Patches:
    """Updates one model. Not thread-safe.

    A patch needs a model that holds the previous version. Other code may have written to the model (`reload_weights`, a
    wake-up from sleep level 2), so its parameters are compared with a hash that was taken after the last update.
    """

    def __init__(self, model: torch.nn.Module, device: torch.device, allowed: bool) -> None:
        self._model = model
        self._device = device
        self._allowed = allowed
        self._proven: set[str] = set()  # tensors of the checkpoint for which a patch has the result of a load
        self._held: tuple[str, dict[str, int]] | None = None  # artifact id, and the hash of each parameter

    def holds(self, artifact_id: str) -> None:
        """Records that the model holds exactly this version."""
        if self._allowed:
            self._held = artifact_id, hashes(self._model.named_parameters())

    def update(self, store: Store, weights: Weights, load: Callable[[], None], timeout: float | None) -> str:
        """Updates the model to the version, by a patch or by load(). Returns a text for the log: how it was updated."""
        held, self._held = self._held, None  # after an error the model may hold a mixture of versions
        names = self._patch(store, weights, held, timeout)
        if names is None:
            load()
            how = "whole"
        elif names <= self._proven:
            how = f"by elements of {len(names)} tensors"
        else:
            patched = hashes(_all_tensors(self._model))
            load()
            self._allowed = patched == hashes(_all_tensors(self._model))
            self._proven |= names
            how = f"whole; patches {'have the same result' if self._allowed else 'have another result, so no patch will be used'}"
        self.holds(weights.artifact_id)
        return how

    def _patch(self, store: Store, weights: Weights, held: tuple[str, dict[str, int]] | None, timeout: float | None) -> set[str] | None:
        """Patches the changed tensors, and returns their names. None: the whole version must be loaded."""
        if not self._allowed or held is None or held[1] != hashes(self._model.named_parameters()):
            return None
        names: set[str] = set()
        try:
            found = calls.run(changes.find(store, weights, [held[0]], store.options(timeout)))[0]
            if found.source == "whole":
                return None
            with disable_mtp_completeness_check():
                for patches in _batches(changes.Changes(weights, found), weights, self._device):
                    load_checkpoint_weight_patches(self._model, patches, validate_unique_indices=False)
                    names.update(patch.name for patch in patches)
        except Exception as error:  # any loader may raise; load() then overwrites everything
            self._allowed = not isinstance(error, (NotImplementedError, TypeError))  # the loader takes no patch
            _log.warning("update %s: a patch failed (%s); the engine loads the version whole instead", type(self._model).__name__, str(error))
            return None
        return names


def hashes(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, int]:
    """A hash of each tensor's elements and their order, computed on the tensor's device."""
    found = {}
    for name, tensor in tensors:
        if tensor.is_meta:
            continue
        total = torch.zeros((), dtype=torch.int64, device=tensor.device)
        for piece in tensor.detach().reshape(-1).view(_INTEGERS.get(tensor.element_size(), torch.int64)).split(_HASHED_AT_ONCE):
            total = total * 31 + (piece.to(torch.int64) * _factors(tensor.device)[: len(piece)]).sum()
        found[name] = int(total)
    return found


@functools.cache
def _factors(device: torch.device) -> torch.Tensor:
    """Odd 64-bit factors, one for each index in a piece."""
    return torch.arange(_HASHED_AT_ONCE, dtype=torch.int64, device=device) * -0x61C8864680B583EB | 1


def _all_tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters, buffers, and other tensors of layers and their helpers (an attention's `impl`), but not the KV cache."""
    for prefix, module in model.named_modules():
        for name, value in {**vars(module), **module._buffers, **module._parameters}.items():
            if isinstance(value, torch.Tensor):
                if name != "kv_cache":
                    yield f"{prefix}.{name}", value
            elif not isinstance(value, torch.nn.Module):
                for inner, tensor in getattr(value, "__dict__", {}).items():
                    if isinstance(tensor, torch.Tensor) and inner != "kv_cache":
                        yield f"{prefix}.{name}.{inner}", tensor


def _batches(found: changes.Changes, weights: Weights, device: torch.device) -> Iterator[list[CheckpointWeightPatch]]:
    batch: list[CheckpointWeightPatch] = []
    full_bytes = 0
    for name, indices, values in found:
        array = weights[name]
        flat = values.torch().reshape(-1).to(device)
        # A tensor that is given whole becomes a patch of all its elements, because vLLM takes no mixture of patches and
        # whole tensors.
        places = torch.arange(flat.numel(), device=device) if indices is None else indices.torch().to(device)
        batch.append(CheckpointWeightPatch(name, arrays.torch_shape(array), flat.dtype, flat, places))
        full_bytes += array.nbytes
        if full_bytes >= _FULL_BYTES_AT_ONCE:
            yield batch
            batch, full_bytes = [], 0
    if batch:
        yield batch
