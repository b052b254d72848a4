"""Modules of PyTorch that stay where they are: tensorcast.torch.update_module."""

import pathlib
import signal
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")

from updating_process import SHAPES, Shared, files_of  # noqa: E402

import tensorcast as tc  # noqa: E402
import tensorcast.torch  # noqa: E402

update_module = tensorcast.torch.update_module


class Model(torch.nn.Module):
    """Tied, transposed, of several dtypes, with a buffer and a scalar."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(500, 64)
        self.head = torch.nn.Linear(64, 500, bias=False)
        self.head.weight = self.embedding.weight
        self.up = torch.nn.Linear(64, 128)
        self.up.weight = torch.nn.Parameter(torch.randn(64, 128).t())
        self.gains = torch.nn.Parameter(torch.randn(300, 7).to(torch.bfloat16))
        self.norm = torch.nn.BatchNorm1d(64)


def step(module, seed, changed=0.02):
    """Moves a part of the elements of each floating-point tensor by a little."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            moved = torch.rand(parameter.shape) < changed
            parameter[moved] = (parameter[moved].float() * 1.01 + 0.001).to(parameter.dtype)
        module.norm.num_batches_tracked += 1
    return module


def state_of(module):
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def same(module, state):
    return all(torch.equal(tensor, state[name]) for name, tensor in module.state_dict().items())


@pytest.fixture
def versions(store):
    """A module that holds the first of two versions, both as states, and what their puts returned."""
    torch.manual_seed(0)
    module = Model()
    first = state_of(module)
    put = [store.put({name: tensor for name, tensor in first.items() if name != "head.weight"}, key="torch/live", base="auto")]
    second = state_of(step(module, 1))
    put.append(store.put({name: tensor for name, tensor in second.items() if name != "head.weight"}, key="torch/live", base="auto"))
    assert put[1].difference is not None
    module.load_state_dict(first)
    yield module, first, second, put
    store.unbind("torch/live")


def test_changed_elements_are_written_where_the_parameters_lie(versions):
    module, first, second, put = versions
    addresses = [parameter.data_ptr() for parameter in module.parameters()]
    assert not module.up.weight.is_contiguous()
    written = update_module(module, "torch/live", from_=put[0], verify=True)
    assert (written.source, written.artifact_id) == ("differences", put[1].artifact_id)
    tensors = [name for name in second if name != "head.weight"]
    assert written.elements <= sum(int((first[name] != second[name]).sum()) for name in tensors) < sum(second[name].numel() for name in tensors) / 20
    assert same(module, second)
    assert [parameter.data_ptr() for parameter in module.parameters()] == addresses
    assert module.head.weight is module.embedding.weight
    # Again, and back.
    assert update_module(module, "torch/live", from_=written).elements == 0
    assert update_module(module, put[0].artifact_id, from_=written, verify=True).source == "differences"
    assert same(module, first)


def test_without_from_everything_is_written(versions):
    module, _, second, _ = versions
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    assert update_module(module, "torch/live", verify=True).source == "whole"
    assert same(module, second)


def test_gradients_and_optimizers_keep_their_parameters(versions):
    module, _, second, put = versions
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    update_module(module, "torch/live", from_=put[0])
    module.norm.train(False)
    module.head(module.norm(module.embedding(torch.arange(10)))).sum().backward()
    optimizer.step()
    assert not torch.equal(module.embedding.weight, second["embedding.weight"])


def test_verify_names_parameters_that_differ(versions):
    module, _, second, put = versions
    with torch.no_grad():
        module.embedding.weight[3, 3] += 1  # what the difference does not describe
        module.up.weight[5, 5] += 1
    # An element that the version changes is written, whatever was there: then this one would not differ.
    with pytest.raises(tc.DataLossError) as raised:
        update_module(module, "torch/live", from_=put[0], verify=True)
    assert "embedding.weight (tied to head.weight)" in str(raised.value) or "head.weight (tied to embedding.weight)" in str(raised.value)
    assert "up.weight (transposed)" in str(raised.value) and "gains" not in str(raised.value)
    assert update_module(module, "torch/live", from_=put[0], verify=True).source == "whole"
    assert same(module, second)


def test_update_that_ended_early_is_finished_by_the_same_call(versions):
    module, first, second, put = versions
    with pytest.raises(tc.DeadlineExceededError):
        update_module(module, "torch/live", from_=put[0], timeout=0)
    for seed in range(4):
        torch.manual_seed(seed)
        with torch.no_grad():  # any part of the elements was written
            for name, tensor in module.state_dict(keep_vars=True).items():
                tensor.copy_(torch.where(torch.rand(tensor.shape) < 0.5, first[name], second[name]))
        assert update_module(module, "torch/live", from_=put[0], verify=True).source == "differences"
        assert same(module, second)


def test_failed_update_is_remembered_for_the_next_version(versions, store, monkeypatch):
    """Elements that the second version changed and the third has as the first are not between first and third."""
    module, first, second, put = versions
    from tensorcast import indexed

    def fail(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(indexed, "write", fail)  # the packed tensors are written, the transposed is not
        with pytest.raises(KeyboardInterrupt):
            update_module(module, "torch/live", from_=put[0])
    assert torch.equal(module.gains, second["gains"]) and torch.equal(module.up.weight, first["up.weight"])
    third = {name: tensor.clone() for name, tensor in first.items() if name != "head.weight"}
    third["gains"][0, 0] += 1
    store.put(third, key="torch/live", base=put[0].artifact_id)
    update_module(module, "torch/live", from_=put[0], verify=True)
    assert same(module, {**third, "head.weight": third["embedding.weight"]})


def test_tied_parameters_that_differ_in_the_store_are_named(store):
    module = Model()
    state = state_of(module)
    state["head.weight"][0, 0] += 1
    put = store.put(state)
    with pytest.raises(RuntimeError, match="embedding.weight and head.weight are one parameter"):
        update_module(module, put.artifact_id)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda module: module.register_buffer("mine", torch.zeros(1)), "missing .'mine'"),
        (lambda module: module.__delattr__("gains"), "unexpected .'gains'"),
        (lambda module: setattr(module, "gains", torch.nn.Parameter(torch.zeros(300, 7))), "gains is torch.float32.*bfloat16"),
        (lambda module: setattr(module, "gains", torch.nn.Parameter(torch.zeros(7, 300, dtype=torch.bfloat16))), r"gains is .*\(7, 300\)"),
        (lambda module: setattr(module, "gains", torch.nn.Parameter(torch.empty(300, 7, dtype=torch.bfloat16, device="meta"))), "gains has no memory"),
        (lambda module: setattr(module, "gains", torch.nn.Parameter(torch.zeros(1, 1, dtype=torch.bfloat16).expand(300, 7))), "gains is expanded"),
    ],
)
def test_modules_that_do_not_fit_are_refused(versions, change, message):
    module, _, _, put = versions
    change(module)
    before = state_of(module) if "no memory" not in message else None
    with pytest.raises(RuntimeError, match=message):
        update_module(module, "torch/live", from_=put[0])
    assert before is None or same(module, before)


# Processes that are killed while they write memory that outlives them.


@pytest.fixture
def shared(store, tmp_path):
    """Two versions, and a folder in which the files of a module hold the first."""
    torch.manual_seed(5)
    first = {name: torch.randn(shape).to(torch.bfloat16) for name, shape in SHAPES.items()}
    second = {name: torch.where(torch.rand(tensor.shape) < 0.02, tensor + 1, tensor) for name, tensor in first.items()}
    puts = [store.put(state, key="torch/shared", base="auto") for state in (first, second)]
    for name, file in files_of(tmp_path).items():
        file.write_bytes(bytes(first[name].numel() * 2))
    module = Shared(files_of(tmp_path))
    module.load_state_dict(first)
    yield module, tmp_path, (first, second), puts
    store.unbind("torch/shared")


def start(store, folder, *arguments):
    program = pathlib.Path(__file__).with_name("updating_process.py")
    return subprocess.Popen([sys.executable, "-B", str(program), store.daemon, str(folder), *arguments], stdout=subprocess.PIPE)


def test_process_that_dies_between_two_tensors(store, shared):
    module, folder, (first, second), puts = shared
    process = start(store, folder, "once", "torch/shared", puts[0].artifact_id)
    assert process.wait(60) == -signal.SIGBUS
    process.stdout.close()
    assert not torch.equal(module.a, first["a"]) and torch.equal(module.b, first["b"])
    assert update_module(module, "torch/shared", from_=puts[0], verify=True).source == "differences"
    assert same(module, second)


def test_process_that_is_killed_anywhere(store, shared):
    module, folder, states, puts = shared
    torn = 0
    for attempt in range(6):
        process = start(store, folder, "on-and-on", puts[1].artifact_id, puts[0].artifact_id)
        assert process.stdout.readline() == b"running\n"
        end = time.monotonic() + 0.1 + attempt * 0.013
        while time.monotonic() < end:
            pass
        process.kill()
        process.wait()
        process.stdout.close()
        torn += not any(same(module, state) for state in states)
        wanted = attempt % 2
        assert update_module(module, puts[wanted].artifact_id, from_=puts, verify=True).source == "differences"
        assert same(module, states[wanted])
        update_module(module, puts[0].artifact_id, from_=puts[wanted])
    print(f"{torn} of 6 were torn")
