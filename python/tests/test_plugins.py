"""The loaders for vLLM and SGLang, against doubles made from the recorded interfaces (python/interfaces).

Neither package can be installed here. The tests call the entry points as the engines do.
"""

import contextlib
import functools
import inspect
import json
import pathlib
import subprocess
import sys
import tomllib
import types

import numpy as np
import pytest
import recorded

torch = pytest.importorskip("torch")

import tensorcast as tc  # noqa: E402

TENSORS = {"layer.weight": np.arange(32, dtype=np.float32).reshape(8, 4), "layer.bias": np.ones(8, np.float32)}


class Half(torch.nn.Module):
    """One of two ranks. Its loader takes its own rows."""

    def __init__(self, rank, rows=4, columns=4):
        super().__init__()
        self.rank, self.rows = rank, rows
        self.layer = torch.nn.Linear(columns, rows)

    def load_weights(self, weights):
        parameters = dict(self.named_parameters())
        loaded = set()
        with torch.no_grad():
            for name, tensor in weights:
                parameters[name].copy_(tensor.narrow(0, self.rows * self.rank, self.rows))
                loaded.add(name)
        return loaded

    def check(self):
        rows = slice(4 * self.rank, 4 * self.rank + 4)
        assert torch.equal(self.layer.weight, torch.tensor(TENSORS["layer.weight"][rows].tolist()))
        assert torch.equal(self.layer.bias, torch.ones(4))


@pytest.fixture
def key(store):
    store.put(TENSORS, key="plugins/model")
    return "plugins/model"


def forget_modules(monkeypatch, *names):
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
        parent, _, child = name.rpartition(".")
        if parent in sys.modules and hasattr(sys.modules[parent], child):
            monkeypatch.delattr(sys.modules[parent], child)


def install_vllm(monkeypatch):
    """Installs vLLM's registry of loaders, and the parts of its default loader that ours uses.

    Returns the loader of `--load-format tensorcast`.
    """
    loaders = {}

    def register_model_loader(load_format):
        def register(loader):
            loaders[load_format] = loader
            return loader

        return register

    def init(self, load_config):
        if load_config.model_loader_extra_config:
            raise ValueError("not an option of the default loader")
        self.load_config = load_config

    def load_weights(self, model, model_config):
        loaded = model.load_weights(self.get_all_weights(model_config, model))
        assert loaded == {name for name, _ in model.named_parameters()}

    def from_elsewhere(self, source):
        return iter([(f"{source}.weight", torch.zeros(1))])

    def create_engine_config(self, usage_context=None, headless=False):
        return vars(self).copy()

    def register_engine(cls, name, module_path_or_cls, class_name=None):
        assert name == "tensorcast"

    factories = "vllm.distributed.weight_transfer.factory"
    loader = "vllm.model_executor.model_loader"
    modules = recorded.install(
        monkeypatch,
        "vllm",
        {
            "vllm.engine.arg_utils:EngineArgs.create_engine_config": create_engine_config,
            f"{factories}:WeightTransferEngineFactory.register_engine": classmethod(register_engine),
            f"{factories}:WeightTransferTrainerFactory.register_engine": classmethod(register_engine),
            f"{loader}:register_model_loader": register_model_loader,
            f"{loader}.default_loader:DefaultModelLoader.__init__": init,
            f"{loader}.default_loader:DefaultModelLoader.load_weights": load_weights,
            f"{loader}.default_loader:DefaultModelLoader._get_weights_iterator": from_elsewhere,
        },
    )
    forget_modules(monkeypatch, "tensorcast.plugins.vllm_loader")
    from tensorcast.plugins import vllm

    assert modules["vllm.plugins"].DEFAULT_PLUGINS_GROUP == "'vllm.general_plugins'"
    vllm.register()
    vllm.register()
    return loaders["tensorcast"]


@pytest.fixture
def vllm(monkeypatch):
    return install_vllm(monkeypatch)


def config(**extra):
    return types.SimpleNamespace(load_format="tensorcast", model_loader_extra_config=extra)


def overrides_fit(loader, base):
    """Checks that each method that the loader overrides has the signature of the base's method."""
    for name, function in vars(loader).items():
        if inspect.isfunction(function) and inspect.isfunction(getattr(base, name, None)):
            mine, theirs = (list(inspect.signature(f).parameters.values()) for f in (function, getattr(base, name)))
            assert [(p.name, p.kind) for p in mine] == [(p.name, p.kind) for p in theirs], name


def test_vllm_ranks_share_one_replica_and_copy_their_rows(vllm, store, key):
    overrides_fit(vllm, vllm.__mro__[1])
    model_config = types.SimpleNamespace(model="tc://" + key)
    for rank in (Half(0), Half(1)):
        loader = vllm(config())
        loader.download_model(model_config)
        loader.load_weights(rank, model_config)
        rank.check()
    assert len(store.replicas(key)) == 1


def test_vllm_options_name_the_key_or_are_refused(vllm, store, key):
    model = Half(1)
    vllm(config(key=key, daemon=store.daemon, timeout_s=60)).load_weights(model, types.SimpleNamespace(model="meta/llama"))
    model.check()
    with pytest.raises(ValueError, match="no option 'kye'"):
        vllm(config(kye=key))
    with pytest.raises(ValueError, match="cannot be 7"):
        vllm(config(key=7))
    with pytest.raises(tc.NotFoundError):
        vllm(config(key="plugins/nothing")).download_model(types.SimpleNamespace(model="x"))


def test_vllm_loads_secondary_weights_and_skips_unused_ones(vllm, store, key):
    model = torch.nn.Module()
    model.secondary_weights, model.is_unused_checkpoint_weight = ["vision"], lambda name: name.endswith("bias")
    weights = dict(vllm(config(key=key)).get_all_weights(types.SimpleNamespace(model="x"), model))
    assert list(weights) == ["layer.weight", "vision.weight"]


@pytest.mark.parametrize("path", ["tc://plugins/other", "plugins/other"])
@pytest.mark.parametrize("options", [{}, {"key": "plugins/model"}], ids=["", "with a key"])
def test_vllm_reloads_from_the_given_path(vllm, store, key, path, options):
    """Does what vLLM's reload_weights does: a new loader with the same options, and the path in place of the model's name."""
    store.put({name: array + 1 for name, array in TENSORS.items()}, key="plugins/other")
    model, model_config = Half(0), types.SimpleNamespace(model="meta/llama" if options else "tc://plugins/model")
    vllm(config(**options)).load_weights(model, model_config)
    model.check()
    model.load_weights(vllm(config(**options)).get_all_weights(model_config, model))
    model.check()
    model_config.model = path
    for _ in range(2):  # the second time without a path: vLLM keeps the last one
        model.load_weights(vllm(config(**options)).get_all_weights(model_config, model))
        assert torch.equal(model.layer.bias, torch.full((4,), 2.0))


def install_sglang(monkeypatch):
    """Installs SGLang's hooks, and the parts of its loader that ours uses.

    Returns a function that chooses the loader of a LoadConfig.
    """
    hooks, choices = {}, []

    def register(cls, target, hook, hook_type="after", *, source=None):
        hooks[target] = (hook, hook_type)

    def initialize(model_config, load_config, quant_config=None):
        return model_config.make()

    def load(model, weights, target_device):
        model.load_weights(weights)

    def init(self, load_config):
        self.load_config = load_config

    def resolve_once(self):
        self.resolved = vars(self).copy()

    loader = "sglang.srt.model_loader.loader"
    modules = recorded.install(
        monkeypatch,
        "sglang",
        {
            "sglang.srt.arg_groups.choices:add_load_format_choices": types.MethodType(lambda _, names: choices.extend(names), 0),
            "sglang.srt.plugins.hook_registry:HookRegistry.register": classmethod(register),
            "sglang.srt.server_args:ServerArgs.resolve_once": resolve_once,
            f"{loader}:BaseModelLoader.__init__": init,
            f"{loader}:_get_quantization_config": lambda model_config, load_config: None,
            f"{loader}:_initialize_model": initialize,
            f"{loader}:DefaultModelLoader.load_weights_and_postprocess": staticmethod(load),
            "sglang.srt.model_loader.utils:set_default_torch_dtype": lambda dtype: contextlib.nullcontext(),
        },
    )
    forget_modules(monkeypatch, "tensorcast.plugins.sglang_loader")
    from tensorcast.plugins import sglang

    sglang.register()
    assert choices == ["tensorcast"]
    for target, (hook, kind) in hooks.items():
        assert kind == modules["sglang.srt.plugins.hook_registry"].HookType.AROUND
        module, owner, method = target.rsplit(".", 2)
        hooked = getattr(modules[module], owner)
        around = functools.partialmethod(lambda self, hook, original: hook(original, self), hook, getattr(hooked, method))
        setattr(hooked, method, around)
    verify, _ = hooks["sglang.srt.configs.load_config.LoadConfig._verify_load_format"]

    def choose(load_config):
        passed_on = []
        verify(passed_on.append, load_config)
        assert passed_on == ([] if isinstance(load_config.load_format, type) else [load_config])
        return load_config.load_format

    return choose


@pytest.fixture
def sglang(monkeypatch):
    return install_sglang(monkeypatch)


def load_with_sglang(loader, load_config, model_config, monkeypatch):
    # PyTorch 1.13 cannot make a device the default of a block; the engine's PyTorch can.
    placing = types.SimpleNamespace(device=lambda name: contextlib.nullcontext(name))
    monkeypatch.setattr(sys.modules[loader.__module__], "torch", placing)
    made = loader(load_config)
    made.download_model(model_config)
    return made.load_model(model_config=model_config, device_config=types.SimpleNamespace(device="cpu"))


def test_sglang_loads_a_rank(sglang, store, key, monkeypatch):
    assert sglang(types.SimpleNamespace(load_format="auto")) == "auto"
    load_config = config(key=key)
    loader = sglang(load_config)
    overrides_fit(loader, loader.__mro__[1])
    model_config = types.SimpleNamespace(model_path="meta/llama", dtype=torch.float32, make=lambda: Half(1))
    model = load_with_sglang(loader, load_config, model_config, monkeypatch)
    model.check()
    assert not model.training
    with pytest.raises(ValueError, match="no option"):
        loader(config(unknown=1))


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_ranks_of_a_host_share_a_replica_and_read_own_slices(engine, store):
    rows, columns = 4096, 1024
    put = store.put({"layer.weight": np.ones((2 * rows, columns), np.float32), "layer.bias": np.ones(2 * rows, np.float32)},
                    key="plugins/large")
    before = store.status().leases
    program = [sys.executable, "-B", str(pathlib.Path(__file__).with_name("rank.py")), engine, "plugins/large"]
    sizes = ["--rows", str(rows), "--columns", str(columns)]
    with contextlib.ExitStack() as ranks:
        started = [ranks.enter_context(subprocess.Popen([*program, str(rank), *sizes], stdin=subprocess.PIPE,
                                                        stdout=subprocess.PIPE, text=True)) for rank in (0, 1)]
        counted = [json.loads(rank.stdout.readline()) for rank in started]
        assert store.status().leases == before + 2, "both ranks hold a lease"
        assert [replica.artifact_id for replica in store.replicas("plugins/large")] == [put.artifact_id]
        slice_kib = rows * columns * 4 // 1024
        for memory in counted:
            assert memory["Private_Dirty"] == 0, "only the rank's own parameters are copies"
            # The kernel maps a huge page around a fault: one more at either end of the slice and of the bias.
            assert slice_kib <= memory["Rss"] <= slice_kib + 4 * 2048
        for rank in started:
            rank.communicate("on\n")
            assert rank.returncode == 0


def test_entry_points_are_those_of_the_engines():
    project = tomllib.loads((pathlib.Path(__file__).resolve().parents[1] / "pyproject.toml").read_text())["project"]
    groups = {"vllm": ("vllm.plugins", "DEFAULT_PLUGINS_GROUP"), "sglang": ("sglang.srt.plugins", "GENERAL_PLUGINS_GROUP")}
    for name, (module, constant) in groups.items():
        recording = json.loads((recorded.INTERFACES / f"{name}.json").read_text())
        group = recording["modules"][module][constant].removeprefix("= ").strip("'")
        assert project["entry-points"][group] == {"tensorcast": f"tensorcast.plugins.{name}:register"}


def test_plug_ins_import_nothing_heavy_before_a_call():
    program = "import tensorcast.plugins.vllm, tensorcast.plugins.sglang, sys; assert not {'torch', 'numpy', 'vllm'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
