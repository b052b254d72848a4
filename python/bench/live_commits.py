#!/usr/bin/env python3
"""Measures the pause of Weights.commit() on live weights, beside a copy of all tensors in the same run: medians of pairs.

    PYTHONPATH=build/release/python/cp311 build/deps/python-tests/bin/python -B python/bench/live_commits.py [--steps N] [--mib N]

Weights of bf16 from N(0, 0.02), of which 1.4 % move by one representable value in each step. The version is published on one
node and prepared on another; then commit() writes it, and np.copyto writes as many bytes into tensors of the program. The bar is
a ratio of 0.5. It fails where the weights are not those of the version.
"""

import argparse
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

import numpy as np
from cluster import Cluster

import tensorcast as tc

CHANGED = 0.014
BAR = 0.5
COLUMNS = 4096
TENSORS = 64


def weights(random, image_bytes):
    rows = image_bytes // 2 // COLUMNS // TENSORS
    return {f"w{n}": (random.standard_normal((rows, COLUMNS), dtype=np.float32) * 0.02).view(np.uint32).__rshift__(16).astype(np.uint16)
            for n in range(TENSORS)}


def step(random, state):
    return {name: array + (random.random(array.shape, dtype=np.float32) < CHANGED) for name, array in state.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--mib", type=int, default=256)
    arguments = parser.parse_args()
    random = np.random.default_rng(0)
    state = weights(random, arguments.mib << 20)
    pairs = []
    with Cluster(host_pool=f"{4 * arguments.mib}MiB") as cluster, tc.connect(cluster.address("a")) as trainer, \
            tc.connect(cluster.address("b")) as engine:
        trainer.put(state, key="bench/live", base="auto", progress=False)
        with engine.get("bench/live", live=True, progress=False) as live:
            own = {name: array.copy() for name, array in state.items()}
            for _ in range(arguments.steps):
                state = step(random, state)
                put = trainer.put(state, key="bench/live", base="auto", require_difference=True, progress=False)
                live.prepare(put)
                commit = live.commit(put, timeout=60)
                begun = time.perf_counter()
                for name, array in own.items():
                    np.copyto(array, state[name])
                pairs.append((commit, time.perf_counter() - begun))
                assert all(np.array_equal(array, state[name]) for name, array in live.numpy().items())
    ratios = [commit / copy for commit, copy in pairs]
    print(f"copy: {statistics.median(copy for _, copy in pairs) * 1e3:.1f} ms; commit: "
          f"{statistics.median(commit for commit, _ in pairs) * 1e3:.1f} ms; ratio {statistics.median(ratios):.2f} "
          f"({min(ratios):.2f}..{max(ratios):.2f}) of {len(pairs)} pairs; bar {BAR}")


if __name__ == "__main__":
    main()
