"""The weight transfer for vLLM, against doubles made from its recorded interface (python/interfaces), with real daemons.

`on_vllm.py` runs the same plug-in inside vLLM itself.
"""

import contextlib
import dataclasses
import importlib
import inspect
import json
import types
from typing import NamedTuple

import numpy as np
import pytest
import recorded

torch = pytest.importorskip("torch")

from cluster import Cluster, leaving_no_leases  # noqa: E402
from test_plugins import forget_modules, overrides_fit  # noqa: E402

import tensorcast as tc  # noqa: E402
from tensorcast import default_store  # noqa: E402

ROWS, COLUMNS = 8, 512


class Policy(torch.nn.Module):
    """The trainer's model. A step moves a few elements of each tensor."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        for name, shape in {"q": (ROWS, COLUMNS), "k": (ROWS, COLUMNS), "norm": (4096,), "decay": (2048,)}.items():
            self.register_parameter(name, torch.nn.Parameter(torch.rand(shape)))

    def step(self, *names):
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name in (names or ("q", "k", "norm", "decay")):
                    parameter.view(-1)[torch.randperm(parameter.numel())[:40]] += 1


class Served(torch.nn.Module):
    """A rank of two, as vLLM has models: the checkpoint's `q` and `k` are rows of one parameter."""

    def __init__(self, rank):
        super().__init__()
        half = ROWS // 2
        self.rank = rank
        self.qk = torch.nn.Parameter(torch.zeros(2 * half, COLUMNS), requires_grad=False)
        self.norm = torch.nn.Parameter(torch.zeros(4096, dtype=torch.bfloat16), requires_grad=False)
        self.decay = torch.nn.Parameter(torch.zeros(2048), requires_grad=False)
        self.whole_loads = 0
        self.reloading = False
        self.process()

    def load_weights(self, weights):
        half = ROWS // 2
        loaded = set()
        for name, tensor in weights:
            if name in ("q", "k"):
                self.qk.data.narrow(0, half * "qk".index(name), half).copy_(tensor.narrow(0, half * self.rank, half))
            else:
                self.load(dict(self.named_parameters())[name], tensor)
            loaded.add(name)
        return loaded

    def load(self, parameter, tensor):
        parameter.data.copy_(tensor)

    def process(self):
        """After a load of the whole checkpoint, as quantisation and attention have it."""

    def check(self, policy):
        half = ROWS // 2
        rows = slice(half * self.rank, half * (self.rank + 1))
        assert torch.equal(self.qk, torch.cat([policy.q[rows], policy.k[rows]]))
        assert torch.equal(self.norm, policy.norm.to(torch.bfloat16))
        assert torch.equal(self.decay, policy.decay)


class Composed(Served):
    """Has a loader that computes, like vLLM's composed_weight_loader."""

    def load(self, parameter, tensor):
        parameter.data.copy_(tensor)
        if parameter is self.decay:
            parameter.data.copy_(-parameter)

    def check(self, policy):
        self.decay.data.neg_()
        super().check(policy)
        self.decay.data.neg_()


class Folded(Served):
    """Keeps a second form of a weight beside it, like multi-head latent attention."""

    def process(self):
        self.folded = self.norm.float() * 2

    def check(self, policy):
        super().check(policy)
        assert torch.equal(self.folded, self.norm.float() * 2)


class Strict(Served):
    """Has a loader that does not end in a copy of the same shape."""

    def load(self, parameter, tensor):
        parameter.data.view(-1, 1).copy_(tensor.view(1, -1, 1)[0] if tensor.isnan().sum() == 0 else tensor)


class Patch(NamedTuple):
    name: str
    shape: tuple
    dtype: torch.dtype
    values: torch.Tensor
    indices: torch.Tensor = None


def load_patches(model, patches, *, max_chunk_bytes=1 << 20, validate_unique_indices=True):
    """What vLLM documents of its own: NaN is an element that stays, and the model's loaders copy into the same shape."""
    tensors = []
    for patch in patches:
        if not patch.dtype.is_floating_point:
            raise TypeError("patches are of floating-point numbers")
        if patch.values.isnan().any():
            raise ValueError("NaN is what stays")
        full = torch.full(patch.shape, float("nan"), dtype=patch.dtype)
        full.view(-1)[patch.indices] = patch.values
        tensors.append((patch.name, full))
    copy = torch.Tensor.copy_

    def copy_changed(to, source, non_blocking=False):
        if to.shape != source.shape:
            raise NotImplementedError("a copy into another shape")
        return copy(to, torch.where(source.isnan(), to, source.to(to.dtype)))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.Tensor, "copy_", copy_changed)
        return set(model.load_weights(tensors))


def initialize_reload(model):
    assert not model.reloading, "the load before did not end"
    model.reloading = True
    model.whole_loads += 1


def finalize_reload(*args, **kwargs):
    model, _ = args
    assert model.reloading
    model.process()
    model.reloading = False


@dataclasses.dataclass
class TrainerInitInfo:
    rank: int = dataclasses.field(kw_only=True)

    @property
    def is_sender(self):
        return self.rank == 0


class Source:
    """What a trainer's weights are to vLLM: `metadata`, the names that a rank owns, and full tensors."""

    def __init__(self, policy, owned=lambda rank, name: True):
        self.policy, self.owned, self.passes = policy, owned, 0

    @property
    def metadata(self):
        return [types.SimpleNamespace(name=name) for name, _ in self.policy.named_parameters()]

    def owned_names(self, rank):
        return [meta.name for meta in self.metadata if self.owned(rank, meta.name)]

    def implements_iter_full(self):
        return True

    def iter_full(self):
        self.passes += 1
        yield from self.policy.named_parameters()


class Worker:
    """A worker of vLLM: what it does around its engine for weight transfer."""

    def __init__(self, engine):
        self.engine, self.active = engine, False

    def init_weight_transfer_engine(self, init_info):
        self.engine.init_transfer_engine(self.engine.parse_init_info(init_info))

    def start_weight_update(self):
        if self.active:
            raise RuntimeError("a weight update is already active")
        self.engine.start_weight_update()
        self.active = True

    def update_weights(self, update_info):
        assert self.active
        try:
            self.engine.update_weights(update_info)
        except BaseException:
            self.active = False
            raise

    def finish_weight_update(self):
        if not self.active:
            raise RuntimeError("no weight update is active")
        self.engine.finish_weight_update()
        self.active = False


class Client:
    """The trainer's way to the workers. All of them get each call, as text."""

    def __init__(self, *workers):
        self.workers = workers
        self.sent = []
        self.version = None

    def _call(self, method, *arguments):
        errors = []
        for worker in self.workers:
            try:
                getattr(worker, method)(*(json.loads(json.dumps(argument)) for argument in arguments))
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def init_weight_transfer_engine(self, init_info):
        self._call("init_weight_transfer_engine", init_info)

    def start_weight_update(self):
        self._call("start_weight_update")

    def update_weights(self, update_info):
        self.sent.append(update_info)
        self._call("update_weights", update_info)

    def finish_weight_update(self, weight_version=None):
        self._call("finish_weight_update")
        self.version = weight_version or self.version


def init_engine(self, config, vllm_config, device, model):
    self.device, self.model, self.model_config = device, model, vllm_config.model_config


def init_trainer(self, *, client, source=None, is_sender=True, rank=0):
    self.client, self.source, self.is_sender, self.rank = client, source, is_sender, rank


@pytest.fixture
def vllm(monkeypatch):
    """vLLM's parts that the plug-in uses: their registries, and the module of the plug-in, in which patches are tried on the CPU."""
    transfer, loader = "vllm.distributed.weight_transfer", "vllm.model_executor.model_loader"
    registries = {"Engine": {}, "Trainer": {}}

    def registering(registry):
        def register_engine(cls, name, module_path_or_cls, class_name=None):
            if name in registry:
                raise ValueError(f"{name} is registered")
            registry[name] = module_path_or_cls, class_name

        return classmethod(register_engine)

    def parse_init_info(self, init_dict):
        return self.init_info_cls(**init_dict)

    def parse_update_info(self, update_dict):
        return self.update_info_cls(**update_dict)

    modules = recorded.install(
        monkeypatch,
        "vllm",
        {
            f"{transfer}.factory:WeightTransferEngineFactory.register_engine": registering(registries["Engine"]),
            f"{transfer}.factory:WeightTransferTrainerFactory.register_engine": registering(registries["Trainer"]),
            f"{transfer}.base:TrainerInitInfo": TrainerInitInfo,
            f"{transfer}.base:WeightTransferEngine.__init__": init_engine,
            f"{transfer}.base:WeightTransferEngine.parse_init_info": parse_init_info,
            f"{transfer}.base:WeightTransferEngine.parse_update_info": parse_update_info,
            f"{transfer}.base:TrainerWeightTransferEngine.__init__": init_trainer,
            f"{loader}.checkpoint_weight_patch:CheckpointWeightPatch": Patch,
            f"{loader}.checkpoint_weight_patch:load_checkpoint_weight_patches": load_patches,
            f"{loader}.mtp_validation:disable_mtp_completeness_check": lambda: contextlib.nullcontext(),
            f"{loader}.reload.layerwise:initialize_layerwise_reload": initialize_reload,
            f"{loader}.reload.layerwise:finalize_layerwise_reload": finalize_reload,
        },
    )
    names = [f"tensorcast.plugins.vllm_{name}" for name in ("loader", "patches", "weight_transfer")]
    forget_modules(monkeypatch, *names)
    plugin = importlib.import_module(names[-1])
    assert registries == {"Engine": {"tensorcast": (names[-1], "TensorcastWeightTransferEngine")},
                          "Trainer": {"tensorcast": (names[-1], "TensorcastTrainerWeightTransferEngine")}}
    monkeypatch.setattr(plugin, "patchable", lambda model_config, device: model_config.quantization is None)
    yield types.SimpleNamespace(plugin=plugin, modules=modules)
    forget_modules(monkeypatch, *names)


class Run:
    """A trainer and the workers of its engine."""

    def __init__(self, vllm, *models, key="rl/policy", quantization=None, **options):
        self.policy = Policy()
        self.models = models
        config = types.SimpleNamespace(model_config=types.SimpleNamespace(quantization=quantization))
        engine = vllm.plugin.TensorcastWeightTransferEngine
        self.client = Client(*(Worker(engine(None, config, torch.device("cpu"), model)) for model in models))
        self.source = Source(self.policy)
        self.trainer = vllm.plugin.TensorcastTrainerWeightTransferEngine.trainer_init(
            vllm.plugin.TensorcastTrainerInitInfo(key=key, rank=0, **options), client=self.client, source=self.source)

    def send(self, *names):
        """Trains a step and sends it. Returns how often each model was loaded whole."""
        self.policy.step(*names)
        before = [model.whole_loads for model in self.models]
        self.trainer.send_weights()
        self.check()
        return [model.whole_loads - loads for model, loads in zip(self.models, before)]

    def check(self):
        for model in self.models:
            model.check(self.policy)


@pytest.fixture
def run(vllm, store, request):
    """Makes runs with keys of the test's own."""
    keys = []

    def make(*models, **options):
        keys.append(f"rl/{request.node.name}/{len(keys)}")
        return Run(vllm, *models, key=keys[-1], **options)

    yield make
    for key in keys:
        with contextlib.suppress(tc.NotFoundError):
            store.unbind(key)


def test_overrides_have_the_signatures_of_vllm(vllm):
    base = vllm.modules["vllm.distributed.weight_transfer.base"]
    overrides_fit(vllm.plugin.TensorcastWeightTransferEngine, base.WeightTransferEngine)
    overrides_fit(Worker, vllm.modules["vllm.v1.worker.gpu_worker"].Worker)
    overrides_fit(Client, base.VLLMWeightSyncClient)
    sent = vllm.plugin.TensorcastTrainerWeightTransferEngine
    assert inspect.signature(sent.send_weights).parameters.keys() == inspect.signature(base.TrainerWeightTransferEngine.send_weights).parameters.keys()
    for side in (sent.trainer_init, base.TrainerWeightTransferEngine.trainer_init):
        assert list(inspect.signature(side).parameters) == ["init_info", "client", "source"]


def test_ranks_take_patches_after_these_did_what_loads_do(run, store):
    ranks = run(Served(0), Served(1))
    addresses = [parameter.data_ptr() for model in ranks.models for parameter in model.parameters()]
    assert ranks.send() == [1, 1], "nothing is known of what the model holds"
    assert ranks.send() == [1, 1], "the first patch is compared with a load"
    for _ in range(3):
        assert ranks.send() == [0, 0]
        assert ranks.trainer.put.difference is not None
    assert [parameter.data_ptr() for model in ranks.models for parameter in model.parameters()] == addresses
    put = ranks.trainer.put
    assert ranks.client.sent[-1] == {"artifact_id": put.artifact_id, "key": ranks.trainer._options.key, "revision": put.key_revision}
    assert ranks.client.version == put.artifact_id
    assert len(store.replicas(put.artifact_id)) == 1


def test_patch_of_another_tensor_is_proven_too(run):
    ranks = run(Served(0))
    assert [ranks.send(*names) for names in ([], ["q"], ["q"], ["q", "norm"], ["norm"])] == [[1], [1], [0], [1], [0]]


def test_tensor_that_changed_as_a_whole_is_patched(run):
    ranks = run(Served(0))
    ranks.send()
    ranks.send()
    with torch.no_grad():
        ranks.policy.decay += 1
    assert ranks.send("q") == [0]
    assert ranks.trainer.put.difference is not None


@pytest.mark.parametrize("model", [Composed, Folded, Strict])
def test_model_of_which_patches_are_wrong_is_loaded_whole(run, model):
    ranks = run(model(0))
    assert [ranks.send() for _ in range(4)] == [[1]] * 4


def test_quantised_model_is_loaded_whole(run):
    ranks = run(Served(0), quantization="fp8")
    assert [ranks.send() for _ in range(3)] == [[1]] * 3


def test_patches_are_tried_on_gpus_and_without_quantisation(vllm):
    patchable = importlib.import_module("tensorcast.plugins.vllm_patches").patchable
    config = types.SimpleNamespace(quantization=None)
    assert patchable(config, torch.device("cuda:0")) and not patchable(config, torch.device("cpu"))
    assert not patchable(types.SimpleNamespace(quantization="fp8"), torch.device("cuda:0"))


def test_version_with_nan_is_loaded_whole(run):
    ranks = run(Served(0))
    ranks.send()
    ranks.send()
    with torch.no_grad():
        ranks.policy.norm[7] = float("nan")
    ranks.trainer.send_weights()
    assert ranks.models[0].norm[7].isnan() and ranks.models[0].whole_loads == 3
    with torch.no_grad():
        ranks.policy.norm[7] = 1
    assert ranks.send() == [0]


@pytest.mark.parametrize("write", [lambda qk: qk.zero_(), lambda qk: qk.copy_(qk.flip(0))], ids=["zeros", "other order"])
def test_model_that_something_else_wrote_is_loaded_whole(run, write):
    """vLLM's sleep level 2 leaves no weights, and reload_weights leaves others."""
    ranks = run(Served(0))
    ranks.send()
    ranks.send()
    with torch.no_grad():
        write(ranks.models[0].qk)
    assert ranks.send() == [1]
    assert ranks.send() == [0]


def test_version_of_the_loader_is_the_base_of_the_first_patch(vllm, store, monkeypatch):
    model = Served(0)
    policy = Policy()
    loader = importlib.import_module("tensorcast.plugins.vllm_loader")
    put = store.put(dict(policy.named_parameters()), key="rl/from-loader")
    with store.get(put.artifact_id) as weights:
        model.load_weights(loader.checkpoint_of(model, weights))
    loader.loaded_version[model] = put.artifact_id
    ranks = Run(vllm, model, key="rl/from-loader")
    patched = []
    patch = vllm.plugin.Patches._patch
    monkeypatch.setattr(vllm.plugin.Patches, "_patch", lambda *given: patched.append(patch(*given)) or patched[-1])
    ranks.send("q", "norm")
    assert patched == [{"q", "norm"}]
    store.unbind("rl/from-loader")


def test_unknown_version_leaves_the_model_as_it_is(run):
    ranks = run(Served(0))
    ranks.send()
    worker = ranks.client.workers[0]
    worker.start_weight_update()
    with pytest.raises(tc.NotFoundError):
        worker.update_weights({"artifact_id": "rl/no-such-key", "key": "rl/no-such-key", "revision": 1})
    ranks.check()
    assert ranks.send() == [1] and ranks.send() == [0]
    with pytest.raises(TypeError):
        worker.engine.parse_update_info({"key": "rl/policy"})


def test_update_that_failed_in_a_rank_is_finished_by_the_next(run):
    class Fails(Served):
        fail = False

        def load_weights(self, weights):
            for number, weight in enumerate(weights):
                if self.fail and number == 2:
                    raise RuntimeError("a loader failed")
                super().load_weights([weight])
            return {"any"}

    ranks = run(Fails(0), Fails(1))
    ranks.send()
    ranks.models[1].fail = True
    with pytest.raises(RuntimeError, match="a loader failed"):
        ranks.send()
    ranks.models[0].check(ranks.policy)
    assert not any(worker.active for worker in ranks.client.workers)
    ranks.models[1].fail = False
    ranks.trainer.send_weights()
    ranks.check()
    assert ranks.send() == [0, 1], "the patch of the rank that did not fail was compared with a load before"
    assert ranks.send() == [0, 0]


def test_published_version_is_sent_once(run):
    ranks = run(Served(0))
    ranks.trainer.publish()
    sent = {name: parameter.detach().clone() for name, parameter in ranks.policy.named_parameters()}
    ranks.policy.step()
    ranks.trainer.send_weights()
    ranks.models[0].check(types.SimpleNamespace(**sent))
    assert ranks.source.passes == 1
    ranks.trainer.send_weights()
    ranks.check()
    assert ranks.source.passes == 2


def test_other_ranks_of_the_trainer_gather_and_do_not_send(vllm, store):
    source = Source(Policy())
    trainer = vllm.plugin.TensorcastTrainerWeightTransferEngine.trainer_init(
        vllm.plugin.TensorcastTrainerInitInfo(key="rl/other-rank", rank=1), client=None, source=source)
    trainer.send_weights()
    assert source.passes == 1 and trainer.put is None and "rl/other-rank" not in store


def test_source_without_full_tensors_in_rank_0_is_refused(vllm):
    init_info = vllm.plugin.TensorcastTrainerInitInfo(key="rl/refused", rank=0)
    parts = Source(Policy(), owned=lambda rank, name: (name == "norm") == (rank == 1))
    for source, words in ((parts, r"does not own \['norm'\]"), (None, "pass a source")):
        with pytest.raises(ValueError, match=words):
            vllm.plugin.TensorcastTrainerWeightTransferEngine.trainer_init(init_info, client=None, source=source)


@pytest.fixture
def two_nodes(monkeypatch):
    """A cluster of the test's own: the engine is on node "a", the trainer on node "b"."""
    with Cluster() as cluster:
        monkeypatch.setenv("TENSORCAST_DAEMON", cluster.address("a"))
        default_store.forget()
        yield cluster
        default_store.forget()


def test_engine_pulls_only_what_changed_from_the_trainers_node(vllm, two_nodes, monkeypatch):
    lanes = []
    update = vllm.plugin.Patches.update

    def seen(self, store, weights, *given):
        lanes.append({source["lane"] for source in weights.transfer["sources"]})
        return update(self, store, weights, *given)

    monkeypatch.setattr(vllm.plugin.Patches, "update", seen)
    ranks = Run(vllm, Served(0), daemon=two_nodes.address("b"))
    with leaving_no_leases(default_store.connect(), seconds=10):
        ranks.send()
        assert "difference" not in lanes.pop()
        ranks.send()
        ranks.send()
    assert lanes == [{"difference"}] * 2


def test_update_while_the_daemon_is_away_is_finished_by_the_next(vllm, two_nodes):
    ranks = Run(vllm, Served(0), daemon=two_nodes.address("b"), timeout_s=20)
    ranks.send()
    ranks.send()
    held = {name: tensor.clone() for name, tensor in ranks.models[0].state_dict().items()}
    two_nodes.kill("a")
    ranks.policy.step()
    with pytest.raises(tc.Error):
        ranks.trainer.send_weights()
    assert all(torch.equal(tensor, held[name]) for name, tensor in ranks.models[0].state_dict().items())
    two_nodes.start_again("a")
    ranks.trainer.send_weights()
    ranks.check()
    ranks.send()


def test_daemon_that_is_killed_during_a_load_does_not_stop_it(vllm, two_nodes):
    class Kills(Served):
        def load_weights(self, weights):
            if "a" in two_nodes.processes:
                two_nodes.kill("a")
            return super().load_weights(weights)

    ranks = Run(vllm, Kills(0), daemon=two_nodes.address("b"), timeout_s=20)
    assert ranks.send() == [1]
