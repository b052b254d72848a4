#!/usr/bin/env python3
"""Measures the cost of the Python package: each figure beside a reference in the same run, as medians of alternating pairs.

    PYTHONPATH=build/release/python/cp311 build/deps/python-tests/bin/python -B python/bench/bench.py [--pairs N] [NAME...]

Starts a global store and two daemons of its own. Needs 6 GiB of memory, and 6 GiB of disk in the temporary folder. A ratio
above 1 means that the store is faster than the reference.
"""

import argparse
import asyncio
import contextlib
import gc
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

import safetensors.torch
import torch
from cluster import Cluster

import tensorcast as tc
import tensorcast.safetensors.torch
from tensorcast import calls, default_store

TENSORS = 300
MODEL_BYTES = 1 << 30
PAGE = 4096


def model(seed=0):
    shape = MODEL_BYTES // TENSORS // PAGE, PAGE // 4
    return {f"layer.{n}.weight": torch.full(shape, n + seed, dtype=torch.float32) for n in range(TENSORS)}


def timed(work):
    """The seconds that `work` takes. Its result is deleted after the measurement."""
    gc.collect()
    begun = time.perf_counter()
    made = work()
    seconds = time.perf_counter() - begun
    del made
    return seconds


def forget_pages(path):
    """Drops the file from the page cache, so that the next read comes from the disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def touch(tensors):
    """Reads one byte of every page."""
    return sum(int(tensor.view(-1).view(torch.uint8)[::PAGE].sum()) for tensor in tensors.values())


# By then the call runs: a put copies, the others wait for the daemon.
UNDER_WAY_SECONDS = 0.2


def interrupted(work):
    """The seconds from SIGINT to the exception in the main thread."""
    sent = []

    def interrupt():
        sent.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(UNDER_WAY_SECONDS, interrupt)
    timer.start()
    try:
        work()
    except KeyboardInterrupt:
        return time.perf_counter() - sent[0]
    raise RuntimeError("it ended by itself")


async def cancelled(work):
    """The seconds from a task's cancel() to its end."""
    task = asyncio.ensure_future(work())
    await asyncio.sleep(UNDER_WAY_SECONDS)
    begun = time.perf_counter()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
        raise RuntimeError("it ended by itself")
    return time.perf_counter() - begun


class Bench:
    def __init__(self, cluster, store, folder, pairs):
        self.cluster, self.store, self.pairs = cluster, store, pairs
        self.path = folder / "model.safetensors"
        self.unknown = folder / "unknown.safetensors"
        safetensors.torch.save_file(model(), self.path)
        safetensors.torch.save_file(model(1), self.unknown)
        store.put(self.path, key="bench")

    def _ratio(self, name, reference, ours, min_ratio, before_reference=None, before_ours=None):
        """Prints how many times faster the store is than the reference. The first pair is not counted.

        Each side is first in every other pair, because the second one finds a disk that was just busy.
        """
        references, mine = [], []
        sides = [(references, before_reference, reference), (mine, before_ours, ours)]
        for pair in range(self.pairs + 1):
            for seconds, before, work in sides if pair % 2 == 0 else reversed(sides):
                if before:
                    before()
                seconds.append(timed(work))
        del references[0], mine[0]
        ratios = [a / b for a, b in zip(references, mine)]
        spread = f"{min(ratios):.2f}..{max(ratios):.2f}"
        print(
            f"{name:<34} {statistics.median(references) * 1e3:>10.2f} {statistics.median(mine) * 1e3:>10.2f} "
            f"{statistics.median(ratios):>8.2f}  {spread:<18} {min_ratio:g}",
            flush=True,
        )

    def get(self):
        return self.store.get("bench", progress=False).torch()

    def original(self):
        return safetensors.torch.load_file(self.path)

    def get_cold(self):
        self._ratio("get / load_file, cold", self.original, self.get, 50, lambda: forget_pages(self.path))

    def get_warm(self):
        self._ratio("get / load_file, warm", self.original, self.get, 1.5)

    def attach(self):
        """The cost over the C++ client's get, which the native module calls, without the Python objects."""

        def native():
            return calls.finish(self.store._start_get("bench", "cpu", None, "", False, False, True, False, False, self.store.options(None)))

        alone = [timed(native) for _ in range(self.pairs + 1)][1:]
        whole = [timed(self.get) for _ in range(self.pairs + 1)][1:]
        over = statistics.median(whole) - statistics.median(alone)
        print(f"{'get over C++ attach':<34} {statistics.median(alone) * 1e3:>10.2f} {statistics.median(whole) * 1e3:>10.2f} "
              f"{over * 1e3:>8.2f}  {'ms more':<18} 2", flush=True)

    def first_touch(self):
        self._ratio("first touch of all / mmap, warm", lambda: touch(self.original()), lambda: touch(self.get()), 0.9)

    def put(self):
        tensors = model(2)
        count = iter(range(1 << 20))

        def change():
            mark = next(count)
            for tensor in tensors.values():
                tensor[0] = mark
            if mark:
                self.store.rm("bench/put")

        self._ratio(
            "put of tensors / plain copy",
            lambda: {name: tensor.clone() for name, tensor in tensors.items()},
            lambda: self.store.put(tensors, key="bench/put", progress=False),
            0.5,
            before_ours=change,
        )

    def import_time(self):
        def importing(name):
            return lambda: subprocess.run([sys.executable, "-c", f"import {name}"], check=True)

        self._ratio("import tensorcast / import numpy", importing("numpy"), importing("tensorcast"), 1)

    @contextlib.contextmanager
    def _stopped(self):
        """Stops the daemon, so that it answers no call."""
        self.cluster.processes["a"].send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.cluster.processes["a"].send_signal(signal.SIGCONT)

    def _ended(self, name, times):
        print(f"{name:<34} {'':>10} {statistics.median(times) * 1e3:>10.2f} {'':>8}  "
              f"{f'to {max(times) * 1e3:.1f}':<18} at most 100", flush=True)

    def cancel(self):
        """From Ctrl-C, or a task's cancel(), to the exception in the program. The daemon is stopped, so no call ends by itself."""
        tensors = model(3)
        blocking = {
            "get": lambda: self.store.get("bench", progress=False),
            "put": lambda: self.store.put(tensors, key="bench/cancel", progress=False),
            "watch": lambda: next(iter(self.store.watch("bench/"))),
            "replicate": lambda: self.store.replicate("bench", ["b"]),
        }
        awaiting = {
            "get": lambda: self.store.get_async("bench"),
            "put": lambda: self.store.put_async(tensors, key="bench/cancel"),
            "watch": lambda: anext(aiter(self.store.watch("bench/"))),
        }
        for name, work in blocking.items():
            with self._stopped():
                self._ended(f"Ctrl-C in a {name}", [interrupted(work) for _ in range(self.pairs)])
        for name, work in awaiting.items():
            with self._stopped():
                self._ended(f"cancel() of a {name}", [asyncio.run(cancelled(work)) for _ in range(self.pairs)])

    def drop_in(self):
        self._ratio(
            "drop-in, unknown path / original",
            lambda: touch(safetensors.torch.load_file(self.unknown)),
            lambda: touch(tensorcast.safetensors.torch.load_file(self.unknown)),
            1.0,
            lambda: forget_pages(self.unknown),
            lambda: forget_pages(self.unknown),
        )


FIGURES = ("get_cold", "get_warm", "attach", "first_touch", "put", "import_time", "drop_in", "cancel")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", metavar="NAME", help=f"figures to measure: {', '.join(FIGURES)}; default: all")
    parser.add_argument("--pairs", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Cluster(host_pool="4GiB") as cluster:
        os.environ["TENSORCAST_DAEMON"] = cluster.address("a")
        with tc.connect() as store:
            bench = Bench(cluster, store, pathlib.Path(folder), arguments.pairs)
            print(f"{'what':<34} {'reference':>10} {'store':>10} {'ratio':>8}  {'of pairs':<18} at least   (milliseconds)")
            for name in arguments.figures or FIGURES:
                getattr(bench, name)()
            default_store.forget()


if __name__ == "__main__":
    main()
