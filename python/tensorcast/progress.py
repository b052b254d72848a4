"""A line on the terminal that says how far a long transfer is."""

from __future__ import annotations

import sys
import time
from types import TracebackType

# What ends sooner needs no bar.
_SILENT_SECONDS = 0.5
_WIDTH = 30


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


class Bar:
    """Draws on stderr, if that is a terminal, and takes itself away at the end."""

    def __init__(self, what: str | None) -> None:
        self._what = what
        self._began = time.monotonic()
        self._drawn = False
        self._enabled = what is not None and sys.stderr is not None and sys.stderr.isatty()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def show(self, progress: tuple[int, int, int, str] | None) -> None:
        """`progress` as a call of the native module tells it."""
        seconds = time.monotonic() - self._began
        if not self._enabled or progress is None or seconds < _SILENT_SECONDS:
            return
        done, total, _, waiting_for = progress
        share = done / total if total else 0.0
        bar = "#" * int(share * _WIDTH)
        told = f"waits for {waiting_for}" if waiting_for else f"{_size(done / seconds)}/s"
        sys.stderr.write(f"\r\x1b[K{self._what} [{bar:<{_WIDTH}}] {_size(done)} of {_size(total)}, {told}")
        sys.stderr.flush()
        self._drawn = True
