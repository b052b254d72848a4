"""Modules of PyTorch: tensorcast.torch."""

import pytest

torch = pytest.importorskip("torch")

import tensorcast.torch  # noqa: E402


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


def test_a_module_is_copied_into_where_it_is_asked_to(stored):
    module = Tied().eval()
    held = module.embedding.weight
    assert tensorcast.torch.load_model(module, "torch/tied", assign=False) == ([], [])
    assert module.embedding.weight is held and same(module, stored)


def test_what_does_not_fit_is_said(stored):
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
    (lambda module: tensorcast.torch.load_model(None, "torch/tied"), "module is a torch.nn.Module, not None"),
    (lambda module: tensorcast.torch.save_model(module, None), "key is a str, not None"),
    (lambda module: tensorcast.torch.save_state_dict(None, "torch/none"), "tensors is a mapping"),
    (lambda module: tensorcast.torch.save_state_dict({"a": 3}, "torch/none"), 'tensor "a" is a torch.Tensor, not 3'),
    (lambda module: tensorcast.torch.save_state_dict({"a": torch.ones(3, device="meta")}, "torch/none"), "meta device"),
    (lambda module: tensorcast.torch.save_state_dict({"a": torch.eye(3).to_sparse()}, "torch/none"), "is not dense"),
    (lambda module: tensorcast.torch.state_dict("torch/tied", device=None), "device is a str"),
])
def test_what_makes_no_sense_is_refused_with_what_it_is(store, stored, call, what):
    with pytest.raises(tensorcast.InvalidArgumentError, match=what):
        call(stored)


def test_a_conjugate_is_not_the_tensor_whose_memory_it_has(store):
    tensor = torch.tensor([1 + 2j], dtype=torch.complex64)
    tensorcast.torch.save_state_dict({"a": tensor, "b": tensor.conj()}, "torch/conjugate")
    again = tensorcast.torch.state_dict("torch/conjugate")
    assert again["a"].tolist() == [1 + 2j] and again["b"].tolist() == [1 - 2j]


def test_a_device_may_be_torchs_own(stored):
    module = Tied().eval()
    tensorcast.torch.load_model(module, "torch/tied", device=torch.device("cpu"))
    assert same(module, stored)
