#!/usr/bin/env python3
"""Measures how long publishing stops when the leader of several global stores ends, beside the limits: `make bench-failover`.

Three members of etcd, three global stores and a daemon run on this machine, all real. Each round ends the leader and publishes at once
(`tensorcast key bind`, each time the next revision), until a publish that began after the leader's end is acknowledged. The figure is the time
of the longest publish, the start of the command included. Exits with 1 if a figure is above its limit.

    tools/workshop/bench/failover.py --binary build/release/bin/tensorcast --etcd build/deps/etcd-server/etcd [--rounds 20]
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
import urllib.request

MEMBERS = STORES = 3
PATIENCE = 60  # seconds; a step that takes longer hangs
HOST = f"127.{64 + os.getpid() // 65536 % 64}.{os.getpid() // 256 % 256}.{os.getpid() % 256}"

# Name, signal to the leader, whether etcd's leader is killed too, and the limits in seconds: median and worst.
CASES = [
    ("kill -9 of the leader", signal.SIGKILL, False, 2.7, 4.0),
    ("the leader is told to end", signal.SIGTERM, False, 0.5, None),
    ("kill -9 of the leader and of etcd's", signal.SIGKILL, True, None, 8.0),
]


def wait_until(what, condition):
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise SystemExit(f"failover: {what}: not within {PATIENCE} s")
        time.sleep(0.02)
    return found


def listens(address):
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


class Cluster:
    def __init__(self, options, folder):
        self.binary, self.etcd, self.folder = options.binary, options.etcd, pathlib.Path(folder)
        self.processes = []
        self.endpoints = [f"{HOST}:{2379 + 10 * member}" for member in range(MEMBERS)]
        self.addresses = [f"{HOST}:{7000 + store}" for store in range(STORES)]
        self.daemon_address = f"unix:{self.folder}/a/daemon.sock"

    def begin(self):
        self.members = [self.start_member(member) for member in range(MEMBERS)]
        self.etcd_leader()
        self.stores = [self.start_store(store) for store in range(STORES)]
        self.leader()
        settings = [f"daemon.state_dir={self.folder}/a", "daemon.listen=127.0.0.1:0", "security.insecure=true", "daemon.global_store=" + ",".join(self.addresses),
                    f"daemon.import_roots={self.folder}", "daemon.host_pool=192MiB"]
        self.daemon = self.start("daemon", [self.binary, "daemon", *self.flags(settings)])
        model = self.folder / "m.safetensors"
        subprocess.run([self.binary, "make-model", str(model), "--size", "1MiB"], check=True, stdout=subprocess.DEVNULL)
        wait_until("the daemon's start", lambda: self.run("status").returncode == 0)
        put = wait_until("the first put", lambda: (done := self.run("put", str(model), "--key", "k", "--json")).returncode == 0 and done)
        self.artifact = json.loads(put.stdout)["artifact_id"]
        self.revision = 1

    @staticmethod
    def flags(settings):
        return [flag for setting in settings for flag in ("--set", setting)]

    def start(self, name, command):
        log = open(self.folder / f"{name}.log", "ab")
        self.processes.append(subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "XDG_STATE_HOME": str(self.folder)}))
        return self.processes[-1]

    def start_member(self, member):
        def url(port):
            return f"http://{HOST}:{port + 10 * member}"

        peers = ",".join(f"m{one}=http://{HOST}:{2380 + 10 * one}" for one in range(MEMBERS))
        return self.start(f"m{member}", [self.etcd, f"--name=m{member}", f"--data-dir={self.folder}/m{member}", f"--listen-client-urls={url(2379)}",
                                         f"--advertise-client-urls={url(2379)}", f"--listen-peer-urls={url(2380)}",
                                         f"--initial-advertise-peer-urls={url(2380)}", f"--initial-cluster={peers}", "--log-level=error"])

    def start_store(self, store):
        settings = [f"global_store.listen={self.addresses[store]}", "security.insecure=true", "global_store.metadata_store=etcd",
                    "global_store.etcd.endpoints=" + ",".join(self.endpoints)]
        return self.start(f"store{store}", [self.binary, "global-store", *self.flags(settings)])

    def run(self, *arguments):
        return subprocess.run([self.binary, *arguments, "--daemon", self.daemon_address], capture_output=True, text=True, check=False)

    def leader(self):
        """The store that leads: only the leader listens."""
        return wait_until("a leader", lambda: [store for store in range(STORES) if listens(self.addresses[store])])[0]

    def etcd_leader(self):
        """The leading member of etcd, and its term. Each election begins another term."""

        def asked():
            for member, endpoint in enumerate(self.endpoints):
                try:
                    request = urllib.request.Request(f"http://{endpoint}/v3/maintenance/status", data=b"{}")
                    status = json.load(urllib.request.urlopen(request, timeout=2))
                except OSError:
                    continue
                if status.get("leader", "0") == status["header"]["member_id"]:
                    return [(member, int(status["raftTerm"]))]
            return []

        return wait_until("etcd's leader", asked)[0]

    def strike(self, how, etcd_too):
        """Ends the leader. Returns the seconds of the longest publish, and the number of etcd's elections."""
        leader, (member, term) = self.leader(), self.etcd_leader()
        took = []
        began = time.monotonic()
        self.stores[leader].send_signal(how)
        if etcd_too:
            self.members[member].kill()
        ended = False
        while not ended:
            ended = self.stores[leader].poll() is not None
            self.publish()
            took.append(time.monotonic() - began)
            began = time.monotonic()
        self.stores[leader] = self.start_store(leader)
        log = self.folder / f"store{leader}.log"
        wait_until("a store that stands by", lambda: log.read_text().rstrip().rsplit("\n", 1)[-1].find("stands by") >= 0)
        if etcd_too:
            self.members[member].wait()
            self.members[member] = self.start_member(member)
            wait_until("a member's start", lambda: listens(self.endpoints[member]))
        return max(took), self.etcd_leader()[1] - term

    def publish(self):
        bind = "key", "bind", "k", self.artifact, "--expect-revision", str(self.revision)
        wait_until("a publish", lambda: self.run(*bind).returncode == 0)
        self.revision += 1

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()


def measure(cluster, rounds):
    print(f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d, %H:%M} UTC, {rounds} rounds, a lease of 2 s. Seconds.\n")
    print("| what | median | from | to | etcd's elections, in all and in the slowest round | median asked | worst asked | kept |\n|---|---|---|---|---|---|---|---|", flush=True)
    all_kept = True
    for what, how, etcd_too, median_asked, worst_asked in CASES:
        struck = [cluster.strike(how, etcd_too) for _ in range(rounds)]
        took, elections = [seconds for seconds, _ in struck], [count for _, count in struck]
        slowest = max(struck)
        kept = (median_asked is None or statistics.median(took) <= median_asked) and (worst_asked is None or max(took) <= worst_asked)
        all_kept = all_kept and kept
        print(f"| {what} | {statistics.median(took):.2f} | {min(took):.2f} | {max(took):.2f} | {sum(elections)}, {slowest[1]} | {median_asked or ''} | {worst_asked or ''} | "
              f"{'yes' if kept else '**no**'} |", flush=True)
    return all_kept


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/bin/tensorcast")
    parser.add_argument("--etcd", default="build/deps/etcd-server/etcd", help="the etcd server; tools/setup.sh --tests installs it")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    for program in (options.binary, options.etcd):
        if not os.access(program, os.X_OK):
            parser.error(f"{program} is not a program; build it (make binary), or install etcd with tools/setup.sh --tests")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no process is left
    with tempfile.TemporaryDirectory(prefix="tensorcast-failover-") as folder:
        cluster = Cluster(options, folder)
        try:
            cluster.begin()
            all_kept = measure(cluster, options.rounds)
        finally:
            cluster.stop()
    return 0 if all_kept else 1


if __name__ == "__main__":
    sys.exit(main())
