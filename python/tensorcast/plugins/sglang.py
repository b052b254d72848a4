"""SGLang: `--load-format tensorcast`.

    python -m sglang.launch_server --model-path meta-llama/Llama-3-8B --load-format tensorcast \\
        --model-loader-extra-config '{"key": "llama/prod"}'

SGLang has no registry of load formats, but its loader accepts a class as a load format. A hook on the check of the format
replaces the name by the class of this package.

Entry point (sglang.srt.plugins): `register`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

LOAD_FORMAT = "tensorcast"


def register() -> None:
    from sglang.srt.arg_groups.choices import add_load_format_choices
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    add_load_format_choices([LOAD_FORMAT])
    HookRegistry.register("sglang.srt.configs.load_config.LoadConfig._verify_load_format", choose_loader, HookType.AROUND)


def choose_loader(verify: Callable[[Any], None], load_config: Any) -> None:
    if load_config.load_format != LOAD_FORMAT:
        return verify(load_config)
    from tensorcast.plugins.sglang_loader import TensorcastModelLoader

    load_config.load_format = TensorcastModelLoader
