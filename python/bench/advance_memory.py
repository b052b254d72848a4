#!/usr/bin/env python3
"""Measures the memory that a daemon takes beyond one image while a get with advance=True brings the next version.

    PYTHONPATH=build/release/python/cp311 build/deps/python-tests/bin/python -B python/bench/advance_memory.py [--mib N]

Node "b" holds a version of bf16 weights, of which 1.4 % move by one representable value in the next one. It gets that with
advance=True. Three figures are compared with those before the get, when one image is there:

    pool       bytes of the host pool that are in use (status), the highest of samples
    memory     memory files of the daemon that have pages, and its anonymous memory, the highest sum of samples
    resident   VmHWM of the daemon, which the kernel keeps: no peak is missed

The bar is 64 MiB for each. It fails where the bytes came another way, or are not those of the version.
"""

import argparse
import os
import pathlib
import re
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

import numpy as np
from cluster import Cluster
from live_commits import step, weights

import tensorcast as tc

BAR_MIB = 64
KEY = "bench/advance"


class Daemon:
    """The memory of one process, as the kernel counts it."""

    def __init__(self, pid):
        self.folder = pathlib.Path(f"/proc/{pid}")

    def status(self, field):
        return int(re.search(rf"^{field}:\s+(\d+) kB$", (self.folder / "status").read_text(), re.MULTILINE)[1]) << 10

    def forget_peak(self):
        (self.folder / "clear_refs").write_text("5")

    def memory(self):
        files = {}
        for descriptor in (self.folder / "fd").iterdir():
            try:
                if os.readlink(descriptor).startswith("/memfd:"):
                    file = descriptor.stat()
                    files[file.st_ino] = file.st_blocks * 512
            except FileNotFoundError:
                continue  # closed meanwhile
        return sum(files.values()) + self.status("RssAnon")


class Peaks(threading.Thread):
    """The highest values of several functions, until it is told to end."""

    def __init__(self, *functions):
        super().__init__()
        self.functions = functions
        self.highest = [function() for function in functions]
        self.samples = 1
        self._ended = threading.Event()

    def run(self):
        while not self._ended.wait(0.002):
            self.highest = [max(before, function()) for before, function in zip(self.highest, self.functions)]
            self.samples += 1

    def end(self):
        self._ended.set()
        self.join()
        return self.highest


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024)
    arguments = parser.parse_args()
    random = np.random.default_rng(0)
    state = weights(random, arguments.mib << 20)
    with Cluster(host_pool=f"{2 * arguments.mib + 512}MiB") as cluster, tc.connect(cluster.address("a")) as trainer, \
            tc.connect(cluster.address("b")) as node, tc.connect(cluster.address("b")) as watcher:
        def used():
            return sum(pool.used_bytes for pool in watcher.status().pools if pool.location == "cpu")

        trainer.put(state, key=KEY, progress=False)
        node.prefetch(KEY)
        state = step(random, state)
        put = trainer.put(state, key=KEY, base="auto", require_difference=True, progress=False)
        daemon = Daemon(cluster.processes["b"].pid)
        daemon.forget_peak()
        before = [used(), daemon.memory(), daemon.status("VmRSS")]
        peaks = Peaks(used, daemon.memory)
        peaks.start()
        try:
            got = node.get(KEY, advance=True, progress=False)
        finally:
            highest = [*peaks.end(), daemon.status("VmHWM")]
        with got:
            lanes = {source["lane"]: source["bytes"] for source in got.transfer["sources"]}
            assert lanes.keys() <= {"advance", "difference"} and sum(lanes.values()) == got.nbytes, lanes
            assert got.artifact_id == put.artifact_id
            assert all(np.array_equal(array, state[name]) for name, array in got.numpy().items())
        print(f"{arguments.mib} MiB, a difference of {put.difference['image_bytes'] / 2**20:.1f} MiB, {peaks.samples} samples; bar {BAR_MIB} MiB")
        for name, was, peak in zip(("pool", "memory", "resident"), before, highest):
            print(f"{name + ':':10} {was / 2**20:8.1f} MiB before, {peak / 2**20:8.1f} at its peak: {(peak - was) / 2**20:+.1f} MiB")


if __name__ == "__main__":
    main()
