"""How a program finds its daemon, which names the daemon may have, and what closing a store does."""

import pathlib
import threading

import numpy as np
import pytest

import tensorcast as tc
from tensorcast import errors


def test_package_tells_its_version():
    cmake = (pathlib.Path(__file__).resolve().parents[2] / "CMakeLists.txt").read_text()
    assert f"project(tensorcast VERSION {tc.__version__} " in cmake


def test_every_exception_is_exported():
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.Error)}
    assert {kind.__name__ for kind in kinds} <= set(tc.__all__)
    assert all(getattr(tc, kind.__name__) is kind for kind in kinds)


def test_address_comes_from_the_environment(cluster, monkeypatch):
    monkeypatch.setenv("TENSORCAST_DAEMON", cluster.address("b"))
    with tc.connect() as store:
        assert store.status().name == "b"
    monkeypatch.setenv("TENSORCAST_DAEMON", "/nowhere/daemon.sock")
    with pytest.raises(tc.UnavailableError, match="/nowhere/daemon.sock"):
        tc.connect()


def test_address_may_be_the_path_of_a_socket(cluster, monkeypatch):
    path = cluster.address("b").removeprefix("unix:")
    monkeypatch.setenv("TENSORCAST_DAEMON", path)
    monkeypatch.chdir(pathlib.Path(path).parent)
    for daemon in (None, path, pathlib.Path(path), pathlib.Path("daemon.sock"), "./daemon.sock"):
        with tc.connect(daemon) as store:
            assert store.daemon == cluster.address("b") and store.status().name == "b"


def test_store_tells_whether_a_key_is_bound(store):
    store.put({"x": np.arange(2)}, key="connecting/in")
    assert "connecting/in" in store and "connecting/out" not in store
    with pytest.raises(tc.InvalidTypeError):
        assert 3 in store


def test_closing_a_store_ends_its_watches(cluster):
    store = tc.connect(cluster.address("a"))
    seen = threading.Event()
    ended = []
    store.put({"x": np.arange(2)}, key="connecting/watched")

    def follow():
        for _ in store.watch("connecting/watched"):
            seen.set()
        ended.append(True)

    following = threading.Thread(target=follow)
    following.start()
    assert seen.wait(30)
    store.close()
    following.join(30)
    assert ended == [True]
    with pytest.raises(tc.ClosedError):
        store.watch("connecting/watched")


@pytest.mark.parametrize("call", [
    lambda store: store.rm("connecting/none", timeout=0.2),
    lambda store: store.replicate("connecting/none", "a", timeout=0.2),
    lambda store: store.replicas("connecting/none", timeout=0.2),
    lambda store: store.replication_tasks("connecting/none", timeout=0.2),
], ids=["rm", "replicate", "replicas", "replication_tasks"])
def test_timeout_covers_resolving_the_key(silent, call):
    with pytest.raises(tc.DeadlineExceededError):
        call(silent)


class Recording:
    """A native client that records the options of each call."""

    def __init__(self, client):
        self.client = client
        self.options = []

    def __getattr__(self, name):
        def call(*arguments, options, **named):
            self.options.append(options)
            return getattr(self.client, name)(*arguments, options=options, **named)

        return call


@pytest.mark.parametrize("call", [
    lambda store: store.pin("connecting/steps", timeout=30),
    lambda store: store.unpin("connecting/steps", timeout=30),
    lambda store: store.replicate("connecting/steps", "a", timeout=30),
    lambda store: store.explain(timeout=30),
    lambda store: store.rm("connecting/steps", timeout=30),
], ids=["pin", "unpin", "replicate", "explain", "rm"])
def test_steps_of_a_call_share_its_deadline(store, call):
    store.put({"x": np.frombuffer(b"the steps of a call", np.uint8)}, key="connecting/steps")
    recording = Recording(store.native)
    store._client, client = recording, store._client
    try:
        call(store)
    finally:
        store._client = client
    assert len(recording.options) > 1 and len(set(map(id, recording.options))) == 1


class Device:
    """A double of torch.device."""

    def __init__(self, type, index=None):
        self.type, self.index = type, index


def devices():
    try:
        from torch import device
    except ImportError:
        device = Device
    return [(device("cpu"), "cpu"), (device("cpu", 0), "cpu"), (device("cuda"), "gpu:0"), (device("cuda", 3), "gpu:3")]


@pytest.mark.parametrize("device, location", devices(), ids=str)
def test_devices_of_torch_are_devices_of_the_store(store, device, location):
    def taken(call):
        """The result of the call, or the text of its error, which names the location."""
        try:
            return call()
        except tc.Error as error:
            return str(error)

    put = store.put({"x": np.arange(5)}, key="connecting/device")
    if location == "cpu":
        assert store.get("connecting/device", device=device).device == "cpu"
        assert list(store.get_at("connecting/device", device)) == list(store.get_at("connecting/device", [device])) == ["cpu"]
        assert store.prefetch("connecting/device", device=device) == put.replica_id
        assert store.put({"x": np.arange(5)}, device=device).replica_id == put.replica_id
    for call in (lambda at: store.replicate("connecting/device", "b", device=at)[0].location,
                 lambda at: store.get("connecting/none", device=at),
                 lambda at: store.prefetch("connecting/none", device=at)):
        assert taken(lambda: call(device)) == taken(lambda: call(location))


def test_cuda_is_the_current_device_of_torch(monkeypatch):
    from tensorcast import arguments

    class Cuda:
        is_initialized = staticmethod(lambda: True)
        current_device = staticmethod(lambda: 2)

    monkeypatch.setitem(__import__("sys").modules, "torch", type("torch", (), {"cuda": Cuda}))
    assert arguments.location("cuda") == arguments.location(Device("cuda")) == "gpu:2"
    assert arguments.location("cuda:1") == "gpu:1"
