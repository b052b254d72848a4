"""The model loader for SGLang. Written against SGLang 0.5.23 (python/interfaces/sglang.json)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from sglang.srt.model_loader.loader import (
    BaseModelLoader,
    DefaultModelLoader,
    _get_quantization_config,
    _initialize_model,
)
from sglang.srt.model_loader.utils import set_default_torch_dtype

from tensorcast.plugins.options import LoaderOptions

if TYPE_CHECKING:
    from sglang.srt.configs.device_config import DeviceConfig
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.configs.model_config import ModelConfig


class TensorcastModelLoader(BaseModelLoader):
    """Loads a model's weights from the store."""

    def __init__(self, load_config: LoadConfig) -> None:
        super().__init__(load_config)
        self._options = LoaderOptions.parse(load_config.model_loader_extra_config)

    def download_model(self, model_config: ModelConfig) -> None:
        self._options.fetch(model_config.model_path)

    def load_model(self, *, model_config: ModelConfig, device_config: DeviceConfig) -> torch.nn.Module:
        device = torch.device(device_config.device)
        quantization = _get_quantization_config(model_config, self.load_config)
        with set_default_torch_dtype(model_config.dtype):
            with device:
                model = _initialize_model(model_config, self.load_config, quantization)
            if getattr(model, "secondary_weights", ()):
                raise ValueError("load format tensorcast cannot load a model that has secondary weights; use another load format")
            DefaultModelLoader.load_weights_and_postprocess(model, self._weights(model_config), device)
        return model.eval()

    def _weights(self, model_config: ModelConfig) -> Iterator[tuple[str, torch.Tensor]]:
        for name, array in self._options.get(model_config.model_path).items():
            yield name, array.torch()
