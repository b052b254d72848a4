"""The console script `tensorcast`: the program that the wheel carries."""

from __future__ import annotations

import os
import pathlib
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Becomes the program, with this process's arguments."""
    program = pathlib.Path(__file__).parent / "bin" / "tensorcast"
    if not program.exists():
        sys.exit(f"tensorcast: {program} is missing: the program comes with the wheel")
    os.execv(program, ["tensorcast", *sys.argv[1:]])
