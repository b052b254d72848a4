"""The weight transfer inside vLLM itself, on the CPU: an engine that was updated generates what one does that loads the version anew.

Needs vLLM's wheel for the CPU and this package's wheel in one environment (`make check-vllm`).
"""

import functools
import json
import os
import tempfile

import pytest
import torch
import transformers
from cluster import Cluster

# The trainer of this process has a connection, which a forked engine could not use.
os.environ |= {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}

import vllm  # noqa: E402
from vllm.distributed.parallel_state import cleanup_dist_env_and_memory  # noqa: E402
from vllm.distributed.weight_transfer import WeightTransferTrainerFactory  # noqa: E402

import tensorcast as tc  # noqa: E402
from tensorcast.plugins import vllm_patches, vllm_weight_transfer  # noqa: E402

KEY = "rl/policy"
PROMPTS = [[1, 7, 9], [5, 250, 3, 44], [400, 2, 2, 17, 80]]


@pytest.fixture(scope="module")
def store():
    with Cluster() as cluster, pytest.MonkeyPatch.context() as patched:
        patched.setenv("TENSORCAST_DAEMON", cluster.address("a"))
        with tc.connect() as connected:
            yield connected


@pytest.fixture
def policy(store):
    """The trainer's model, of which the store has a version."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
                                      architectures=["LlamaForCausalLM"], dtype="bfloat16")
    module = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    store.put(dict(module.named_parameters()), key=KEY)
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        module.folder = folder
        yield module


def step(module):
    """Changes a few percent of the elements, by so much that other tokens follow."""
    with torch.no_grad():
        for parameter in module.parameters():
            changed = torch.rand(parameter.shape) < 0.03
            parameter[changed] = (parameter[changed].float() + torch.randn(int(changed.sum()))).to(parameter.dtype)


class Source:
    """The trainer's weights, for the versions of vLLM with and without owners of parts."""

    def __init__(self, module):
        self.module = module

    @property
    def metadata(self):
        return [vllm.distributed.weight_transfer.ParamMeta(name, p.dtype, tuple(p.shape)) for name, p in self.module.named_parameters()]

    def owned_names(self, rank):
        return [meta.name for meta in self.metadata]

    def implements_iter_full(self):
        return True

    def iter_full(self):
        return self.module.named_parameters()


class Client:
    """The calls of an engine of vLLM in this process or below it."""

    def __init__(self, engine):
        self.call = engine.collective_rpc

    def init_weight_transfer_engine(self, init_info):
        self.call("init_weight_transfer_engine", kwargs={"init_info": json.loads(json.dumps(init_info))})

    def start_weight_update(self):
        self.call("start_weight_update")

    def update_weights(self, update_info):
        self.call("update_weights", kwargs={"update_info": json.loads(json.dumps(update_info))})

    def finish_weight_update(self, weight_version=None):
        self.call("finish_weight_update")


def engine_for(policy):
    return vllm.LLM(model=policy.folder, load_format="tensorcast", model_loader_extra_config={"key": KEY}, skip_tokenizer_init=True,
                    weight_transfer_config={"backend": "tensorcast"}, enforce_eager=True, enable_prefix_caching=False,
                    max_model_len=64, max_num_seqs=4)


def trainer_for(policy, engine):
    return WeightTransferTrainerFactory.trainer_init(vllm_weight_transfer.TensorcastTrainerInitInfo(key=KEY, rank=0),
                                                     client=Client(engine), source=Source(policy))


def tokens(engine):
    asked = vllm.SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, detokenize=False)
    answers = engine.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], asked, use_tqdm=False)
    return [list(answer.outputs[0].token_ids) for answer in answers]


def stop(engine):
    engine.llm_engine.engine_core.shutdown()
    cleanup_dist_env_and_memory()


def tokens_of_a_fresh_load(policy):
    engine = engine_for(policy)
    found = tokens(engine)
    stop(engine)
    return found


def test_updated_engine_generates_what_a_fresh_load_does(policy):
    """In a process of vLLM's own, which loads the plug-in by its entry point."""
    engine = engine_for(policy)
    trainer = trainer_for(policy, engine)
    generated = [tokens(engine)]
    for _ in range(2):
        step(policy)
        trainer.send_weights()
        assert trainer.put.difference is not None
        generated.append(tokens(engine))
    with pytest.raises(Exception, match="rl/no-such-version"):
        trainer.client.start_weight_update()
        trainer.client.update_weights({"artifact_id": "rl/no-such-version", "key": KEY, "revision": 1})
    assert tokens(engine) == generated[-1]
    stop(engine)
    assert generated[0] != generated[1] != generated[2]
    assert tokens_of_a_fresh_load(policy) == generated[-1]


def test_patched_engine_generates_what_a_fresh_load_does(policy, monkeypatch):
    """Where vLLM leaves the weights as they are, as on a GPU: without its packed form for the CPU."""
    with monkeypatch.context() as patched:
        patched.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        patched.setattr(vllm._custom_ops, "_supports_onednn", False)
        patched.setattr(vllm_weight_transfer, "patchable", lambda model_config, device: model_config.quantization is None)
        ways = []
        update = vllm_patches.Patches.update
        patched.setattr(vllm_patches.Patches, "update", functools.wraps(update)(lambda *given: ways.append(update(*given)) or ways[-1]))
        engine = engine_for(policy)
        trainer = trainer_for(policy, engine)
        generated = [tokens(engine)]
        for _ in range(3):
            step(policy)
            trainer.send_weights()
            generated.append(tokens(engine))
        assert ways[0] == "whole; patches have the same result", "the loader of this package told what the model holds"
        assert [way.partition(" of ")[0] for way in ways[1:]] == ["by elements"] * 2
        assert all(one != other for one, other in zip(generated, generated[1:]))
        stop(engine)
        expected = tokens_of_a_fresh_load(policy)
    assert generated[-1] == expected
