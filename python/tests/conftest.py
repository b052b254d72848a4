import contextlib
import pathlib
import signal
import time

import pytest
from cluster import Cluster, leaving_no_leases

import tensorcast as tc
from tensorcast import default_store


@pytest.fixture(scope="session")
def cluster():
    with Cluster() as running:
        yield running


@pytest.fixture
def store(cluster, monkeypatch):
    """A connection to node "a", which is also this process's default. The test must release every lease that it takes."""
    monkeypatch.setenv("TENSORCAST_DAEMON", cluster.address("a"))
    with tc.connect() as connected:
        with leaving_no_leases(connected, seconds=10):
            yield connected
            default_store.forget()


@pytest.fixture
def other(cluster):
    """A connection to node "b"."""
    with tc.connect(cluster.address("b")) as connected:
        yield connected


@pytest.fixture
def key(store, request):
    """A key of the test's own."""
    name = f"live/{request.node.name}"
    yield name
    with contextlib.suppress(tc.NotFoundError):
        store.unbind(name)


def is_stopped(pid):
    """Whether each thread of the process is stopped."""
    states = [stat.read_text().rpartition(")")[2].split()[0] for stat in pathlib.Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


@pytest.fixture
def silent(cluster, store):
    """A connection to a daemon that never answers."""
    with tc.connect(cluster.address("b")) as connected:
        cluster.processes["b"].send_signal(signal.SIGSTOP)
        try:
            while not is_stopped(cluster.processes["b"].pid):
                time.sleep(0.001)
            yield connected
        finally:
            cluster.processes["b"].send_signal(signal.SIGCONT)
        connected.status()
