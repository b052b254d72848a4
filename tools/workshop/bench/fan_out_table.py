#!/usr/bin/env python3
"""Measures every fan-out that has a promised limit, and prints a table of figures and limits: `make bench-fan-out`.

Each row is one `tensorcast bench fan-out` (needs root, `ip` and `tc`). The table shows its command, so that it can be repeated alone.
All rows take about twelve minutes on a quiet machine. Exits with 1 if a limit is not kept. `--only killed` chooses rows by their name.

    tools/workshop/bench/fan_out_table.py --binary build/release/bin/tensorcast [--runs N] [--only TEXT] [--simulator build/release/bin/fan_out_simulator]
"""

import argparse
import dataclasses
import datetime
import json
import shlex
import subprocess
import sys

LAST = "last receiver"
OTHER = "last receiver at the other rate"
SENT = "sent by the source"
FAILED = "failed receivers"


@dataclasses.dataclass
class Check:
    """A figure of a run, and its limit. `ratio`: compare the ratio to a plain copy's time, S/B; else the value itself."""

    metric: str
    limit: float
    unit: str
    ratio: bool = False


def last(limit: float, metric: str = LAST) -> Check:
    return Check(metric, limit, "S/B", ratio=True)


NONE_FAILS = Check(FAILED, 0, "failed")

# Name, flags, checks. The size is the default, 264 MB, unless the flags give another.
ROWS = [
    ("1 source, 7 receivers", "--nodes 8 --rate 400Mbit", [last(1.20)]),
    ("the same with TLS", "--nodes 8 --rate 400Mbit --tls", [last(1.25)]),
    ("15 receivers", "--nodes 16 --rate 200Mbit --bytes 128MB", [last(1.30)]),
    ("2 sources, a link twice theirs", "--nodes 3 --sources 2 --rate 200Mbit --slow 1@400Mbit", [last(0.55, OTHER)]),
    ("0.5 s apart: each one's own time", "--nodes 8 --rate 400Mbit --arrivals 0.5s", [last(1.25)]),
    ("one at a tenth of the rate: the other six", "--nodes 8 --rate 400Mbit --slow 1@40Mbit --bytes 132MB", [last(1.30)]),
    (
        "source killed when each chunk is somewhere",
        "--nodes 8 --rate 400Mbit --fault kill-source@1",
        [last(1.60), NONE_FAILS],
    ),
    (
        "source killed at half, then back",
        "--nodes 8 --rate 400Mbit --fault kill-source@0.5",
        # daemon.peer_timeout is 10 s; 5 s more are allowed.
        [Check("from the fault to the last failure", 15, "s"), Check("sent by all hosts for a receiver, with the resumed get", 1.1, "images")],
    ),
    ("a feeding receiver killed: the rest", "--nodes 8 --rate 400Mbit --fault kill-receiver@0.5", [last(1.40), NONE_FAILS]),
    ("a feeding receiver stopped: the rest", "--nodes 8 --rate 400Mbit --fault stop-receiver@0.5", [last(1.40), NONE_FAILS]),
    ("4 daemons on each of 2 hosts", "--nodes 8 --per-host 4 --rate 400Mbit", [Check(SENT, 1.05, "images")]),
    (
        "two artifacts at once: fairness",
        "--nodes 8 --rate 400Mbit --artifacts 2",
        [Check("last of the slowest artifact to last of the fastest", 1.25, "of each other")],
    ),
]


def measure(binary: str, flags: str, runs: int) -> tuple[list[dict], str]:
    command = [binary, "bench", "fan-out", *shlex.split(flags), "--runs", str(runs)]
    done = subprocess.run([*command, "--json"], stdout=subprocess.PIPE, text=True, check=False)
    return (json.loads(done.stdout) if done.returncode == 0 else []), f"{flags} --runs {runs}"


def judge(rows: list[dict], check: Check) -> tuple[str, bool]:
    found = [row for row in rows if row["metric"] == check.metric]
    if not found:
        return "not measured", False
    figure = found[0]["ratio"] if check.ratio else found[0]["value"]
    spread = "" if found[0]["runs"] < 2 or check.ratio else f" ({found[0]['min']:.2f}-{found[0]['max']:.2f})"
    return f"{figure:.2f} {check.unit}{spread}", figure <= check.limit


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/bin/tensorcast")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--only", default="", help="only rows with this text in their name")
    parser.add_argument("--simulator", help="also simulate 10,000 nodes with this fan_out_simulator, which takes minutes")
    options = parser.parse_args()
    print(f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d, %H:%M} UTC. S/B: a plain copy's time over one link.\n", flush=True)
    print("| case | `bench fan-out` | measured | asked, at most | kept |\n|---|---|---|---|---|", flush=True)
    all_kept = True
    for name, flags, checks in ROWS:
        if options.only not in name:
            continue
        rows, command = measure(options.binary, flags, options.runs)
        for check in checks:
            measured, kept = judge(rows, check)
            all_kept = all_kept and kept
            print(f"| {name} | `{command}` | {measured} | {check.limit:g} {check.unit} | {'yes' if kept else '**no**'} |", flush=True)
    if options.simulator:
        print("\nSimulated:\n", flush=True)
        all_kept = subprocess.run([options.simulator, "--nodes", "10000"], check=False).returncode == 0 and all_kept
    return 0 if all_kept else 1


if __name__ == "__main__":
    sys.exit(main())
