"""DTensors (FSDP2, tensor parallelism) and other tensors of torch without memory.

They need a newer PyTorch: `make check-engines` runs these tests with one.
"""

import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.tensor", reason="PyTorch before 2.5 has no DTensor")

import tensorcast  # noqa: E402

RANK = pathlib.Path(__file__).with_name("sharded_rank.py")


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_sharded_modules_are_loaded_and_whole_tensors_put(store, tmp_path, ranks):
    started = [subprocess.Popen([sys.executable, "-B", str(RANK), str(rank), str(ranks), str(tmp_path / "group")],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(ranks)]
    said = [rank.communicate(timeout=150)[0] for rank in started]
    assert [rank.returncode for rank in started] == [0] * ranks, said


def fake():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(4)


def functional():
    from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

    with FunctionalTensorMode():
        return FunctionalTensor.to_functional(torch.ones(4))


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("make", [fake, functional, lambda: torch._to_functional_tensor(torch.ones(4))])
def test_a_traced_tensor_is_refused_by_name(store, make):
    tensor = make()
    with pytest.raises(tensorcast.InvalidArgumentError, match='put tensor "mine": .*no memory of its own'):
        store.put({"mine": tensor}, key="sharded/none")


@pytest.mark.parametrize("transform", [torch.vmap, torch.func.grad, torch.func.functionalize])
def test_a_put_within_a_transform_is_refused_by_name(store, transform):
    def put(tensor):
        store.put({"mine": tensor}, key="sharded/none")
        return tensor.sum()

    with pytest.raises(tensorcast.InvalidArgumentError, match='put tensor "mine": .*no memory of its own'):
        transform(put)(torch.ones(4, 4))


def test_a_put_in_fake_mode_is_refused(store):
    from torch._subclasses.fake_tensor import FakeTensorMode

    tensor = torch.ones(4)
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(tensorcast.InvalidArgumentError, match='tensor "mine": '):
        store.put({"mine": tensor}, key="sharded/none")
