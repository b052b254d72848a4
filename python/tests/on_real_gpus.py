"""Torch tensors on the real GPUs of this machine: `make gpu-check` runs these tests where PyTorch sees a GPU.

pytest does not find this file by itself, because most machines that run the tests have no GPU.
"""

import multiprocessing

import pytest
from cluster import Cluster, leaving_no_leases

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("PyTorch sees no GPU", allow_module_level=True)

import test_update_module  # noqa: E402

import tensorcast as tc  # noqa: E402
import tensorcast.torch  # noqa: E402

GPU = "cuda:0"


@pytest.fixture(scope="module")
def cluster():
    with Cluster(host_pool="2GiB", device_runtime="cuda") as running:
        yield running


@pytest.fixture
def store(cluster):
    with tc.connect(cluster.address("a")) as connected, leaving_no_leases(connected, seconds=60):
        yield connected


def tensors(seed, device="cpu"):
    """Of many dtypes and shapes, larger than a chunk in all."""
    torch.manual_seed(seed)
    made = {
        "embedding": torch.randn(4000, 1024).to(torch.bfloat16),
        "up": torch.randn(1024, 4096),
        "half": torch.randn(333, 77).to(torch.float16),
        "float8": torch.randn(512, 512).to(torch.float8_e4m3fn),
        "integers": torch.randint(-128, 127, (1001,), dtype=torch.int8),
        "flags": torch.randint(0, 2, (17,)).bool(),
        "steps": torch.tensor(12345),
        "empty": torch.zeros(0, 4),
    }
    return {name: tensor.to(device) for name, tensor in made.items()}


def same(given, wanted):
    return list(given) == list(wanted) and all(
        given[name].dtype == tensor.dtype and given[name].shape == tensor.shape
        and torch.equal(given[name].cpu().reshape(-1).view(torch.uint8), tensor.cpu().reshape(-1).view(torch.uint8))
        for name, tensor in wanted.items())


def changed(state, seed, share=0.014):
    """The next version: a share of the elements of each tensor of floating point moves by a little."""
    torch.manual_seed(seed)
    moved = {}
    for name, tensor in state.items():
        moved[name] = tensor.clone()
        if tensor.is_floating_point() and tensor.numel() and tensor.element_size() > 1:
            at = torch.rand(tensor.shape, device=tensor.device) < share
            moved[name][at] = (tensor[at].float() * 1.01 + 0.001).to(tensor.dtype)
    return moved


def test_tensors_put_from_a_gpu_are_those_of_a_get(store):
    state = tensors(1, GPU)
    store.put(state, key="gpu/put")
    with store.get("gpu/put") as weights:
        assert same(weights.torch(), state)


def test_a_get_at_a_gpu_gives_torch_tensors_there(store):
    state = tensors(2)
    store.put(state, key="gpu/get")
    with store.get("gpu/get", device=GPU) as weights:
        given = weights.torch()
        assert {str(tensor.device) for tensor in given.values()} == {GPU}
        assert same(given, state)
        del given


def test_live_weights_on_a_gpu_change_at_their_addresses(store):
    state = tensors(3)
    store.put(state, key="gpu/live")
    with store.get("gpu/live", device=GPU, live=True) as weights:
        shown = weights.torch()
        for seed in (4, 5):  # the second time the lease is one that was taken over
            state = changed(state, seed)
            target = store.put(state, key="gpu/live", base="auto")
            torch.cuda.synchronize()  # what compared the tensors has ended
            weights.commit(target, timeout=60)
            assert same(shown, state) and weights.artifact_id == target.artifact_id


def test_two_gets_at_a_gpu_share_the_memory_of_the_daemon(store):
    state = {"x": torch.randn(64 << 20)}
    store.put(state, key="gpu/shared")
    with store.get("gpu/shared", device=GPU) as first:
        free = torch.cuda.mem_get_info(0)[0]
        with store.get("gpu/shared", device=GPU) as second:
            given = [weights["x"].torch() for weights in (first, second)]
            assert given[0].data_ptr() == given[1].data_ptr()
            assert free - torch.cuda.mem_get_info(0)[0] < (64 << 20)  # the replica has four times that
            assert torch.equal(given[0], given[1])
            del given


def test_second_node_gets_a_replica_from_the_gpu_of_the_first(cluster, store):
    state = tensors(3)
    store.put(state, key="gpu/peer")
    store.prefetch("gpu/peer", device=GPU)
    with tc.connect(cluster.address("b")) as other, other.get("gpu/peer", device=GPU) as weights:
        assert same(weights.torch(), state)


def _sum_in_another_process(address, given):
    with tc.connect(address) as store, store.get("gpu/processes", device=GPU) as weights:
        given.put(float(weights["x"].torch().double().sum()))


def test_another_process_sees_the_tensors_of_a_gpu(cluster, store):
    state = {"x": torch.randn(1 << 20)}
    store.put(state, key="gpu/processes")
    with store.get("gpu/processes", device=GPU):
        context = multiprocessing.get_context("spawn")
        given = context.Queue()
        process = context.Process(target=_sum_in_another_process, args=(cluster.address("a"), given))
        process.start()
        assert given.get(timeout=120) == pytest.approx(float(state["x"].double().sum()))
        process.join(60)
        assert process.exitcode == 0


def test_a_model_on_a_gpu_computes_as_the_one_that_was_stored(store):
    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64)).to(GPU)
    given = torch.randn(8, 256, device=GPU)
    wanted = model(given)
    tensorcast.torch.save_model(model, "gpu/model", store=store)
    with tensorcast.torch.parameters_on_meta():
        other = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64))
    assert tensorcast.torch.load_model(other, "gpu/model", device=GPU, store=store) == ([], [])
    assert torch.equal(other(given), wanted)
    del other


class Model(test_update_module.Model):
    def forward(self, tokens):
        return self.head(self.norm(self.embedding(tokens))) @ torch.ones(500, 1, device=tokens.device)


def test_update_module_writes_under_a_captured_graph(store):
    torch.manual_seed(5)
    model = Model().eval().to(GPU)
    assert not model.up.weight.is_contiguous()
    first = {name: tensor.detach().clone() for name, tensor in model.state_dict().items() if name != "head.weight"}
    second = changed(first, 6)
    put = [store.put(state, key="gpu/update", base="auto") for state in (first, second)]
    assert put[1].difference is not None, put[1].no_difference

    tokens = torch.arange(100, device=GPU)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            model(tokens)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            captured = model(tokens)
    graph.replay()
    before = captured.clone()

    written = tensorcast.torch.update_module(model, "gpu/update", from_=put[0], verify=True, store=store)
    assert written.source == "differences" and written.whole_bytes < 1000
    assert all(torch.equal(tensor, second.get(name, second["embedding.weight"])) for name, tensor in model.state_dict().items())
    graph.replay()
    torch.cuda.synchronize()
    assert not torch.equal(captured, before)
    with torch.no_grad():
        assert torch.allclose(captured, model(tokens))
    store.unbind("gpu/update")


def test_versions_are_written_into_tensors_on_a_gpu(store):
    first = tensors(9)
    second = changed(first, 10)
    put = [store.put(state, key="gpu/into", base="auto") for state in (first, second)]
    own = {name: torch.zeros_like(tensor, device=GPU) for name, tensor in first.items()}
    with store.get(put[0].artifact_id, into=own) as weights:
        assert weights.written.source == "whole"
        assert same(own, first)
    addresses = [tensor.data_ptr() for tensor in own.values()]
    with store.get("gpu/into", into=own, from_=put[0]) as weights:
        assert weights.written.source == "differences"
        assert 0 < weights.written.elements and weights.written.whole_bytes < 1000
        assert same(own, second)
    assert [tensor.data_ptr() for tensor in own.values()] == addresses
    own["up"] = own["up"].t()
    with pytest.raises(tc.InvalidArgumentError, match='"up".*not contiguous'):
        store.get("gpu/into", into=own)
    store.unbind("gpu/into")


def test_next_version_reaches_a_gpu_as_a_difference(cluster, store):
    first = tensors(7)
    second = changed(first, 8)
    with tc.connect(cluster.address("b")) as other:
        put = store.put(first, key="gpu/next", base="auto")
        with other.get(put.artifact_id, device=GPU) as old:
            put = store.put(second, key="gpu/next", base="auto")
            assert put.difference is not None, put.no_difference
            with other.get("gpu/next", device=GPU) as new:
                assert {source["lane"] for source in new.transfer["sources"]} == {"difference"}
                assert same(old.torch(), first)
                assert same(new.torch(), second)
    store.unbind("gpu/next")


def test_tensors_stay_readable_when_the_daemon_is_killed():
    with Cluster(host_pool="512MiB", device_runtime="cuda", nodes=("a",)) as cluster:
        state = {"x": torch.randn(1 << 20)}
        with tc.connect(cluster.address("a")) as store:
            store.put(state, key="gpu/killed")
            with store.get("gpu/killed", device=GPU) as weights:
                given = weights["x"].torch()
                assert torch.equal(given.cpu(), state["x"])
                cluster.kill("a")
                assert torch.equal(given.cpu(), state["x"])
                del given
