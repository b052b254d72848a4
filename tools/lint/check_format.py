#!/usr/bin/env python3
"""Checks that every tracked C++ file has the format of cpp_format.py.

Exits with 1 and the names of the other files, or with 77 if clang-format is missing.
"""

import argparse
import pathlib
import shutil
import sys

import cpp_format

SKIPPED = 77


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    root = parser.parse_args().root.resolve()
    if shutil.which(cpp_format.CLANG_FORMAT) is None:
        print(f"{cpp_format.CLANG_FORMAT} is not installed; tools/setup.sh --tests installs it")
        return SKIPPED
    bad = cpp_format.unformatted(root)
    if bad:
        print("these files are not formatted; run make format:", *bad, sep="\n")
        return 1
    print("format: good")
    return 0


if __name__ == "__main__":
    sys.exit(main())
