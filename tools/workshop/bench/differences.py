#!/usr/bin/env python3
"""Measures how a new version of a model reaches a fleet that has the one before: `make bench-differences`.

Each node is a network namespace on a bridge, behind a link of `--rate` each way. The first node puts a model and every other node gets it:
that is the whole. Then `--changed` percent of its 16-bit elements change by one step of their bits, the first node puts that with
`--base auto`, and every other node gets the key again. Each figure is the time of the last node as a multiple of one image over one link
(S/B), and what left the links of all nodes, as images. That the chunks came by difference is read from each transfer's report, and the bytes
from the interfaces' counters: a silent whole transfer fails. Needs root, `ip` and `tc`.

    tools/workshop/bench/differences.py --binary build/release/bin/tensorcast [--nodes 8] [--rate 400mbit] [--mib 252] [--runs 3]
"""

import argparse
import array
import datetime
import json
import os
import random
import statistics
import sys
import tempfile
import time

import cold_fleet
from bench_link import run

KEY = "model"
S_B_ASKED = 0.06


class Fleet(cold_fleet.Fleet):
    """A global store on the bridge and the nodes' daemons. A context manager."""

    def __init__(self, options, hosts, folder):
        super().__init__(options, hosts, folder)
        self.nodes = range(1, options.nodes + 1)
        self.receivers = self.nodes[1:]
        self.path = f"{self.folder}/model.safetensors"

    def __enter__(self):
        run(self.options.binary, "make-model", self.path, "--size", f"{self.options.mib}MiB")
        self.size = os.path.getsize(self.path)
        self.start_cluster(lambda host: [], images=2)
        return self

    def change(self):
        """Changes elements at random places by one, up or down, as a step of training changes bf16 weights."""
        with open(self.path, "r+b") as file:
            header = int.from_bytes(file.read(8), "little") + 8
            file.seek(header)
            elements = array.array("H", file.read())
            for place in random.sample(range(len(elements)), int(len(elements) * self.options.changed / 100)):
                elements[place] = (elements[place] + random.choice((-1, 1))) % 65536
            file.seek(header)
            elements.tofile(file)

    def put(self, *flags):
        text, error = self.node(1, "put", self.path, "--key", KEY, "--json", *flags).communicate()
        if not text:
            raise SystemExit(f"differences.py: {error}")
        return json.loads(text)

    def sent(self):
        return sum(self.hosts.sent(host) for host in self.nodes)

    def get(self):
        """Every receiver at once: the seconds until the last has ended, the images that left the links, and the reports."""
        before, begin = self.sent(), time.monotonic()
        running = [self.node(host, "get", KEY, "--json") for host in self.receivers]
        ended = [process.communicate() for process in running]
        took = time.monotonic() - begin
        for process, (_, error) in zip(running, ended):
            if process.returncode != 0:
                raise SystemExit(f"differences.py: get: {error}")
        return took, (self.sent() - before) / self.size, [json.loads(text) for text, _ in ended]


def lanes(report):
    return {source["lane"] for source in report["transfer"]["sources"] if int(source["bytes"]) > 0}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/bin/tensorcast")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--rate", default="400mbit", help="as tc has it")
    parser.add_argument("--mib", type=int, default=252, help="of the model")
    parser.add_argument("--changed", type=float, default=1.4, help="percent of the elements that change")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    options.binary = os.path.abspath(options.binary)
    copy = cold_fleet.seconds_of_a_copy(options)
    rows = []
    for _ in range(options.runs):  # each with a fleet of its own, so that nothing is left
        with tempfile.TemporaryDirectory(prefix="tc-diff-") as folder, cold_fleet.Hosts(options.nodes, options.rate) as hosts, \
             Fleet(options, hosts, folder) as fleet:
            fleet.put()
            whole = fleet.get()
            fleet.change()
            put = fleet.put("--base", "auto", "--require-difference")
            updated = fleet.get()
            for report in updated[2]:
                if lanes(report) != {"difference"}:
                    raise SystemExit(f"differences.py: chunks came by {lanes(report)}")
            rows.append((whole[0] / copy, whole[1], updated[0] / copy, updated[1], int(put["difference"]["image_bytes"]) / fleet.size * 100))
    print(f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC, {options.nodes - 1} receivers, {options.mib} MiB, {options.rate}, "
          f"{options.changed} % changed, load {os.getloadavg()[0]:.1f}")
    names = ("whole, S/B", "whole, images", f"update, S/B (asked {S_B_ASKED})", "update, images", "difference, % of the image")
    columns = list(zip(*rows))
    for name, column in zip(names, columns):
        print(f"{name:32}{statistics.median(column):8.3f} ({min(column):.3f}-{max(column):.3f})")
    return 0 if statistics.median(columns[2]) <= S_B_ASKED else 1


if __name__ == "__main__":
    sys.exit(main())
