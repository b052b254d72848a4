"""The first steps of a new user: no daemon, no configuration, a key in place of an id."""

import threading

import numpy as np
import pytest
from cluster import Cluster
from safetensors.numpy import save_file

import tensorcast as tc


@pytest.fixture(scope="module")
def bare():
    """A cluster of daemons that import nothing by path."""
    with Cluster(host_pool="256MiB", import_roots="") as running:
        yield running


@pytest.fixture
def store(bare):
    with tc.connect(bare.address("a")) as connected:
        yield connected


def test_connect_fails_at_once_when_no_daemon_is_there(tmp_path):
    socket = f"unix:{tmp_path}/daemon.sock"
    with pytest.raises(tc.UnavailableError, match=f"connect to {socket}: no daemon listens there; start a daemon with"):
        tc.connect(socket, timeout=3600)  # a test that waited would take an hour


def test_connect_waits_for_a_daemon_when_asked_to():
    cluster = Cluster(host_pool="256MiB")
    starter = threading.Thread(target=cluster.__enter__)
    starter.start()
    try:
        with tc.connect(cluster.address("b"), wait=60) as store:
            assert store.status().name == "b"
    finally:
        starter.join()
        cluster.__exit__()


def test_put_of_a_file_needs_no_import_roots(store, tmp_path):
    save_file({"a": np.arange(1000, dtype=np.float32)}, tmp_path / "model.safetensors")
    for source in (tmp_path / "model.safetensors", str(tmp_path)):
        store.put(source, "first/file")
        assert store.get("first/file")["a"].numpy().sum() == np.arange(1000, dtype=np.float32).sum()


def test_put_of_a_file_that_is_not_there_says_so(store, tmp_path):
    with pytest.raises(tc.NotFoundError, match="none.safetensors"):
        store.put(tmp_path / "none.safetensors")
    with pytest.raises(tc.InvalidArgumentError, match="not a regular file"):
        store.put("/dev/zero")


def test_key_is_as_good_as_an_id(store):
    put = store.put({"a": np.ones(8)}, "first/one")
    assert store.bind("first/two", "first/one").artifact_id == put.artifact_id
    assert store.explain("first/two").hops
    store.pin("first/two")
    store.unpin("first/two")
    store.evict("first/two", force=True)
    assert not store.replicas("first/one")
    store.unbind("first/two")
    store.rm("first/one")
