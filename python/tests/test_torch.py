"""Modules of PyTorch: tensorcast.torch.

PyTorch 1.13 has no DTensor, so a wrapper subclass takes its place here. test_sharded.py has the real ones.
"""

import pytest

torch = pytest.importorskip("torch")

import tensorcast.safetensors.torch  # noqa: E402
import tensorcast.torch  # noqa: E402


class Wrapper(torch.Tensor):
    """Like DTensor: it has a shape, a dtype and a device but no memory, and its class defines its operations."""

    @staticmethod
    def __new__(cls, tensor):
        made = torch.Tensor._make_wrapper_subclass(cls, tensor.shape, dtype=tensor.dtype, device=tensor.device)
        made.inner = tensor
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return Wrapper(function(*(arg.inner if isinstance(arg, Wrapper) else arg for arg in args), **(kwargs or {})))


class ByDlpack:
    def __init__(self, tensor):
        self._tensor = tensor

    def __dlpack__(self, **_):
        return torch.utils.dlpack.to_dlpack(self._tensor)

    def __dlpack_device__(self):
        return (1, 0)


class HasTensors(torch.nn.Module):
    """A module with these tensors as its state dict."""

    def __init__(self, **tensors):
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)


def freed():
    tensor = torch.ones(8)[4:]
    tensor.storage().resize_(0)
    return tensor


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.head = torch.nn.Linear(4, 10, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.norm(self.embedding(tokens)))


@pytest.fixture
def stored(store):
    module = Tied().eval()
    tensorcast.torch.save_model(module, "torch/tied")
    return module


def same(one, other):
    tokens = torch.arange(10)
    return torch.equal(one(tokens), other(tokens))


def test_tied_parameters_are_stored_once(store, stored):
    assert len(store.get("torch/tied")) == len(stored.state_dict()) - 1
    assert tensorcast.torch.state_dict("torch/tied").keys() == stored.state_dict().keys()


def test_a_module_takes_the_stores_memory(stored):
    module = Tied().eval()
    assert tensorcast.torch.load_model(module, "torch/tied") == ([], [])
    assert same(module, stored)
    assert module.head.weight is module.embedding.weight
    assert isinstance(module.head.weight, torch.nn.Parameter) and module.head.weight.requires_grad
    with torch.no_grad():
        module.head.weight.zero_()
    other = Tied().eval()
    tensorcast.torch.load_model(other, "torch/tied")
    assert same(other, stored)


def test_load_without_assign_copies_into_the_module(stored):
    module = Tied().eval()
    held = module.embedding.weight
    assert tensorcast.torch.load_model(module, "torch/tied", assign=False) == ([], [])
    assert module.embedding.weight is held and same(module, stored)


def test_missing_and_misshapen_tensors_are_named(stored):
    class Other(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mine = torch.nn.Linear(2, 2)
            self.embedding = torch.nn.Embedding(10, 4)

    with pytest.raises(RuntimeError, match="mine.weight"):
        tensorcast.torch.load_model(Other(), "torch/tied")
    missing, unexpected = tensorcast.torch.load_model(Other(), "torch/tied", strict=False)
    assert set(missing) == {"mine.weight", "mine.bias"} and "norm.weight" in unexpected

    wrong = Tied()
    wrong.norm = torch.nn.BatchNorm1d(5)
    with pytest.raises(RuntimeError, match="norm.weight"):
        tensorcast.torch.load_model(wrong, "torch/tied")


def test_a_state_dict_goes_through_the_store(store):
    tensors = {"bf16": torch.ones(3, dtype=torch.bfloat16), "strided": torch.arange(6.0).reshape(2, 3).t(), "scalar": torch.tensor(3)}
    tensorcast.torch.save_state_dict(tensors, "torch/dict")
    again = tensorcast.torch.state_dict("torch/dict")
    assert tensors.keys() == again.keys()
    assert all(torch.equal(tensors[name], again[name]) and tensors[name].dtype == again[name].dtype for name in tensors)


@pytest.mark.parametrize("call, what", [
    (lambda module: tensorcast.torch.load_model(None, "torch/tied"), "module must be a torch.nn.Module, not None"),
    (lambda module: tensorcast.torch.save_model(module, None), "key must be a str, not None"),
    (lambda module: tensorcast.torch.save_state_dict(None, "torch/none"), "tensors must be a mapping"),
    (lambda module: tensorcast.torch.save_state_dict({"a": 3}, "torch/none"), 'tensor "a" must be a torch.Tensor, not 3'),
    (lambda module: tensorcast.torch.save_state_dict({"a": torch.ones(3, device="meta")}, "torch/none"), "meta device"),
    (lambda module: tensorcast.torch.save_state_dict({"a": torch.eye(3).to_sparse()}, "torch/none"), "is not dense"),
    (lambda module: tensorcast.torch.state_dict("torch/tied", device=None), "device must be a str"),
])
def test_an_invalid_argument_is_refused_with_its_value(store, stored, call, what):
    with pytest.raises(tensorcast.InvalidArgumentError, match=what):
        call(stored)


def test_a_conjugate_is_stored_beside_its_tensor(store):
    tensor = torch.tensor([1 + 2j], dtype=torch.complex64)
    tensorcast.torch.save_state_dict({"a": tensor, "b": tensor.conj()}, "torch/conjugate")
    again = tensorcast.torch.state_dict("torch/conjugate")
    assert again["a"].tolist() == [1 + 2j] and again["b"].tolist() == [1 - 2j]


def test_a_device_may_be_torchs_own(stored):
    module = Tied().eval()
    tensorcast.torch.load_model(module, "torch/tied", device=torch.device("cpu"))
    assert same(module, stored)


@pytest.mark.parametrize("way", [
    lambda tensors, store: store.put(tensors, key="torch/none"),
    lambda tensors, store: tensorcast.torch.save_state_dict(tensors, "torch/none"),
    lambda tensors, store: tensorcast.torch.save_model(HasTensors(**tensors), "torch/none"),
    lambda tensors, store: tensorcast.safetensors.torch.save_file(tensors, "tc://torch/none"),
], ids=["put", "save_state_dict", "save_model", "save_file"])
@pytest.mark.parametrize("tensor, what", [
    (lambda: Wrapper(torch.ones(4)), "is of type Wrapper and has no memory of its own; put the plain tensor"),
    (freed, "no memory of its own"),
    (lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8), "is quantized"),
    (lambda: torch.eye(3).to_mkldnn(), "is not dense"),
], ids=["wrapper", "freed", "quantized", "mkldnn"])
def test_a_tensor_without_memory_is_refused_by_name(store, way, tensor, what):
    with pytest.raises(tensorcast.InvalidArgumentError, match=f'put tensor "mine": the tensor .*{what}'):
        way({"mine": tensor()}, store)


def test_a_null_pointer_by_dlpack_is_refused_by_name(store):
    with pytest.raises(tensorcast.InvalidArgumentError, match='tensor "mine": .*address is null'):
        store.put({"mine": ByDlpack(Wrapper(torch.ones(4)))}, key="torch/none")


def test_a_plain_subclass_is_put(store):
    class Mine(torch.Tensor):
        pass

    store.put({"sub": torch.ones(3).as_subclass(Mine), "parameter": torch.nn.Parameter(torch.ones(3))}, key="torch/subclass")
    assert all(torch.equal(tensor, torch.ones(3)) for tensor in tensorcast.torch.state_dict("torch/subclass").values())


@pytest.mark.parametrize("make", [Wrapper, lambda tensor: torch.empty_like(tensor, device="meta")], ids=["wrapper", "meta"])
def test_tensors_without_address_are_not_tied(store, make):
    tensorcast.torch.save_state_dict({"first": torch.ones(4)}, "torch/first")
    with pytest.raises(RuntimeError, match=r"missing \['second'\], unexpected \[\]"):
        tensorcast.torch.load_model(HasTensors(first=make(torch.ones(4)), second=make(torch.zeros(4))), "torch/first")


def test_tied_parameters_on_meta_are_one_parameter(store):
    linear = torch.nn.Linear(3, 3, bias=False)
    tensorcast.torch.save_state_dict({"0.weight": linear.weight}, "torch/tied-meta")
    module = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False, device="meta"), torch.nn.Linear(3, 3, bias=False, device="meta"))
    module[1].weight = module[0].weight
    assert tensorcast.torch.load_model(module, "torch/tied-meta") == ([], [])
    assert module[1].weight is module[0].weight and torch.equal(module[0].weight, linear.weight)


def test_a_tied_parameter_with_two_values_is_refused(store):
    module = Tied()
    tensors = {**module.state_dict(), "head.weight": torch.zeros(10, 4)}
    tensorcast.torch.save_state_dict(tensors, "torch/untied")
    before = module.head.weight
    with pytest.raises(RuntimeError, match="embedding.weight and head.weight are one parameter"):
        tensorcast.torch.load_model(module, "torch/untied")
    assert module.head.weight is before
    tensors["head.weight"] = tensors["embedding.weight"].clone()
    tensorcast.torch.save_state_dict(tensors, "torch/untied")
    assert tensorcast.torch.load_model(module, "torch/untied") == ([], [])


@pytest.mark.parametrize("assign", [True, False])
def test_an_lstm_computes_with_loaded_weights(store, assign):
    trained, fresh = torch.nn.LSTM(4, 3), torch.nn.LSTM(4, 3)
    tensorcast.torch.save_model(trained, "torch/lstm")
    tensorcast.torch.load_model(fresh, "torch/lstm", assign=assign)
    tokens = torch.ones(2, 1, 4)
    assert torch.equal(fresh(tokens)[0], trained(tokens)[0])


def test_a_parameter_keeps_its_class_and_attributes(store):
    class Mine(torch.nn.Parameter):
        pass

    tensorcast.torch.save_state_dict({"weight": torch.zeros(2, 2)}, "torch/class")
    module = torch.nn.Linear(2, 2, bias=False)
    module.weight = Mine(torch.ones(2, 2), requires_grad=False)
    module.weight.weight_loader = print
    tensorcast.torch.load_model(module, "torch/class")
    assert type(module.weight) is Mine and module.weight.weight_loader is print
    assert not module.weight.requires_grad and not module.weight.any()


def test_a_class_that_cannot_be_kept_is_refused_by_name(store):
    tensorcast.torch.save_state_dict({"mine": torch.zeros(4)}, "torch/wrapped")
    module = HasTensors(mine=Wrapper(torch.ones(4)))
    with pytest.raises(RuntimeError, match="mine is of type Wrapper, .*assign=False"):
        tensorcast.torch.load_model(module, "torch/wrapped")
    assert type(module.mine) is Wrapper


class HasPositions(torch.nn.Module):
    def __init__(self, device):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2, device=device)
        self.register_buffer("positions", torch.arange(2, device=device), persistent=False)


def test_a_buffer_that_stays_on_meta_is_missing(store):
    tensorcast.torch.save_model(HasPositions("cpu"), "torch/positions")
    module = HasPositions("meta")
    with pytest.raises(RuntimeError, match=r"missing \['positions'\].*parameters_on_meta"):
        tensorcast.torch.load_model(module, "torch/positions")
    assert module.linear.weight.is_meta, "what raises changes nothing"
    assert tensorcast.torch.load_model(module, "torch/positions", strict=False) == (["positions"], [])
    with pytest.raises(RuntimeError, match="linear.weight.* are on the meta device"):
        tensorcast.torch.load_model(HasPositions("meta"), "torch/positions", assign=False, strict=False)


@pytest.mark.skipif(not hasattr(torch.nn.modules.module, "register_module_parameter_registration_hook"), reason="PyTorch before 2.0")
def test_buffers_keep_their_values_under_parameters_on_meta(store):
    trained = HasPositions("cpu")
    tensorcast.torch.save_model(trained, "torch/positions")
    with tensorcast.torch.parameters_on_meta():
        module = HasPositions("cpu")
        tied = Tied()
    assert module.linear.weight.is_meta and tied.head.weight is tied.embedding.weight
    assert not HasPositions("cpu").linear.weight.is_meta
    assert tensorcast.torch.load_model(module, "torch/positions") == ([], [])
    assert module.positions.tolist() == [0, 1] and torch.equal(module.linear.weight, trained.linear.weight)


def test_a_module_that_renames_its_state_is_filled(store):
    """Activation checkpointing does this: the name of its wrapper is in no state dict."""
    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.wrapped = torch.nn.Linear(2, 2)
            self._register_state_dict_hook(lambda module, state, *_: [state.update({k[len("wrapped."):]: state.pop(k)}) for k in list(state)] and None)

    trained, fresh = Wrapped(), Wrapped()
    tensorcast.torch.save_model(trained, "torch/renamed")
    assert tensorcast.torch.load_model(fresh, "torch/renamed") == ([], [])
    assert torch.equal(fresh.wrapped.weight, trained.wrapped.weight)
