"""SGLang: `--load-format tensorcast`.

    python -m sglang.launch_server --model-path meta-llama/Llama-3-8B --load-format tensorcast \\
        --model-loader-extra-config '{"key": "llama/prod"}'
    python -m sglang.launch_server --model-path hf://meta-llama/Llama-3-8B --load-format tensorcast  # or s3://, gs://, tc://KEY

In the first form SGLang takes the model's configuration and tokenizer from its usual place. In the second form all come from
the store.

SGLang has no registry of load formats, but its loader accepts a class as a load format. A hook on SGLang's check of the
format replaces the name by the class of this package. Another hook replaces a model name of the second form by a folder.

Entry point (sglang.srt.plugins): `register`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

LOAD_FORMAT = "tensorcast"


def register() -> None:
    from sglang.srt.arg_groups.choices import add_load_format_choices
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    add_load_format_choices([LOAD_FORMAT])
    HookRegistry.register("sglang.srt.configs.load_config.LoadConfig._verify_load_format", choose_loader, HookType.AROUND)
    HookRegistry.register("sglang.srt.server_args.ServerArgs.resolve_once", locate_model, HookType.AROUND)


def choose_loader(verify: Callable[[Any], None], load_config: Any) -> None:
    if load_config.load_format != LOAD_FORMAT:
        return verify(load_config)
    from tensorcast.plugins.sglang_loader import TensorcastModelLoader

    load_config.load_format = TensorcastModelLoader


def locate_model(resolve: Callable[[Any], None], server_args: Any) -> None:
    """Replaces the model name before SGLang resolves its arguments, because SGLang would search for it on the Hugging Face
    hub and change the load format.
    """
    from tensorcast.plugins.located import locate
    from tensorcast.plugins.options import names_stored_model

    if server_args.load_format == LOAD_FORMAT and names_stored_model(server_args.model_path):
        extra = server_args.model_loader_extra_config or {}
        located = locate(server_args.model_path, json.loads(extra) if isinstance(extra, str) else extra)
        if server_args.tokenizer_path == server_args.model_path:
            server_args.tokenizer_path = located.folder
        server_args.served_model_name = server_args.served_model_name or located.served_name
        server_args.model_path, server_args.model_loader_extra_config = located.folder, json.dumps(located.extra)
    resolve(server_args)
