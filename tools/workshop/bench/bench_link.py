#!/usr/bin/env python3
"""Measures pulls over the lane `tcp` on a link of a given rate, beside iperf3 on the same link.

Two network namespaces are the hosts. A pair of virtual devices that send at `--rate` (tbf) joins them. A global store and a daemon run on
host 0, a daemon on host 1. Each pair measures iperf3's goodput from host 0 to host 1, then the pull of a model in the same direction, with
verified chunks. Needs root, `ip`, `tc` and `iperf3`.

    tools/workshop/bench/bench_link.py --binary build/release/bin/tensorcast --rate 10gbit --runs 7 [--tls]
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

ADDRESSES = ("198.18.78.1", "198.18.78.2")  # in the range for benchmarks, which real networks do not use


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"bench_link.py: {' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


class Link:
    """Two hosts. Deleting a namespace deletes everything in it."""

    def __init__(self, rate: str, burst: str):
        self.hosts = [f"tclink{os.getpid()}-{i}" for i in range(2)]
        self.rate, self.burst = rate, burst

    def __enter__(self):
        for host in self.hosts:
            run("ip", "netns", "add", host)
        run("ip", "-n", self.hosts[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", self.hosts[1])
        for host, address in zip(self.hosts, ADDRESSES):
            run("ip", "-n", host, "addr", "add", f"{address}/24", "dev", "eth0")
            run("ip", "-n", host, "link", "set", "eth0", "up")
            run("ip", "-n", host, "link", "set", "lo", "up")
            run("ip", "netns", "exec", host, "tc", "qdisc", "replace", "dev", "eth0", "root",
                "tbf", "rate", self.rate, "burst", self.burst, "latency", "50ms")
        return self

    def __exit__(self, *_):
        for host in self.hosts:
            subprocess.run(["ip", "netns", "del", host], check=False)

    def command(self, host: int, *command: str) -> list[str]:
        return ["ip", "netns", "exec", self.hosts[host], *command]

    def goodput(self, seconds: int) -> float:
        """The goodput of iperf3 from host 0 to host 1, in GB/s."""
        server = subprocess.Popen(self.command(1, "iperf3", "--server", "--one-off", "--forceflush"), stdout=subprocess.PIPE, text=True)
        for line in server.stdout:
            if "listening" in line:
                break
        report = json.loads(run(*self.command(0, "iperf3", "--client", ADDRESSES[1], "--time", str(seconds), "--json")))
        server.communicate()
        return report["end"]["sum_received"]["bits_per_second"] / 8e9


class Cluster:
    """A global store and a daemon on host 0, a daemon on host 1."""

    def __init__(self, link: Link, binary: str, folder: pathlib.Path, tls: bool, pool: int):
        self.link, self.binary, self.folder, self.tls, self.pool = link, binary, folder, tls, pool
        self.processes: list[subprocess.Popen] = []

    def security(self, name: str) -> list[str]:
        if not self.tls:
            return ["security.insecure=true"]
        certificates = self.folder / "certificates"
        if not certificates.exists():
            run(self.binary, "certs", "init", "--folder", str(certificates), "--trust-domain", "bench.tensorcast")
        run(self.binary, "certs", "issue", name, "--folder", str(certificates))
        file = certificates / name.replace("/", "-")
        return [f"security.ca={certificates}/ca.pem", f"security.certificate={file}.pem", f"security.key={file}.key"]

    def start(self, host: int, what: str, settings: list[str]):
        ready, told = os.pipe()
        command = [self.binary, what, "--ready-fd", str(told)]
        for setting in settings:
            command += ["--set", setting]
        with open(self.folder / f"{what}-{host}.log", "wb") as log:
            self.processes.append(subprocess.Popen(self.link.command(host, *command), pass_fds=[told], stdout=log, stderr=log))
        os.close(told)
        with os.fdopen(ready) as line:
            if not line.readline():
                raise SystemExit(f"bench_link.py: {what} did not start: {(self.folder / f'{what}-{host}.log').read_text()[-2000:]}")

    def socket(self, host: int) -> str:
        return f"unix:{self.folder}/node-{host}/daemon.sock"

    def __enter__(self):
        store = f"{ADDRESSES[0]}:7000"
        self.start(0, "global-store", [f"global_store.listen={store}", f"global_store.metadata_path={self.folder}/metadata.db",
                                       *self.security("global-store")])
        for host, address in enumerate(ADDRESSES):
            self.start(host, "daemon", [
                f"daemon.name=node-{host}", f"daemon.host_id=host-{host}", f"daemon.state_dir={self.folder}/node-{host}",
                f"daemon.unix_socket={self.folder}/node-{host}/daemon.sock", f"daemon.import_roots={self.folder}",
                f"daemon.listen={address}:7001", f"daemon.tcp_listen={address}:7002", f"daemon.global_store={store}",
                f"daemon.host_pool={self.pool}", "daemon.device_runtime=none", *self.security(f"node/node-{host}")])
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()

    def pull(self, key: str) -> float:
        """The rate of a pull from host 0 to host 1, in GB/s, with verified chunks."""
        got = json.loads(run(self.binary, "get", key, "--lane", "tcp", "--daemon", self.socket(1), "--wait", "--json"))
        run(self.binary, "replica", "rm", got["replica"]["replica_id"], "--force", "--daemon", self.socket(1))
        transfer = got["transfer"]
        if int(transfer["verified_chunks"]) == 0:
            raise SystemExit("bench_link.py: a transfer verified nothing")
        seconds = [datetime.datetime.fromisoformat(transfer[end].replace("Z", "+00:00")) for end in ("start", "end")]
        return int(transfer["bytes"]) / (seconds[1] - seconds[0]).total_seconds() / 1e9


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/bin/tensorcast")
    parser.add_argument("--rate", default="10gbit", help="as tc has it")
    parser.add_argument("--burst", default="2mb")
    parser.add_argument("--mib", type=int, default=1024, help="of the model")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3, help="of each run of iperf3")
    parser.add_argument("--tls", action="store_true")
    arguments = parser.parse_args()
    binary = os.path.abspath(arguments.binary)
    pairs = []
    with tempfile.TemporaryDirectory(prefix="tensorcast-link-") as name, Link(arguments.rate, arguments.burst) as link:
        folder = pathlib.Path(name)
        with Cluster(link, binary, folder, arguments.tls, (arguments.mib + 512) << 20) as cluster:
            run(binary, "make-model", f"{name}/model.safetensors", "--size", f"{arguments.mib}MiB")
            run(binary, "put", f"{name}/model.safetensors", "--key", "model", "--daemon", cluster.socket(0))
            cluster.pull("model")  # a warm-up: opens connections and touches memory
            for _ in range(arguments.runs):
                pairs.append((cluster.pull("model"), link.goodput(arguments.seconds)))
    pulls, goodputs = zip(*pairs)
    ratio = statistics.median(pull / goodput for pull, goodput in pairs)
    print(f"{arguments.rate}{', TLS' if arguments.tls else ''}: pulls {statistics.median(pulls):.3f} GB/s ({min(pulls):.3f}-{max(pulls):.3f}), "
          f"iperf3 {statistics.median(goodputs):.3f}, median of {len(pairs)} pairs {ratio:.3f}")


if __name__ == "__main__":
    main()
