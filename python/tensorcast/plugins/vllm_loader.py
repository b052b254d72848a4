"""The model loader for vLLM. Written against vLLM 0.33 (python/interfaces/vllm.json)."""

from __future__ import annotations

import copy
import dataclasses
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from tensorcast.plugins.options import LoaderOptions

if TYPE_CHECKING:
    import torch
    from vllm.config import ModelConfig
    from vllm.config.load import LoadConfig

    from tensorcast.weights import Weights


# The name of each model at its first load, because `reload_weights(weights_path=...)` makes a new loader with the same
# options and replaces the name by the path.
_first_name: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()

# The artifact id of each model's last load by this loader.
loaded_version: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()


def checkpoint_of(model: torch.nn.Module, weights: Weights) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors for the model's `load_weights`, in the store's memory."""
    is_unused = getattr(model, "is_unused_checkpoint_weight", None)
    for name, array in weights.items():
        if is_unused is None or not is_unused(name):
            yield name, array.torch()


class TensorcastModelLoader(DefaultModelLoader):
    """vLLM's default loader, but with the main weights from the store.

    It checks a loaded model as the default loader does. Secondary weights (of a model in parts) come from the model's usual
    place.
    """

    def __init__(self, load_config: LoadConfig) -> None:
        self._options = LoaderOptions.parse(load_config.model_loader_extra_config)
        without_options = copy.copy(load_config)
        without_options.model_loader_extra_config = {}
        super().__init__(without_options)

    def download_model(self, model_config: ModelConfig) -> None:
        self._options.fetch(model_config.model)

    def get_all_weights(self, model_config: ModelConfig, model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        options = self._options
        if _first_name.setdefault(model, model_config.model) != model_config.model:
            options = dataclasses.replace(options, key=None)  # the given path overrides the option
        weights = options.get(model_config.model)
        yield from checkpoint_of(model, weights)
        for source in getattr(model, "secondary_weights", ()):
            yield from self._get_weights_iterator(source)
        loaded_version[model] = weights.artifact_id
