"""Gets and puts of GPU memory, on a host whose GPUs are stand-ins (tests/stand_ins): the module and the program are linked with them.

Not of those that pytest finds by itself: the test python_on_stand_in_gpus names it.
"""

import asyncio
import gc
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from cluster import Cluster

import tensorcast as tc

X = np.arange(1 << 20, dtype=np.float32)


@pytest.fixture(scope="module")
def cluster():
    with Cluster(host_pool="512MiB", device_runtime="cuda") as running:
        yield running


@pytest.fixture
def store(cluster):
    with tc.connect(cluster.address("a")) as connected:
        connected.put({"x": X}, key="gpus/x")
        before = connected.status().leases
        yield connected
        deadline = time.monotonic() + 60
        while connected.status().leases > before:
            gc.collect()
            assert time.monotonic() < deadline, "the test left leases"


def test_a_get_at_all_gpus_is_at_each_of_them(store):
    at = store.get_at("gpus/x", "gpu:all", pin=True)
    assert list(at) == ["gpu:0", "gpu:1"]
    for ordinal, weights in enumerate(at.values()):
        assert weights.device == f"gpu:{ordinal}" and weights["x"].__dlpack_device__() == (2, ordinal)
        with pytest.raises(BufferError, match="GPU"):
            memoryview(weights["x"])
        with pytest.raises(tc.FailedPreconditionError, match="torch"):
            weights["x"].numpy()
    assert {replica.location for replica in store.replicas("gpus/x") if replica.pinned} == {"gpu:0", "gpu:1"}
    store.unpin("gpus/x")


def test_what_is_on_a_gpu_can_be_put(store):
    with store.get("gpus/x", device="cuda:1") as weights:
        put = store.put({"again": weights["x"], "beside": X[:3]})
    with store.get(put.artifact_id) as weights:
        np.testing.assert_array_equal(weights["again"].numpy(), X)
        np.testing.assert_array_equal(weights["beside"].numpy(), X[:3])


def test_a_get_at_one_gpu_is_a_lease_like_any_other(store):
    before = store.status().leases
    weights = store.get("gpus/x", device="cuda:1")
    assert weights.device == "gpu:1" and weights["x"].device == "gpu:1" and not weights.writable
    assert weights["x"].nbytes == X.nbytes and weights["x"].shape == X.shape
    kept = weights["x"].__dlpack__()
    weights.close()
    with pytest.raises(tc.ClosedError):
        weights["x"]
    assert store.status().leases == before + 1, "what was made of it keeps it"
    del kept

    async def again():
        return await store.get_async("gpus/x", device="gpu:0")

    assert asyncio.run(again()).device == "gpu:0"
    assert store.prefetch("gpus/x", device="gpu:1") in {replica.replica_id for replica in store.replicas("gpus/x")}


def test_what_has_no_place_there_is_refused_in_the_daemons_words(store):
    with pytest.raises(tc.Error, match="gpu:7"):
        store.get("gpus/x", device="gpu:7")
    big = np.zeros(160 << 20, np.uint8)  # the GPUs have 128 MiB
    artifact = store.put({"x": big}).artifact_id
    with pytest.raises(tc.ResourceExhaustedError, match="gpu:0"):
        store.get(artifact, device="gpu:0")
    with pytest.raises(tc.ResourceExhaustedError, match="gpu:"):
        store.get_at(artifact, "gpu:all")
    store.rm(artifact)


HOLDER = """
    import os, sys
    import tensorcast as tc
    store = tc.connect(sys.argv[1])
    weights = store.get("gpus/x", device="gpu:0")
    shown = weights["x"].__dlpack__()
    print("holds", flush=True)
    """


@pytest.mark.parametrize("end", ["sys.stdin.readline()", "", "os._exit(3)", "os.kill(os.getpid(), 9)"])
def test_a_process_that_ends_gives_its_gpu_memory_back(store, cluster, end):
    before = store.status().leases
    program = textwrap.dedent(HOLDER) + end
    with subprocess.Popen([sys.executable, "-B", "-c", program, cluster.address("a")], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "holds\n"
        holder.stdin.close()
        holder.wait(30)
    deadline = time.monotonic() + 30
    while store.status().leases > before:
        assert time.monotonic() < deadline


def test_a_forked_child_ends_no_lease_of_its_parent(store, cluster):
    before = store.status().leases
    child = """
    if os.fork() == 0:
        try:
            store.get("gpus/x", device="gpu:0")
        except tc.ForkedError:
            del shown
            weights.close()
            os._exit(7)
        os._exit(1)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
    sys.stdin.readline()
    """
    program = textwrap.dedent(HOLDER) + textwrap.dedent(child)
    with subprocess.Popen([sys.executable, "-B", "-c", program, cluster.address("a")], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as holder:
        assert [holder.stdout.readline() for _ in range(2)] == ["holds\n", "7\n"]
        assert store.status().leases == before + 1
        holder.stdin.close()
        assert holder.wait(30) == 0
    deadline = time.monotonic() + 30
    while store.status().leases > before:
        assert time.monotonic() < deadline


def test_a_torch_without_cuda_is_told_apart(store):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this torch has CUDA, whose GPUs are not the stand-ins")
    with store.get("gpus/x", device="gpu:0") as weights:
        for make in (weights.torch, lambda: weights.slice("x", 0)):
            with pytest.raises(tc.FailedPreconditionError, match="x is on gpu:0, and torch"):
                make()


def test_several_processes_have_one_copy_on_a_gpu(store, cluster):
    programs = [subprocess.Popen([sys.executable, "-B", "-c", textwrap.dedent(HOLDER) + "sys.stdin.readline()", cluster.address("a")],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    try:
        assert [program.stdout.readline() for program in programs] == ["holds\n"] * 4
        assert [replica.location for replica in store.replicas("gpus/x")].count("gpu:0") == 1
    finally:
        for program in programs:
            program.stdin.close()
            program.wait(30)
            program.stdout.close()


def test_a_get_at_all_gpus_that_fails_at_one_leaves_no_lease_at_another(store):
    first, second = (store.put({"x": np.full(80 << 20, n, np.uint8)}).artifact_id for n in range(2))
    with store.get(first, device="gpu:1"):
        before = store.status().leases
        for _ in range(5):
            with pytest.raises(tc.ResourceExhaustedError, match="at gpu:1: .*gpu:1"):
                store.get_at(second, "gpu:all")
        deadline = time.monotonic() + 30
        while store.status().leases > before:
            assert time.monotonic() < deadline, "a lease was left"
    for artifact in (first, second):
        store.rm(artifact)
