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
