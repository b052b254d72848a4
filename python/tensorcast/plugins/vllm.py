"""vLLM: `--load-format tensorcast`.

    vllm serve meta-llama/Llama-3-8B --load-format tensorcast --model-loader-extra-config '{"key": "llama/prod"}'

The model's configuration and tokenizer come from where vLLM takes them; the weights from the store. All ranks on a host
map one replica in host memory, and each copies its slices of it to its GPU.

Entry point (vllm.general_plugins): `register`. It may be called more than once in a process.
"""

from __future__ import annotations


def register() -> None:
    from vllm.model_executor.model_loader import register_model_loader

    from tensorcast.plugins.vllm_loader import TensorcastModelLoader

    register_model_loader("tensorcast")(TensorcastModelLoader)
