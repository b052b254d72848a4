#!/usr/bin/env python3
"""Checks that the product measures time by the steady clock (base/steady_time.h) and waits by it.

After a change of the wall clock, deadlines, leases and ages that follow it end early or never. Prints file:line for every
finding and exits with 1.
"""

import argparse
import pathlib
import re
import sys

import sources

PRODUCT = {"otel", "core", "objects", "transport", "collective", "rpc", "global_store", "daemon", "client"}

# The files that may ask for wall time, each with the reason.
WALL_TIME = {
    "client/key_watch.cc": "when a key was deleted: shown to people beside the times of the global store",
    "daemon/service/publisher.cc": "a time not before a put's binding, compared with the times of the global store",
    "daemon/service/status_report.cc": "what the host's clock says: doctor compares it with that of other hosts",
    "daemon/service/archiver.cc": "an age, compared with the times that an object store gives its objects",
    "daemon/node/node_state.cc": "an incarnation grows even when the state directory comes from a backup",
    "global_store/app/global_store_server.h": "the default clock for the dates of durable facts",
    "global_store/coordinator/coordinator.h": "the default clock for the dates of durable facts",
    "objects/credentials/credentials.h": "keys that a client brings expire at a time of day",
    "objects/credentials/credential_chain.h": "the default clock for keys, which expire at a time of day",
    "rpc/server.cc": "certificates end at a time of day",
    "objects/s3/s3_client.h": "the default clock for signatures, which have the time of day",
}

WALL_NOW = re.compile(r"\babsl::Now\b")
# The methods of absl::Mutex, CondVar and Notification.
WALL_WAIT = re.compile(r"\b\w+WithDeadline\b(?=\()")
COMMENT = re.compile(r"//.*")


def is_product(file: pathlib.PurePosixPath) -> bool:
    """False for tests, benchmarks and their helpers."""
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
                found.append(f"{file}:{number}: absl::Now: use SteadyNow(), or give the reason for wall time in "
                             "WALL_TIME of check_clock.py")
            if wait := WALL_WAIT.search(code):
                found.append(f"{file}:{number}: {wait[0]} follows the wall clock: wait ..WithTimeout(.., "
                             "TimeLeft(deadline))")
    return found


def stale_permissions(root: pathlib.Path) -> list[str]:
    """The files in WALL_TIME that no longer ask for wall time."""
    def asks(path: pathlib.Path) -> bool:
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        return any(WALL_NOW.search(COMMENT.sub("", line)) for line in lines)
    return [f"{name}: does not use absl::Now: remove it from WALL_TIME of check_clock.py" for name in WALL_TIME if not asks(root / name)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    root = parser.parse_args().root
    found = problems(root) + stale_permissions(root)
    print("\n".join(found) if found else "clocks: good")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
