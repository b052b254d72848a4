"""The console script `tensorcast`: runs the program of the wheel."""

from __future__ import annotations

import os
import pathlib
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Replaces this process with the program, and passes the arguments on."""
    program = pathlib.Path(__file__).parent / "bin" / "tensorcast"
    if not program.exists():
        sys.exit(f"tensorcast: {program} does not exist; install the wheel, which contains the program")
    os.execv(program, ["tensorcast", *sys.argv[1:]])
