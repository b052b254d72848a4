"""A rank of an engine, as a process. It loads its rows with the engine's loader, and reports its use of the store's memory.

    rank.py vllm|sglang KEY RANK --rows N --columns N

Writes one line of JSON while it holds the weights: the sums of smaps over the mappings of the tensors, in KiB. Then it waits
for a line of input.
"""

import argparse
import json
import sys
import types

import pytest
import test_plugins
import torch


def memory_at(tensor):
    """The sums of smaps over the mappings that contain the tensor."""
    first, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nelement() * tensor.element_size()
    sums = {"Rss": 0, "Private_Dirty": 0}
    inside = False
    with open("/proc/self/smaps") as smaps:
        for line in smaps:
            words = line.split()
            if not words[0].endswith(":"):
                begin, past = (int(word, 16) for word in words[0].split("-"))
                inside = begin < end and first < past
            elif inside and words[0][:-1] in sums:
                sums[words[0][:-1]] += int(words[1])
    return sums


class Rank(test_plugins.Half):
    def load_weights(self, weights):
        held = []
        loaded = super().load_weights(held.append(weight) or weight for weight in weights)
        print(json.dumps(memory_at(dict(held)["layer.weight"])), flush=True)
        sys.stdin.readline()
        return loaded


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("engine", choices=["vllm", "sglang"])
    parser.add_argument("key")
    parser.add_argument("rank", type=int)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--columns", type=int)
    arguments = parser.parse_args()
    model = Rank(arguments.rank, arguments.rows, arguments.columns)
    load_config = test_plugins.config(key=arguments.key)
    with pytest.MonkeyPatch.context() as monkeypatch:
        if arguments.engine == "vllm":
            loader = test_plugins.install_vllm(monkeypatch)
            loader(load_config).load_weights(model, types.SimpleNamespace(model="meta/llama"))
        else:
            model_config = types.SimpleNamespace(model_path="meta/llama", dtype=torch.float32, make=lambda: model)
            loader = test_plugins.install_sglang(monkeypatch)(load_config)
            test_plugins.load_with_sglang(loader, load_config, model_config, monkeypatch)
    assert bool((model.layer.weight == 1).all())


if __name__ == "__main__":
    main()
