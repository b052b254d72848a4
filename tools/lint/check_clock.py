#!/usr/bin/env python3
"""Checks that the product measures time by the steady clock (base/steady_time.h) and waits by it.

Deadlines, leases and ages by the wall clock end early, or never, where that clock is set. Prints file:line for
everything that is wrong and exits 1.
"""

import argparse
import pathlib
import re
import sys

import sources

PRODUCT = {"otel", "core", "transport", "collective", "rpc", "global_store", "daemon", "client"}

# Who may ask for wall time, and what for.
WALL_TIME = {
    "client/key_watch.cc": "when a key was deleted: for people, beside the times that the global store gives",
    "daemon/node/node_state.cc": "an incarnation grows even where the state directory comes from a backup",
    "global_store/app/global_store_server.h": "the default of what durable facts are dated by",
    "global_store/service/coordinator.h": "the default of what durable facts are dated by",
}

WALL_NOW = re.compile(r"\babsl::Now\b")
# Of absl::Mutex, CondVar and Notification.
WALL_WAIT = re.compile(r"\b\w+WithDeadline\b(?=\()")
COMMENT = re.compile(r"//.*")


def is_product(file: pathlib.PurePosixPath) -> bool:
    """False for tests, benchmarks and what only they use."""
    if file.parts[0] not in PRODUCT or "testing" in file.parts:
        return False
    return not {"test", "benchmark", "fixture"} & set(file.stem.split("_"))


def problems(root: pathlib.Path) -> list[str]:
    found = []
    for file in filter(is_product, sources.tracked_sources(root)):
        text = (root / file).read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), start=1):
            code = COMMENT.sub("", line)
            if WALL_NOW.search(code) and str(file) not in WALL_TIME:
                found.append(f"{file}:{number}: absl::Now: use SteadyNow(), or say in WALL_TIME of check_clock.py "
                             "what wall time is for here")
            if wait := WALL_WAIT.search(code):
                found.append(f"{file}:{number}: {wait[0]} follows the wall clock: wait ..WithTimeout(.., "
                             "TimeLeft(deadline))")
    return found


def stale_permissions(root: pathlib.Path) -> list[str]:
    """Those in WALL_TIME who do not ask for it, any more."""
    def asks(path: pathlib.Path) -> bool:
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        return any(WALL_NOW.search(COMMENT.sub("", line)) for line in lines)
    return [f"{name}: in WALL_TIME of check_clock.py, without absl::Now" for name in WALL_TIME if not asks(root / name)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    root = parser.parse_args().root
    found = problems(root) + stale_permissions(root)
    print("\n".join(found) if found else "clocks: good")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
