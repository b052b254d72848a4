import gc
import time

import pytest
from cluster import Cluster

import tensorcast as tc
from tensorcast import default_store


@pytest.fixture(scope="session")
def cluster():
    with Cluster() as running:
        yield running


@pytest.fixture
def store(cluster, monkeypatch):
    """A connection to node "a", which is this process's default, too. The test gives back every lease it takes."""
    monkeypatch.setenv("TENSORCAST_DAEMON", cluster.address("a"))
    with tc.connect() as connected:
        before = connected.status().leases
        yield connected
        default_store.forget()
        deadline = time.monotonic() + 10
        while connected.status().leases > before:
            gc.collect()
            assert time.monotonic() < deadline, "the test left leases"
