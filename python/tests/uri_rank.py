"""An engine with "tc://KEY" or a URI as the name of its model, as a process: it starts, and loads the weights.

    uri_rank.py vllm|sglang MODEL

Waits for a line of input. Writes one line of JSON: the arguments that the engine starts with, its config.json, and the sum of
each tensor.
"""

import json
import pathlib
import sys
import types

import pytest
import test_plugins
import torch


def start_vllm(model, monkeypatch):
    loader = test_plugins.install_vllm(monkeypatch)
    arguments = sys.modules["vllm.engine.arg_utils"].EngineArgs()
    arguments.model = arguments.tokenizer = model
    arguments.served_model_name = None
    arguments.load_format, arguments.model_loader_extra_config = "tensorcast", {}
    started = arguments.create_engine_config()
    made = loader(test_plugins.config(**started["model_loader_extra_config"]))
    weights = made.get_all_weights(types.SimpleNamespace(model=started["model"]), torch.nn.Module())
    return started, {name: float(tensor.sum()) for name, tensor in weights}


def start_sglang(model, monkeypatch):
    choose = test_plugins.install_sglang(monkeypatch)
    arguments = sys.modules["sglang.srt.server_args"].ServerArgs()
    arguments.model_path, arguments.tokenizer_path, arguments.served_model_name = model, None, None
    arguments.load_format, arguments.model_loader_extra_config = "tensorcast", "{}"
    arguments.resolve_once()
    arguments.resolve_once()  # as each launcher may
    started = arguments.resolved
    load_config = test_plugins.config(**json.loads(started["model_loader_extra_config"]))
    weights = choose(load_config)(load_config)._weights(types.SimpleNamespace(model_path=started["model_path"]))
    return {**started, "model": started["model_path"]}, {name: float(tensor.sum()) for name, tensor in weights}


def main():
    engine, model = sys.argv[1:]
    sys.stdin.readline()
    with pytest.MonkeyPatch.context() as monkeypatch:
        started, sums = {"vllm": start_vllm, "sglang": start_sglang}[engine](model, monkeypatch)
    config = json.loads((pathlib.Path(started["model"]) / "config.json").read_text())
    print(json.dumps({"started": {name: value for name, value in started.items() if name != "resolved"}, "config": config,
                      "sums": sums}))


if __name__ == "__main__":
    main()
