"""The lock-order check of the Abseil that gRPC brings is off in a program that connects (rpc/foreign_mutexes)."""

import os
import pathlib
import subprocess
import sys

import pytest

PROBE = os.environ.get("TENSORCAST_LOCK_ORDER_PROBE_LIBRARY")  # set by ctest

pytestmark = pytest.mark.skipif(not PROBE, reason="TENSORCAST_LOCK_ORDER_PROBE_LIBRARY is not set: run it by ctest")


def run_with_probe(code, lines: pathlib.Path):
    """Runs a program with the probe, which locks two mutexes in both orders at exit: it aborts there, or writes a line."""
    environment = {**os.environ, "LD_PRELOAD": PROBE, "TENSORCAST_LOCK_ORDER_PROBE": str(lines)}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_connected_program_does_not_check_lock_order(cluster, tmp_path):
    lines = tmp_path / "lines"
    done = run_with_probe(f"import tensorcast as tc; tc.connect({cluster.address('a')!r}).status()", lines)
    assert done.returncode == 0, done.stderr
    assert lines.read_text() == "unchecked\n"


def test_program_that_never_connects_still_checks(tmp_path):
    # This is the library's default. Without it the test above would prove nothing.
    lines = tmp_path / "lines"
    done = run_with_probe("import tensorcast", lines)
    assert done.returncode != 0 and not lines.exists()
