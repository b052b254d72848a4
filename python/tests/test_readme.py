"""Runs the Python examples of README.md and of pages in docs/, unchanged and in their order."""

import pathlib
import re

import pytest

torch = pytest.importorskip("torch")

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/python.md", "docs/engines.md", "docs/live-weights.md")


def examples_of(page):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)


EXAMPLES = [example for page in PAGES for example in examples_of(page)]
OF_TRANSFORMERS = [example for example in EXAMPLES if "import transformers" in example]


def run(example, folder, capsys):
    """Runs an example. Returns its output and the names that it defines."""
    names = {"__name__": "example"}
    example = example.replace("/tmp/tc/model.safetensors", str(folder / "model.safetensors")).replace("/models/llama", str(folder))
    exec(compile(example, "example.py", "exec"), names)
    return capsys.readouterr().out, names


def test_the_examples_run(store, tmp_path, capsys):
    import numpy as np
    import safetensors.numpy

    tensors = {"model.embed_tokens.weight": np.arange(32.0).reshape(8, 4), "model.layers.0.weight": np.ones(4), "lm_head.weight": np.ones(2)}
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    assert [len(examples_of(page)) for page in PAGES] == [1, 6, 1, 6] and len(OF_TRANSFORMERS) == 1
    printed = "".join(run(example, tmp_path, capsys)[0] for example in EXAMPLES if example not in OF_TRANSFORMERS)
    assert "model.embed_tokens.weight F64 (8, 4)" in printed and "['model.layers.0.weight']" in printed and "8 rows" in printed
    assert "differences 100" in printed and "weights [  0 100 200]" in printed
    import tensorcast.logging

    tensorcast.logging.uninstall()


def test_the_example_of_transformers_runs(store, tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4)
    saved = transformers.LlamaForCausalLM(config).eval()
    saved.save_pretrained(tmp_path)
    store.put(tmp_path, key="llama/prod")
    model = run(OF_TRANSFORMERS[0], tmp_path, capsys)[1]["model"].eval()
    tokens = torch.arange(8)[None]
    assert torch.equal(model(tokens).logits, saved(tokens).logits)
