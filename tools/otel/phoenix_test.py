#!/usr/bin/env python3
"""Sends a smoke run to Phoenix, a backend for traces from PyPI, and reads the traces back through its HTTP interface (which has no links).

Usage: phoenix_test.py TENSORCAST PHOENIX

PHOENIX is its program; `make check-phoenix` installs it (850 MB) and runs this. Exits with 77 (skipped) and the reason without it.
"""
import http.client
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

SKIPPED = 77
WAIT = 120
TENSORCAST, PHOENIX = (pathlib.Path(argument) for argument in sys.argv[1:3])
sys.argv[1:] = []

if not PHOENIX.is_file():
    print(f"skipped: {PHOENIX} is missing; make check-phoenix installs it")
    sys.exit(SKIPPED)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Phoenix(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.scratch.cleanup)
        http, grpc = free_port(), free_port()
        cls.url = f"http://127.0.0.1:{http}"
        # Phoenix asks the internet for nothing, and keeps its database below the scratch folder.
        environment = {**os.environ, "PHOENIX_HOST": "127.0.0.1", "PHOENIX_PORT": str(http), "PHOENIX_GRPC_PORT": str(grpc),
                       "PHOENIX_WORKING_DIR": cls.scratch.name, "PHOENIX_TELEMETRY_ENABLED": "false"}
        with open(pathlib.Path(cls.scratch.name, "phoenix.log"), "wb") as log:
            process = subprocess.Popen([str(PHOENIX), "serve"], env=environment, stdout=log, stderr=log)
        cls.addClassCleanup(lambda: (process.terminate(), process.wait(30)))
        cls.until(lambda: cls.answer("/healthz") is not None, "Phoenix does not start")
        # Phoenix takes traces alone.
        smoke = subprocess.run([TENSORCAST, "otel-smoke", "--endpoint", f"http://127.0.0.1:{grpc}"], capture_output=True, text=True, timeout=WAIT,
                               env={**os.environ, "OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"})
        assert smoke.returncode == 0, smoke.stdout + smoke.stderr
        cls.traces = dict(reversed(line.rsplit(None, 1)) for line in smoke.stdout.splitlines() if re.search(r" [0-9a-f]{32}$", line))
        assert len(cls.traces) == 3, cls.traces

    @classmethod
    def answer(cls, path):
        try:
            with urllib.request.urlopen(cls.url + path, timeout=10) as reply:
                return reply.read()
        except (OSError, http.client.HTTPException):
            return None

    @classmethod
    def until(cls, holds, complaint):
        deadline = time.monotonic() + WAIT
        while not holds():
            assert time.monotonic() < deadline, complaint
            time.sleep(0.2)

    def spans(self):
        """All spans that Phoenix has, by trace."""
        by_trace, cursor = {}, ""
        while cursor is not None:
            text = self.answer(f"/v1/projects/default/spans?limit=100&cursor={cursor}")
            if text is None:
                return {}
            page = json.loads(text)
            for span in page["data"]:
                by_trace.setdefault(span["context"]["trace_id"], []).append(span)
            cursor = page["next_cursor"]
        return by_trace

    def test_each_request_is_one_tree_that_begins_at_the_client(self):
        self.until(lambda: set(self.traces) <= set(self.spans()), f"not every trace of {self.traces} arrived")
        for trace, what in self.traces.items():
            def roots():
                spans = self.spans().get(trace, [])
                ids = {span["context"]["span_id"] for span in spans}
                return [span["name"] for span in spans if span["parent_id"] not in ids]
            self.until(lambda: len(roots()) == 1, f"{what} has not one root")
            self.assertTrue(roots()[0].startswith("Client/"), f"{what}: {roots()}")

    def test_get_from_a_peer_shows_its_ingest_and_key(self):
        (pull,) = [trace for trace, what in self.traces.items() if "P2P" in what]

        def named(name):
            return [span["attributes"] for span in self.spans().get(pull, []) if span["name"] == name]
        self.until(lambda: named("StoreEngine/P2PIngest") and named("Client/Get"), "the trace has no ingest, or no client")
        self.assertIn("tc.key", named("Client/Get")[0])
        self.assertGreater(named("StoreEngine/P2PIngest")[0]["tc.size.bytes"], 0)


if __name__ == "__main__":
    unittest.main()
