"""vLLM: `--load-format tensorcast`.

    vllm serve meta-llama/Llama-3-8B --load-format tensorcast --model-loader-extra-config '{"key": "llama/prod"}'

vLLM takes the model's configuration and tokenizer from its usual place, and the weights from the store. All ranks on a host
map one replica in host memory, and each rank copies its slices to its GPU.

Entry point (vllm.general_plugins): `register`. A process may call it more than once.
"""

from __future__ import annotations


def register() -> None:
    from vllm.model_executor.model_loader import register_model_loader

    from tensorcast.plugins.vllm_loader import TensorcastModelLoader

    register_model_loader("tensorcast")(TensorcastModelLoader)
