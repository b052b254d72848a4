"""vLLM: `--load-format tensorcast`.

    vllm serve meta-llama/Llama-3-8B --load-format tensorcast --model-loader-extra-config '{"key": "llama/prod"}'
    vllm serve hf://meta-llama/Llama-3-8B --load-format tensorcast     # or s3://bucket/prefix, gs://..., tc://KEY

In the first form vLLM takes the model's configuration and tokenizer from its usual place, and the weights from the store.
In the second form all come from the store. All ranks on a host map the same replica in host memory, and each rank copies
its slices to its GPU.

New weights for a running engine: `--weight-transfer-config '{"backend": "tensorcast"}'` (vllm_weight_transfer.py).

Entry point (vllm.general_plugins): `register`. A process may call it more than once.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

LOAD_FORMAT = "tensorcast"
WEIGHT_TRANSFER_BACKEND = "tensorcast"


def register() -> None:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader import register_model_loader

    from tensorcast.plugins.vllm_loader import TensorcastModelLoader

    register_model_loader(LOAD_FORMAT)(TensorcastModelLoader)
    _take_stored_models(EngineArgs)
    with contextlib.suppress(ImportError):  # an earlier vLLM, which has loaders but no weight transfer
        register_weight_transfer()


def register_weight_transfer() -> None:
    """Registers the engine's and the trainer's side by name. vLLM imports them at the first use."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory

    sides = {WeightTransferEngineFactory: "TensorcastWeightTransferEngine",
             WeightTransferTrainerFactory: "TensorcastTrainerWeightTransferEngine"}
    for factory, name in sides.items():
        with contextlib.suppress(ValueError):  # registered already
            factory.register_engine(WEIGHT_TRANSFER_BACKEND, "tensorcast.plugins.vllm_weight_transfer", name)


def _take_stored_models(engine_args: Any) -> None:
    """Lets the engine's arguments name a model of the store, because vLLM would search for it on the hub or on the disk."""
    create = engine_args.create_engine_config
    if hasattr(create, "takes_stored_models"):
        return

    @functools.wraps(create)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        from tensorcast.plugins.located import locate
        from tensorcast.plugins.options import names_stored_model

        if self.load_format == LOAD_FORMAT and names_stored_model(self.model):
            located = locate(self.model, self.model_loader_extra_config)
            if self.tokenizer == self.model:
                self.tokenizer = located.folder
            self.served_model_name = self.served_model_name or located.served_name
            self.model, self.model_loader_extra_config = located.folder, located.extra
        return create(self, *args, **kwargs)

    create_engine_config.takes_stored_models = True  # type: ignore[attr-defined]
    engine_args.create_engine_config = create_engine_config
