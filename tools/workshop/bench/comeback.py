#!/usr/bin/env python3
"""Measures how soon a killed daemon serves its host memory again (daemon/keeper), beside the limits: `make bench-comeback`.

One daemon runs on this machine, with a keeper and four models of a quarter of the size each. Each round kills the daemon with SIGKILL, starts
it again, gets the first model as soon as the daemon listens, and then reads the status until every model is verified. Times count from the
start of the daemon's process, and include the start of the commands. Exits with 1 if a figure is above its limit.

    tools/workshop/bench/comeback.py --binary build/release/bin/tensorcast [--rounds 5] [--gib 4]
"""

import argparse
import datetime
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

MODELS = 4
PATIENCE = 60  # seconds; a step that takes longer hangs
MAX_FIRST = 0.3
MAX_ALL = 1.5


class Node:
    def __init__(self, options, folder):
        self.binary, self.folder = options.binary, pathlib.Path(folder)
        self.address = f"unix:{self.folder}/a/daemon.sock"
        self.settings = [f"daemon.state_dir={self.folder}/a", "daemon.listen=127.0.0.1:0", "security.insecure=true", f"daemon.import_roots={self.folder}",
                         f"daemon.host_pool={options.gib + 2}GiB", "daemon.keep_pool=keeper", "daemon.keep_pool_for=30s",
                         "daemon.device_runtime=none"]
        self.daemon = None

    def start(self):
        log = open(self.folder / "daemon.log", "ab")
        command = [self.binary, "daemon"]
        for setting in self.settings:
            command += ["--set", setting]
        self.daemon = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "XDG_STATE_HOME": str(self.folder)})
        return time.monotonic()

    def kill(self):
        self.daemon.send_signal(signal.SIGKILL)
        self.daemon.wait()

    def run(self, *arguments):
        return subprocess.run([self.binary, *arguments, "--daemon", self.address], capture_output=True, text=True, check=False)

    def until(self, what, *arguments, holds=lambda done: done.returncode == 0):
        deadline = time.monotonic() + PATIENCE
        while not holds(done := self.run(*arguments)):
            if time.monotonic() > deadline:
                raise SystemExit(f"comeback: {what}: not within {PATIENCE} s: {done.stderr}")
            time.sleep(0.01)
        return done

    def await_listening(self):
        """Polls the socket: a command that finds no daemon would retry later than this."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with socket.socket(socket.AF_UNIX) as connection:
                if connection.connect_ex(f"{self.folder}/a/daemon.sock") == 0:
                    return
            time.sleep(0.002)
        raise SystemExit(f"comeback: the daemon does not listen within {PATIENCE} s")

    def status(self):
        return json.loads(self.until("a status", "status", "--json").stdout)["daemon"]


def all_verified(done):
    if done.returncode != 0:
        return False
    kept = json.loads(done.stdout)["daemon"].get("kept_pool", {})
    return kept.get("replicas", 0) == MODELS and kept.get("waiting", 0) == 0


def comeback(node):
    node.kill()
    begin = node.start()
    node.await_listening()
    node.until("the first attach", "get", "k0")
    first = time.monotonic() - begin
    node.until("all verified", "status", "--json", holds=all_verified)
    everything = time.monotonic() - begin
    status = node.status()
    if status["kept_pool"].get("mismatched", 0):
        raise SystemExit(f"comeback: {status['kept_pool']}")
    pulled = sum(int(lane.get("bytes_received", 0)) for lane in status.get("lanes", []))
    pulled += sum(int(one.get("bytes_total", 0)) for one in status.get("recent_transfers", []))
    return first, everything, pulled


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gib", type=int, default=4)
    options = parser.parse_args()
    options.binary = os.path.abspath(options.binary)
    print(f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC, {options.gib} GiB in {MODELS} models, {options.rounds} rounds")
    with tempfile.TemporaryDirectory(prefix="tc-comeback-") as folder:
        node = Node(options, folder)
        node.start()
        try:
            node.until("the daemon's start", "status")
            for model in range(MODELS):
                path = f"{folder}/m.safetensors"
                subprocess.run([options.binary, "make-model", path, "--size", f"{options.gib * 1024 // MODELS}MiB", "--seed", str(model + 1)],
                               check=True, stdout=subprocess.DEVNULL)
                put = node.run("put", path, "--key", f"k{model}")
                if put.returncode != 0:
                    raise SystemExit(f"comeback: {put.stderr}")
                os.remove(path)
            rounds = [comeback(node) for _ in range(options.rounds)]
        finally:
            node.daemon.terminate()
            node.daemon.wait()
    firsts, alls, pulled = zip(*rounds)
    print(f"{'':24}{'median':>8}{'worst':>8}{'asked':>8}")
    print(f"{'first attach, s':24}{statistics.median(firsts):8.2f}{max(firsts):8.2f}{MAX_FIRST:8.2f}")
    print(f"{'all verified, s':24}{statistics.median(alls):8.2f}{max(alls):8.2f}{MAX_ALL:8.2f}")
    print(f"{'bytes pulled again':24}{statistics.median(pulled):8.0f}{max(pulled):8d}{0:8d}")
    kept = statistics.median(firsts) <= MAX_FIRST and statistics.median(alls) <= MAX_ALL and max(pulled) == 0
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
