"""A global store and two daemons with fake GPUs, as processes, for tests and benchmarks."""

import contextlib
import gc
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time

TREE = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("TENSORCAST_BINARY", TREE / "build/release/bin/tensorcast"))
START_SECONDS = 60


def _listens(path):
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


@contextlib.contextmanager
def leaving_no_leases(store, seconds):
    """At the end of the block its node must come to have no more leases than before, within so many seconds."""
    before = store.status().leases
    yield
    deadline = time.monotonic() + seconds
    while store.status().leases > before:
        gc.collect()
        assert time.monotonic() < deadline, "the test left leases"


class Cluster:
    """Nodes "a" and "b", or others. A context manager: at its end all processes and files are gone."""

    def __init__(self, host_pool="1GiB", import_roots="/", device_runtime="fake", origins="", environment=None, nodes=("a", "b")):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tc-python-"))
        self.processes = {}
        self.nodes = nodes
        self._commands = {}
        self._host_pool = host_pool
        self._import_roots = import_roots
        self._device_runtime = device_runtime
        self._origins = origins
        self._environment = {**os.environ, **(environment or {})}

    def __enter__(self):
        try:
            store = f"unix:{self.folder}/store.sock"
            self._start("store", "global-store", f"global_store.listen={store}", f"global_store.metadata_path={self.folder}/store/meta.db")
            self._await_socket("store", "store.sock")
            for name in self.nodes:
                self._start(
                    name,
                    "daemon",
                    f"daemon.name={name}",
                    f"daemon.state_dir={self.folder}/{name}",
                    f"daemon.global_store={store}",
                    f"daemon.import_roots={self._import_roots}",
                    f"daemon.host_pool={self._host_pool}",
                    f"daemon.device_runtime={self._device_runtime}",
                    f"daemon.origins=[{self._origins}]",
                )
            for name in self.nodes:
                self._await_socket(name, f"{name}/daemon.sock")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        subprocess.run(["rm", "-rf", str(self.folder)], check=True)

    def address(self, name):
        return f"unix:{self.folder}/{name}/daemon.sock"

    def trace_file(self, name):
        """The daemon's trace events in Chrome's format. They are complete after the daemon has ended."""
        return self.folder / f"{name}.trace.json"

    def stop(self, name):
        process = self.processes.pop(name)
        process.send_signal(signal.SIGTERM)
        process.wait(30)

    def kill(self, name):
        process = self.processes.pop(name)
        process.kill()
        process.wait(30)

    def start_again(self, name):
        self._start(name, *self._commands[name])
        self._await_socket(name, "store.sock" if name == "store" else f"{name}/daemon.sock")

    def restart_store(self):
        """Kills the global store, and starts it again. Returns once every node that runs has registered with it."""
        self.kill("store")
        self.start_again("store")
        names = {name for name in self.nodes if name in self.processes}
        deadline = time.monotonic() + START_SECONDS
        while not names <= self._registered():
            assert time.monotonic() < deadline, f"{names - self._registered()} did not come back"
            time.sleep(0.05)

    def _registered(self):
        command = [str(BINARY), "node", "ls", "--json", "--daemon", f"unix:{self.folder}/store.sock"]
        listed = subprocess.run(command, capture_output=True, text=True)
        return {node["name"] for node in json.loads(listed.stdout).get("nodes", [])} if listed.returncode == 0 else set()

    def _start(self, name, command, *settings):
        arguments = [str(BINARY), command, f"--trace-file={self.trace_file(name)}"]
        arguments += [word for setting in settings for word in ("--set", setting)]
        self._commands[name] = (command, *settings)
        log = open(self.folder / f"{name}.log", "a")
        self.processes[name] = subprocess.Popen(arguments, stdout=log, stderr=subprocess.STDOUT, env=self._environment)

    def _await_socket(self, name, path):
        deadline = time.monotonic() + START_SECONDS
        while not _listens(self.folder / path):
            if self.processes[name].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{name} did not start: {(self.folder / f'{name}.log').read_text()[-2000:]}")
            time.sleep(0.01)
