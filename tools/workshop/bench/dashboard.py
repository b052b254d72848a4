#!/usr/bin/env python3
"""What a dashboard beside a fleet costs: `make bench-dashboard`.

`bench control --nodes N --hold` registers simulated nodes with a global store; they send heartbeats as real ones do. Then a dashboard runs
beside that store, and tabs follow one page each. For each page: the bytes of its first document, the bytes a minute that a tab gets after it,
and the CPU time of the store and of the dashboard, with one tab and with many. The store's CPU time without a tab is taken before each page: the
nodes' heartbeats are most of it.

    tools/workshop/bench/dashboard.py --binary build/release/bin/tensorcast [--nodes 10000] [--seconds 60] [--tabs 32]
"""

import argparse
import http.client
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse

PAGES = {"zones": "Cluster", "nodes": "Nodes", "artifacts": "Artifacts", "transfers": "Transfers"}
START_SECONDS = 300


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def line_of(process, stream, pattern):
    """The first line that matches. The rest of the stream is read on a thread, so that the process does not block."""
    for line in stream:
        if found := re.search(pattern, line):
            threading.Thread(target=lambda: [None for _ in stream], daemon=True).start()
            return found
    sys.exit(f"{process.args[0]} ended with code {process.wait()} before it was ready")


class Tab:
    """A tab that follows one view, as the page does."""

    def __init__(self, site, cookie, view):
        self.first = self.after = 0
        self.there = threading.Event()
        self.connection = http.client.HTTPConnection(site, timeout=START_SECONDS)
        self.connection.request("GET", f"/api/events?view={view}", headers={"Cookie": cookie})
        self.socket = self.connection.sock  # which the connection forgets, since the stream ends with it
        self.response = self.connection.getresponse()
        if self.response.status != 200:
            sys.exit(f"/api/events?view={view}: HTTP {self.response.status}")
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        rest = b""
        while data := self.response.read1(1 << 16):
            if self.there.is_set():
                self.after += len(data)
                continue
            rest += data
            if b"\n\n" in rest.partition(b"event: document")[2]:
                self.first = len(rest)
                self.there.set()

    def close(self):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.connection.close()


def log_in(address):
    parts = urllib.parse.urlsplit(address)
    connection = http.client.HTTPConnection(parts.netloc)
    connection.request("GET", f"{parts.path}?{parts.query}")
    cookie = connection.getresponse().getheader("Set-Cookie")
    return parts.netloc, cookie.partition(";")[0]


class Bench:
    def __init__(self, options):
        self.options = options
        self.fleet = subprocess.Popen(
            [options.binary, "bench", "control", "--nodes", str(options.nodes), "--hold"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        found = line_of(self.fleet, self.fleet.stderr, r"global store (\S+), process (\d+)")
        self.store, self.store_pid = found[1], int(found[2])

    def cost_of(self, *pids):
        """CPU seconds a minute of each."""
        before, begin = [cpu_seconds(pid) for pid in pids], time.monotonic()
        time.sleep(self.options.seconds)
        minutes = (time.monotonic() - begin) / 60
        return [(cpu_seconds(pid) - used) / minutes for pid, used in zip(pids, before)]

    def run(self):
        rows = []
        dashboard = subprocess.Popen(
            [self.options.binary, "dashboard", "--daemon", self.store, "--listen", "127.0.0.1:0", "--set", "security.insecure=true"],
            stdout=subprocess.PIPE, text=True)
        try:
            site, cookie = log_in(line_of(dashboard, dashboard.stdout, r"https?://\S+/login\?token=\S+")[0])
            for view in PAGES:
                without, _ = self.cost_of(self.store_pid, dashboard.pid)
                for count in (1, self.options.tabs):
                    tabs = [Tab(site, cookie, view) for _ in range(count)]
                    if not all(tab.there.wait(START_SECONDS) for tab in tabs):
                        sys.exit(f"{view}: no document came in {START_SECONDS} s")
                    before = sum(tab.after for tab in tabs)
                    store, served = self.cost_of(self.store_pid, dashboard.pid)
                    after = (sum(tab.after for tab in tabs) - before) / count * 60 / self.options.seconds
                    rows.append((view, count, tabs[0].first, after, without, store, served))
                    for tab in tabs:
                        tab.close()
        finally:
            dashboard.send_signal(signal.SIGINT)
            dashboard.wait()
        return rows

    def close(self):
        self.fleet.send_signal(signal.SIGINT)
        self.fleet.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/bin/tensorcast")
    parser.add_argument("--nodes", type=int, default=10000)
    parser.add_argument("--seconds", type=float, default=60, help="of each measurement")
    parser.add_argument("--tabs", type=int, default=32)
    options = parser.parse_args()
    bench = Bench(options)
    try:
        rows = bench.run()
    finally:
        bench.close()
    print("| page | tabs | first document | a tab's bytes a minute | store, CPU s a minute without | with | dashboard, CPU s a minute |")
    print("|---|---|---|---|---|---|---|")
    for view, count, first, after, without, store, served in rows:
        print(f"| {PAGES[view]} | {count} | {first / 1024:.0f} KiB | {after:.0f} | {without:.1f} | {store:.1f} | {served:.2f} |")


if __name__ == "__main__":
    main()
