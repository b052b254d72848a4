"""Gets and puts of GPU memory on stand-in GPUs (tests/stand_ins), with which the module and the program are linked.

pytest does not find this file by itself: the test python_on_stand_in_gpus names it.
"""

import numpy as np
import pytest
from cluster import Cluster, leaving_no_leases

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
        with leaving_no_leases(connected, seconds=60):
            yield connected


def test_get_at_all_gpus_gives_weights_on_each(store):
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


def test_gpu_arrays_can_be_put(store):
    with store.get("gpus/x", device="cuda:1") as weights:
        put = store.put({"again": weights["x"], "beside": X[:3]})
    with store.get(put.artifact_id) as weights:
        np.testing.assert_array_equal(weights["again"].numpy(), X)
        np.testing.assert_array_equal(weights["beside"].numpy(), X[:3])


def test_live_weights_on_a_gpu_change_in_place(store):
    states = [X.copy()]
    puts = [store.put({"x": states[0]}, key="gpus/live")]
    with store.get("gpus/live", device="gpu:1", live=True) as weights:
        array = weights["x"]
        for step in (1, 2):  # the second time the lease is one that was taken over
            states.append(states[-1].copy())
            states[-1][::100] += step
            puts.append(store.put({"x": states[-1]}, key="gpus/live", base="auto"))
            weights.commit(puts[-1], timeout=60)
            assert weights.artifact_id == puts[-1].artifact_id and weights.device == "gpu:1"
            shown = store.put({"shown": array})  # of the memory that this process has open
            with store.get(shown.artifact_id) as copy:
                np.testing.assert_array_equal(copy["shown"].numpy(), states[-1])
        at = {replica.artifact_id for replica in store.replicas() if replica.location == "gpu:1"}
        assert puts[-1].artifact_id in at and not {put.artifact_id for put in puts[:-1]} & at


def test_advance_on_a_gpu_takes_memory_of_the_base(store):
    puts = [store.put({"x": X}, key="gpus/advance")]
    store.prefetch("gpus/advance", device="gpu:0")
    changed = X.copy()
    changed[::100] += 1
    puts.append(store.put({"x": changed}, key="gpus/advance", base="auto"))
    with store.get("gpus/advance", device="gpu:0", advance=True) as weights:
        shown = store.put({"shown": weights["x"]})
        with store.get(shown.artifact_id) as copy:
            np.testing.assert_array_equal(copy["shown"].numpy(), changed)
    assert puts[0].artifact_id not in {replica.artifact_id for replica in store.replicas() if replica.location == "gpu:0"}
