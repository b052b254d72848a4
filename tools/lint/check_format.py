#!/usr/bin/env python3
"""Checks that every tracked C++ file is as clang-format would write it. Exits 1 naming those that are not, 77 when there
is no clang-format."""

import argparse
import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys

import sources

SKIPPED = 77
FILES_PER_RUN = 40


def badly_formatted(root: pathlib.Path, clang_format: str, style: str) -> list[str]:
    files = [str(root / path) for path in sources.tracked_sources(root)]
    batches = [files[i:i + FILES_PER_RUN] for i in range(0, len(files), FILES_PER_RUN)]

    def run(batch: list[str]) -> list[str]:
        command = [clang_format, f"--style={style}", "--dry-run", "-Werror", *batch]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return [] if done.returncode == 0 else [file for file in batch if _differs(clang_format, style, file)]

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        bad = [file for found in pool.map(run, batches) for file in found]
    return [os.path.relpath(file, root) for file in bad]


def _differs(clang_format: str, style: str, file: str) -> bool:
    command = [clang_format, f"--style={style}", "--dry-run", "-Werror", file]
    return subprocess.run(command, capture_output=True, check=False).returncode != 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    root = parser.parse_args().root.resolve()
    clang_format = shutil.which("clang-format")
    if clang_format is None:
        print("there is no clang-format on this machine; tools/setup.sh installs it")
        return SKIPPED
    bad = badly_formatted(root, clang_format, "file")
    if bad:
        print("not as clang-format would write them (clang-format -i fixes them):", *bad, sep="\n")
        return 1
    print("format: good")
    return 0


if __name__ == "__main__":
    sys.exit(main())
