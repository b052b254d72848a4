"""The examples of the top README's page for Python users run, in their order, as they stand there."""

import pathlib
import re

import numpy as np
import pytest
import safetensors.numpy

pytest.importorskip("torch")

README = pathlib.Path(__file__).resolve().parents[2] / "README.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", README.read_text(), flags=re.MULTILINE | re.DOTALL)
TENSORS = {"model.embed_tokens.weight": np.arange(32.0).reshape(8, 4), "model.layers.0.weight": np.ones(4), "lm_head.weight": np.ones(2)}


def test_the_examples_run(store, tmp_path, capsys):
    assert len(EXAMPLES) == 4
    safetensors.numpy.save_file(TENSORS, tmp_path / "model.safetensors")
    printed = ""
    for example in EXAMPLES:
        exec(compile(example.replace("/models/llama", str(tmp_path)), "README.md", "exec"), {"__name__": "example"})
        printed += capsys.readouterr().out
    assert "model.embed_tokens.weight F64 (8, 4)" in printed and "['model.layers.0.weight']" in printed
    import tensorcast.logging

    tensorcast.logging.uninstall()
