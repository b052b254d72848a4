"""Models of transformers, loaded from the store. `make check-engines` runs these tests with the newest transformers."""

import subprocess

import pytest
from cluster import BINARY

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import tensorcast.torch  # noqa: E402

SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
TOKENS = torch.arange(8)[None]


def llama_config():
    return transformers.LlamaConfig(**SIZES, num_key_value_heads=2, tie_word_embeddings=True)


def put(config, key, model_class):
    model = model_class.from_config(config).eval()
    tensorcast.torch.save_model(model, key)
    return model


def embeddings(model):
    with torch.no_grad():
        return model.eval()(TOKENS)[0]


def test_tied_llama_on_meta_is_filled(store):
    reference = put(llama_config(), "transformers/llama", transformers.AutoModelForCausalLM)
    assert "lm_head.weight" not in store.get("transformers/llama")
    with tensorcast.torch.parameters_on_meta():
        model = transformers.AutoModelForCausalLM.from_config(llama_config())
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert tensorcast.torch.load_model(model, "transformers/llama") == ([], [])
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.equal(embeddings(model), embeddings(reference))


def test_from_pretrained_loads_a_folder_of_another_node(cluster, store, tmp_path):
    model = transformers.AutoModelForCausalLM.from_config(llama_config()).eval()
    model.save_pretrained(tmp_path / "in")
    store.put(tmp_path / "in", key="transformers/folder")
    out = tmp_path / "out"
    subprocess.run([BINARY, "get", "transformers/folder", "--out", out, "--daemon", cluster.address("b")], check=True)
    assert (out / "config.json").read_bytes() == (tmp_path / "in" / "config.json").read_bytes()
    assert torch.equal(embeddings(transformers.AutoModelForCausalLM.from_pretrained(out)), embeddings(model))


@pytest.mark.parametrize("config, key", [
    (transformers.BertConfig(**SIZES), "transformers/bert"),
    (transformers.RobertaConfig(**SIZES, pad_token_id=0), "transformers/roberta"),
    (transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4), "transformers/gpt2"),
], ids=["bert", "roberta", "gpt2"])
def test_embeddings_equal_the_reference(store, config, key):
    reference = put(config, key, transformers.AutoModel)
    with tensorcast.torch.parameters_on_meta():
        model = transformers.AutoModel.from_config(config)
    assert tensorcast.torch.load_model(model, key) == ([], [])
    assert torch.equal(embeddings(model), embeddings(reference))


@pytest.mark.parametrize("config, key, buffer", [
    (transformers.BertConfig(**SIZES), "transformers/bert", "embeddings.position_ids"),
    (llama_config(), "transformers/llama-base", "rotary_emb.inv_freq"),
], ids=["bert", "llama"])
def test_buffers_left_on_meta_are_missing(store, config, key, buffer):
    put(config, key, transformers.AutoModel)
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(config)
    with pytest.raises(RuntimeError, match=f"{buffer}.*parameters_on_meta"):
        tensorcast.torch.load_model(model, key)
    missing, unexpected = tensorcast.torch.load_model(model, key, strict=False)
    assert buffer in missing and unexpected == []


def test_from_pretrained_takes_the_stores_state_dict(store):
    reference = put(llama_config(), "transformers/llama", transformers.AutoModelForCausalLM)
    weights = tensorcast.torch.state_dict("transformers/llama")
    model = transformers.LlamaForCausalLM.from_pretrained(None, config=llama_config(), state_dict=weights)
    assert torch.equal(embeddings(model), embeddings(reference))
