"""The sender of checkpoint-engine's protocol, against the package's own receiver.

The receiver is `update_weights_from_ipc` from the package's wheel. It runs here without a GPU, so its DeviceManager is a
double. `_extract_weights` is a double too (with the recorded signature), because PyTorch 1.13 has no `dtype.itemsize`. The
state machine, the sockets and the pickles are the package's own.
"""

import importlib.util
import inspect
import json
import math
import pickle
import subprocess
import sys
import threading
import types
import zipfile

import numpy as np
import pytest
import recorded

torch = pytest.importorskip("torch")
zmq = pytest.importorskip("zmq")

from tensorcast.plugins import checkpoint_engine  # noqa: E402

RECORDING = json.loads((recorded.INTERFACES / "checkpoint_engine.json").read_text())
TENSORS = {
    "big": np.arange(5000, dtype=np.float32).reshape(50, 100),
    **{f"layer.{n}": np.full(300, n, np.int64) for n in range(20)},
    "none": np.zeros((0, 4), np.float32),
    "scalar": np.array(2.5),
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    wanted = f"checkpoint-engine=={RECORDING['version']}"
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", wanted, "-d", str(folder)], check=True)
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    return path


def test_the_recording_is_that_of_the_wheel(wheel):
    subprocess.run([sys.executable, str(recorded.INTERFACES / "check.py"), "checkpoint_engine.json", str(wheel)], check=True)


@pytest.fixture
def worker(wheel, monkeypatch):
    nothing = types.SimpleNamespace(synchronize=lambda: None, ipc_collect=lambda: None, empty_cache=lambda: None)
    package, devices = types.ModuleType("checkpoint_engine"), types.ModuleType("checkpoint_engine.device_utils")
    devices.DeviceManager = lambda: types.SimpleNamespace(device_module=nothing)
    devices.npu_generate_uuid = None
    monkeypatch.setitem(sys.modules, "checkpoint_engine", package)
    monkeypatch.setitem(sys.modules, "checkpoint_engine.device_utils", devices)
    spec = importlib.util.spec_from_file_location("checkpoint_engine.worker", wheel.parent / "checkpoint_engine/worker.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def extract(payload, buffer):
        weights = []
        for item in payload:
            size = math.prod(item["shape"]) * torch.empty(0, dtype=item["dtype"]).element_size()
            tensor = buffer[item["offset"] : item["offset"] + size].view(item["dtype"]).view(item["shape"])
            weights.append((item["name"], tensor))
        return weights

    assert list(inspect.signature(module._extract_weights).parameters) == list(inspect.signature(extract).parameters)
    monkeypatch.setattr(module, "_extract_weights", extract)
    return module


class Engine(threading.Thread):
    """A rank of an engine that receives weights."""

    def __init__(self, worker, handle, fail_at=None):
        super().__init__(daemon=True)
        self.worker, self.handle, self.fail_at = worker, handle, fail_at
        self.weights, self.buckets, self.finished, self.error = {}, 0, False, None

    def run(self):
        try:
            self.worker.update_weights_from_ipc(zmq.Context.instance(), self.handle, 0, run=self.load, post_hook=self.finish)
        except Exception as error:
            self.error = error

    def load(self, weights):
        if self.buckets == self.fail_at:
            raise ValueError("no room in this engine")
        self.buckets += 1
        self.weights.update({name: tensor.clone() for name, tensor in weights})

    def finish(self):
        self.finished = True


@pytest.fixture
def handle(tmp_path):
    return f"ipc://{tmp_path}/engine.sock"


@pytest.fixture
def key(store):
    store.put(TENSORS, key="checkpoint/step-1")
    return "checkpoint/step-1"


def test_an_engine_takes_weights_from_the_store(store, key, worker, handle):
    engine = Engine(worker, handle)
    engine.start()
    sent = checkpoint_engine.send_weights(key, handle, device="cpu", bucket_bytes=8192, timeout_s=60, store=store)
    engine.join(60)
    assert engine.error is None and engine.finished and engine.buckets > 3
    assert sent == sum(tensor.nbytes for tensor in TENSORS.values())
    assert engine.weights.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert np.array_equal(np.array(engine.weights[name].tolist(), tensor.dtype).reshape(tensor.shape), tensor), name


def test_an_engine_that_fails_says_why(store, key, worker, handle):
    engine = Engine(worker, handle, fail_at=1)
    engine.start()
    with pytest.raises(checkpoint_engine.EngineError, match="no room in this engine"):
        checkpoint_engine.send_weights(key, handle, device="cpu", bucket_bytes=8192, timeout_s=60, store=store)
    engine.join(60)
    assert isinstance(engine.error, RuntimeError) and not engine.finished


def test_an_engine_that_cannot_open_the_buffer_says_why(store, key, handle, worker, monkeypatch):
    monkeypatch.setattr(checkpoint_engine, "open_host_buffer", refuse)
    engine = Engine(worker, handle)
    engine.start()
    with pytest.raises(checkpoint_engine.EngineError, match="this engine maps nothing"):
        checkpoint_engine.send_weights(key, handle, device="cpu", timeout_s=60, store=store)
    engine.join(60)
    assert not engine.weights


def refuse(*_):
    raise OSError("this engine maps nothing")


def test_a_silent_engine_ends_in_a_timeout(store, key, handle):
    with pytest.raises(TimeoutError, match="did not answer"):
        checkpoint_engine.send_weights(key, handle, device="cpu", timeout_s=0.1, store=store)


def test_messages_are_those_of_the_protocol(store, key, handle):
    """Checks the messages themselves against the fields of the recording."""
    fields = set(RECORDING["modules"]["checkpoint_engine.worker"]["FlattenedTensorMetadata"])
    received = []

    def listen():
        socket = zmq.Context.instance().socket(zmq.REP)
        socket.connect(handle)
        while received.count(None) < 2:
            received.append(pickle.loads(socket.recv()))
            socket.send(b"")
        socket.close()

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    checkpoint_engine.send_weights(key, handle, device="cpu", bucket_bytes=8192, timeout_s=60, store=store)
    thread.join(60)
    opener, *buckets, last, after = received
    assert callable(opener[0]) and len(opener[1]) > 6 and (last, after) == (None, None)
    assert all(set(item) == fields and item["offset"] % 256 == 0 for bucket in buckets for item in bucket)
