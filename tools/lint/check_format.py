#!/usr/bin/env python3
"""Checks that every tracked C++ file is as cpp_format.py would write it. Exits 1 naming those that are not, 77 when there is
no clang-format."""

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
        print(f"there is no {cpp_format.CLANG_FORMAT} on this machine; tools/setup.sh --tests installs it")
        return SKIPPED
    bad = cpp_format.unformatted(root)
    if bad:
        print("not as they should be written (make format does it):", *bad, sep="\n")
        return 1
    print("format: good")
    return 0


if __name__ == "__main__":
    sys.exit(main())
