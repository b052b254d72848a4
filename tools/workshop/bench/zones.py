#!/usr/bin/env python3
"""Measures how often a model crosses the thin link between two zones: `make bench-zones`.

Each node is a network namespace behind a link of `--rate` each way. Half of the nodes are on the bridge of zone a, half on that of zone b,
and one link of the same rate joins the bridges. A node in zone a has the model; all other nodes get it at once. The figures of a run are
the bytes that left zone a by the joining link, as images, and the time of the last node, as a multiple of one image over one link (S/B).
Needs root, `ip` and `tc`.

    tools/workshop/bench/zones.py --binary build/release/bin/tensorcast [--nodes 8] [--rate 400mbit] [--mib 252] [--runs 3]
"""

import argparse
import datetime
import os
import statistics
import sys
import tempfile

import cold_fleet
from bench_link import run

KEY = "model"
CROSSINGS_ASKED = 1.1  # images, with labels


class Zones(cold_fleet.Hosts):
    """Two bridges that a link joins. Host 0 is the bridge of zone a, the last host that of zone b."""

    def __init__(self, nodes, rate):
        super().__init__(nodes + 1, rate)
        self.far = nodes + 1

    def bridge_of(self, host):
        return self.names[0 if host % 2 == 0 else self.far]

    def shape(self, name, device):
        run("ip", "netns", "exec", name, "tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate", self.rate, "burst", "1mb",
            "latency", "50ms")

    def __enter__(self):
        for name in self.names:
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        near, far = self.names[0], self.names[self.far]
        for name in (near, far):
            run("ip", "-n", name, "link", "add", "bridge0", "type", "bridge")
            run("ip", "-n", name, "link", "set", "bridge0", "up")
        run("ip", "-n", near, "addr", "add", f"{cold_fleet.address(0)}/24", "dev", "bridge0")
        run("ip", "-n", near, "link", "add", "thin", "type", "veth", "peer", "name", "thin", "netns", far)
        for name in (near, far):
            run("ip", "-n", name, "link", "set", "thin", "master", "bridge0", "up")
            self.shape(name, "thin")
        for host in range(1, self.far):
            name, bridge = self.names[host], self.bridge_of(host)
            run("ip", "-n", bridge, "link", "add", f"host{host}", "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "-n", bridge, "link", "set", f"host{host}", "master", "bridge0", "up")
            run("ip", "-n", name, "addr", "add", f"{cold_fleet.address(host)}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")
            self.shape(name, "eth0")
            self.shape(bridge, f"host{host}")
        return self

    def crossed(self):
        """The bytes that left zone a by the joining link so far."""
        shown = run("ip", "netns", "exec", self.names[0], "cat", "/sys/class/net/thin/statistics/tx_bytes")
        return int(shown)


class Fleet(cold_fleet.Fleet):
    """A global store in zone a, and the nodes' daemons."""

    def __init__(self, options, hosts, folder, labels):
        super().__init__(options, hosts, folder)
        self.nodes = range(1, options.nodes + 1)
        self.labels = labels

    def __enter__(self):
        self.path = f"{self.folder}/model.safetensors"
        run(self.options.binary, "make-model", self.path, "--size", f"{self.options.mib}MiB")
        self.size = os.path.getsize(self.path)
        self.start_cluster(lambda host: [f"daemon.labels=[zone={'a' if host % 2 == 0 else 'b'}]"] if self.labels else [])
        return self

    def measure(self):
        """Seconds of the last node, and images that crossed."""
        put, error = self.node(2, "put", self.path, "--key", KEY, "--json").communicate()
        if not put:
            raise SystemExit(f"zones.py: {error}")
        before = self.hosts.crossed()
        self.nodes = [host for host in self.nodes if host != 2]
        return self.all_nodes("get", KEY), (self.hosts.crossed() - before) / self.size


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/bin/tensorcast")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--rate", default="400mbit", help="as tc has it")
    parser.add_argument("--mib", type=int, default=252, help="of the model")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    options.binary = os.path.abspath(options.binary)
    copy = cold_fleet.seconds_of_a_copy(options)
    print(f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC, {options.nodes} nodes, {options.mib} MiB, {options.rate}, "
          f"load {os.getloadavg()[0]:.1f}")
    print(f"{'labels':10}{'images crossed':>20}{'asked':>7}{'S/B':>20}")
    kept = True
    for labels in (True, False):
        rows = []
        for _ in range(options.runs):  # each with a fleet of its own, so that nothing is left
            with tempfile.TemporaryDirectory(prefix="tc-zones-") as folder, Zones(options.nodes, options.rate) as hosts, \
                 Fleet(options, hosts, folder, labels) as fleet:
                rows.append(fleet.measure())
        times, crossed = zip(*rows)
        text = [f"{statistics.median(one):.2f} ({min(one):.2f}-{max(one):.2f})" for one in (crossed, [took / copy for took in times])]
        asked = f"{CROSSINGS_ASKED:.2f}" if labels else "-"
        kept &= not labels or statistics.median(crossed) <= CROSSINGS_ASKED
        print(f"{'yes' if labels else 'no':10}{text[0]:>20}{asked:>7}{text[1]:>20}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
