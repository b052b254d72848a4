#!/usr/bin/env python3
"""Measures a fleet without replicas that wants one model from an object store: `make bench-cold-fleet`.

Each node, and the object store (objects.py's server), is a network namespace on a bridge, behind a link of `--rate` each way. The global store
is on the bridge. Two cases, each with nodes that have nothing in memory:

    unknown  every node puts the URI under one key at once: no manifest exists
    known    one node put the model and evicted its replica; then every node gets the key at once

The figures of a run are the time of the last node, as a multiple of one plain copy by curl over one link (S/B), and the bytes that left the
object store's interface, as images. Needs root, `ip`, `tc` and `curl`.

    tools/workshop/bench/cold_fleet.py --binary build/release/bin/tensorcast [--nodes 8] [--rate 400mbit] [--mib 252] [--runs 3]
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

from bench_link import run

PORT = 9000
BUCKET, NAME, KEY = "bucket", "model.safetensors", "model"
URI = f"s3://{BUCKET}/{NAME}"
ASKED = {"known": (1.3, 1.15), "unknown": (2.2, 1.15)}


def address(host):
    return f"198.18.79.{host + 1}"  # in the range for benchmarks, which real networks do not use


STORE = 1  # host 0 is the bridge, with the global store; from 2 on hosts are nodes
ENDPOINT = f"http://{address(STORE)}:{PORT}"
ENVIRONMENT = {**{name: value for name, value in os.environ.items() if not name.startswith("AWS_")}, "AWS_ENDPOINT_URL": ENDPOINT,
               "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}


def seconds_of_a_copy(options):
    """What one model over one link takes at least."""
    number, unit = re.fullmatch(r"(\d+)([kmg])bit", options.rate).groups()
    return (options.mib << 20) * 8 / (int(number) * {"k": 1e3, "m": 1e6, "g": 1e9}[unit])


class Hosts:
    """A bridge and hosts on it, each behind a link. Deleting a namespace deletes everything in it."""

    def __init__(self, hosts, rate):
        self.names = [f"tccold{os.getpid()}-{i}" for i in range(hosts + 1)]
        self.rate = rate

    def __enter__(self):
        for name in self.names:
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        hub = self.names[0]
        run("ip", "-n", hub, "link", "add", "bridge0", "type", "bridge")
        run("ip", "-n", hub, "addr", "add", f"{address(0)}/24", "dev", "bridge0")
        run("ip", "-n", hub, "link", "set", "bridge0", "up")
        for host, name in enumerate(self.names[1:], start=1):
            run("ip", "-n", hub, "link", "add", f"host{host}", "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "-n", hub, "link", "set", f"host{host}", "master", "bridge0", "up")
            run("ip", "-n", name, "addr", "add", f"{address(host)}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")
            for where, device in ((name, "eth0"), (hub, f"host{host}")):
                run("ip", "netns", "exec", where, "tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate", self.rate, "burst", "1mb",
                    "latency", "50ms")
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False)

    def command(self, host, *command):
        return ["ip", "netns", "exec", self.names[host], *command]

    def sent(self, host):
        (device,) = json.loads(run("ip", "-n", self.names[host], "-s", "-j", "link", "show", "eth0"))
        return device["stats64"]["tx"]["bytes"]


class Fleet:
    """The object store, a global store and the nodes' daemons. A context manager."""

    def __init__(self, options, hosts, folder):
        self.options, self.hosts, self.folder = options, hosts, pathlib.Path(folder)
        self.nodes = range(2, options.nodes + 2)
        self.processes = []

    def start(self, host, log, *command):
        with open(self.folder / f"{log}.log", "wb") as output:
            self.processes.append(subprocess.Popen(self.hosts.command(host, *command), stdout=output, stderr=output, env=ENVIRONMENT))

    def __enter__(self):
        path = f"{self.folder}/{NAME}"
        run(self.options.binary, "make-model", path, "--size", f"{self.options.mib}MiB")
        self.size = os.path.getsize(path)
        self.start(STORE, "objects", sys.executable, "-B", str(pathlib.Path(__file__).with_name("objects.py")), "--serve", path, "--address",
                   address(STORE))
        self.start_cluster(lambda host: [f"daemon.origins=[s3://{BUCKET}/]"])
        return self

    def start_cluster(self, settings, images=1):
        """The global store on host 0 and a daemon on each node, with room for `images` and `settings(host)` of its own."""
        store = f"{address(0)}:7000"
        self.start(0, "store", *self.server("global-store", f"global_store.listen={store}", f"global_store.metadata_path={self.folder}/meta.db"))
        for host in self.nodes:
            state = self.folder / f"node-{host}"
            self.start(host, f"node-{host}", *self.server(
                "daemon", f"daemon.name=node-{host}", f"daemon.host_id=host-{host}", f"daemon.state_dir={state}", f"daemon.global_store={store}",
                f"daemon.unix_socket={state}/daemon.sock", f"daemon.listen={address(host)}:7001", f"daemon.tcp_listen={address(host)}:7002",
                f"daemon.host_pool={images * self.size + (256 << 20)}", "daemon.device_runtime=none", *settings(host)))
        for host in self.nodes:
            self.until(lambda: self.node(host, "status", "--json").wait() == 0)

    def server(self, what, *settings):
        return [self.options.binary, what, *[word for setting in (*settings, "security.insecure=true") for word in ("--set", setting)]]

    @staticmethod
    def until(holds):
        deadline = time.monotonic() + 120
        while not holds():
            if time.monotonic() > deadline:
                raise SystemExit("cold_fleet.py: a daemon did not start within 120 s")
            time.sleep(0.1)

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()

    def node(self, host, *arguments):
        return subprocess.Popen([self.options.binary, *arguments, "--daemon", f"unix:{self.folder}/node-{host}/daemon.sock"], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def all_nodes(self, *arguments):
        """Runs a command for each node at once: the seconds until the last has ended."""
        begin = time.monotonic()
        running = [self.node(host, *arguments) for host in self.nodes]
        ended = [process.communicate() for process in running]
        took = time.monotonic() - begin
        for process, (_, error) in zip(running, ended):
            if process.returncode != 0:
                raise SystemExit(f"cold_fleet.py: {' '.join(arguments)}: {error}")
        return took

    def plain_copy(self):
        begin = time.monotonic()
        run(*self.hosts.command(2, "curl", "--silent", "--fail", "--output", "/dev/null", f"{ENDPOINT}/{BUCKET}/{NAME}"))
        return time.monotonic() - begin

    def measure(self, case):
        if case == "known":
            put, error = self.node(2, "put", URI, "--key", KEY, "--json").communicate()
            if not put:
                raise SystemExit(f"cold_fleet.py: {error}")
            run(self.options.binary, "replica", "rm", json.loads(put)["replica"]["replica_id"], "--force", "--daemon",
                f"unix:{self.folder}/node-2/daemon.sock")
        before = self.hosts.sent(STORE)
        took = self.all_nodes(*(("get", KEY) if case == "known" else ("put", URI, "--key", KEY)))
        return took, (self.hosts.sent(STORE) - before) / self.size


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/bin/tensorcast")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--rate", default="400mbit", help="as tc has it")
    parser.add_argument("--mib", type=int, default=252, help="of the model")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", choices=sorted(ASKED), help="one of the cases")
    options = parser.parse_args()
    options.binary = os.path.abspath(options.binary)
    print(f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC, {options.nodes} nodes, {options.mib} MiB, {options.rate}, "
          f"load {os.getloadavg()[0]:.1f}")
    print(f"{'manifest':10}{'plain copy':>12}{'last node':>12}{'S/B':>20}{'asked':>7}{'images':>20}{'asked':>7}")
    kept = True
    for case in [options.only] if options.only else ASKED:
        rows = []
        for _ in range(options.runs):  # each with a fleet of its own, so that nothing is left
            with tempfile.TemporaryDirectory(prefix="tc-cold-") as folder, Hosts(options.nodes + 1, options.rate) as hosts, \
                 Fleet(options, hosts, folder) as fleet:
                copy = fleet.plain_copy()
                rows.append((copy, *fleet.measure(case)))
        copies, times, images = zip(*rows)
        ratios = [took / copy for copy, took in zip(copies, times)]
        asked = ASKED[case]
        kept &= statistics.median(ratios) <= asked[0] and statistics.median(images) <= asked[1]
        text = [f"{statistics.median(one):.2f} ({min(one):.2f}-{max(one):.2f})" for one in (ratios, images)]
        print(f"{case:10}{statistics.median(copies):10.2f} s{statistics.median(times):10.2f} s{text[0]:>20}{asked[0]:7.2f}{text[1]:>20}{asked[1]:7.2f}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
