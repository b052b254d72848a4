#!/usr/bin/env python3
"""Measures update_module, beside a copy of all parameters in the same run: medians of alternating pairs.

    PYTHONPATH=build/release/python/cp311 /usr/bin/python3 -B python/bench/updates.py [--pairs N] [--gib N]

A module of bf16 weights from N(0, 0.02), of which 1.4 % move by one representable value between the two versions. Both sides
get the version, attached to the node's memory, and bring the module to it: in each pair one version over the other, and back.
The bar is a ratio of 0.5. It fails where a side did not do what it claims.
"""

import argparse
import gc
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

import torch
from cluster import Cluster

import tensorcast as tc
import tensorcast.torch

CHANGED = 0.014
BAR = 0.5
COLUMNS = 4096


class Model(torch.nn.Module):
    def __init__(self, state):
        super().__init__()
        for name, tensor in state.items():
            self.register_parameter(name, torch.nn.Parameter(tensor.clone(), requires_grad=False))


def weights(image_bytes, tensors=64):
    torch.manual_seed(0)
    rows = image_bytes // 2 // COLUMNS // tensors
    return {f"w{n}": (torch.randn(rows, COLUMNS) * 0.02).bfloat16() for n in range(tensors)}


def step(state):
    """Moves a part of the elements by one representable value, up or down."""
    moved = {}
    for name, tensor in state.items():
        chosen = torch.rand(tensor.shape) < CHANGED
        bits = tensor.clone().view(torch.int16)
        bits[chosen] += (torch.rand(int(chosen.sum())) < 0.5).short() * 2 - 1
        moved[name] = bits.view(torch.bfloat16)
    return moved


def timed(work):
    """Seconds by the clock, and of all processors together: a machine with other work has only the second to itself."""
    gc.collect()
    begun = time.perf_counter(), time.process_time()
    result = work()
    return (time.perf_counter() - begun[0], time.process_time() - begun[1]), result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--gib", type=float, default=1.0)
    arguments = parser.parse_args()
    image_bytes = int(arguments.gib * (1 << 30))
    states = [weights(image_bytes)]
    states.append(step(states[0]))
    with Cluster(host_pool=f"{int(arguments.gib * 3 * 1024) + 512}MiB", device_runtime="none") as cluster, tc.connect(cluster.address("a")) as store:
        ids = [store.put(state, key="bench/live", base="auto", require_difference=number == 1, progress=False).artifact_id
               for number, state in enumerate(states)]
        module = Model(states[0])

        def update(number):
            return tensorcast.torch.update_module(module, ids[number], from_=ids[1 - number], store=store)

        def copy(number):
            with store.get(ids[number], progress=False) as got, torch.no_grad():
                tensors = got.torch()
                for name, parameter in module.named_parameters():
                    parameter.copy_(tensors[name])

        def copy_attached(number):
            """The same from tensors that are attached already, with pages that were touched."""
            with torch.no_grad():
                for name, parameter in module.named_parameters():
                    parameter.copy_(attached[number][name])

        for name, reference in (("copy_ of all parameters, with its get", copy), ("copy_ alone, of attached tensors", copy_attached)):
            held = [store.get(one, progress=False) for one in ids]
            attached = [one.torch() for one in held]
            pairs = []
            for pair in range(arguments.pairs + 1):
                a, _ = timed(lambda: reference(1))
                b, written = timed(lambda: update(0))
                assert written.source == "differences" and written.whole_bytes == 0, written
                assert all(torch.equal(parameter, states[0][one]) for one, parameter in module.named_parameters())
                if pair:  # the first pair touches memory for the first time
                    pairs.append((a, b))
            del attached, held
            for which, unit in enumerate(("ms", "ms of processors")):
                ratios = [b[which] / a[which] for a, b in pairs]
                print(f"{name}: {statistics.median(a[which] for a, _ in pairs) * 1e3:.1f} {unit}; update_module: "
                      f"{statistics.median(b[which] for _, b in pairs) * 1e3:.1f}; ratio {statistics.median(ratios):.2f} "
                      f"({min(ratios):.2f}..{max(ratios):.2f}) of {len(pairs)} pairs; bar {BAR}", flush=True)


if __name__ == "__main__":
    main()
