"""The example of a trainer and two followers, as its readers run it: python/examples/rl_loop.py."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")

PROGRAM = pathlib.Path(__file__).resolve().parents[1] / "examples/rl_loop.py"
VERSIONS = 10 if os.environ.get("CI") else 50


def test_followers_get_each_version_as_a_difference(cluster, store):
    command = [sys.executable, "-B", str(PROGRAM), "--trainer", cluster.address("a"), "--followers", cluster.address("a"), cluster.address("b"),
               "--versions", str(VERSIONS), "--width", "256"]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=170)
    print(finished.stdout)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("difference of ") == VERSIONS - 1
    assert re.search(rf"^{VERSIONS} versions of 0.5 MiB in .*: [0-9.]+ versions per second$", finished.stdout, re.M)
    here, there = re.findall(r"^follower at .*: ([0-9.]+) MiB moved, ([0-9.]+) as whole versions; pause [0-9.]+ ms per version", finished.stdout, re.M)
    assert float(here[0]) == 0  # the trainer's own node
    assert 0.5 <= float(there[0]) < float(there[1]) / 5
