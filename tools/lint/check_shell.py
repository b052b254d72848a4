#!/usr/bin/env python3
"""Checks every tracked shell script with shellcheck.

Exits with 1 and the output of shellcheck, or with 77 if shellcheck is missing.
"""

import argparse
import pathlib
import shutil
import subprocess
import sys

import sources

SKIPPED = 77


def is_shell_script(path: pathlib.Path) -> bool:
    if path.suffix == ".sh":
        return True
    if path.suffix:
        return False
    with path.open("rb") as file:
        first = file.readline(64)
    return first.startswith(b"#!") and (b"bash" in first or first.rstrip().endswith(b"/sh"))


def complaints(root: pathlib.Path, shellcheck: str) -> str:
    files = [str(path) for path in sources.tracked_files(root) if is_shell_script(root / path)]
    if not files:
        return ""
    done = subprocess.run([shellcheck, "--", *files], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr if done.returncode != 0 else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    root = parser.parse_args().root.resolve()
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        print("shellcheck is not installed; tools/setup.sh --analysis installs it")
        return SKIPPED
    found = complaints(root, shellcheck)
    print(found or "shell scripts: good")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
