"""A progress bar for long transfers: a line on a terminal, or an output of a notebook's cell."""

from __future__ import annotations

import html
import sys
import time
from types import TracebackType
from typing import Any, Protocol

# A call that ends sooner shows no bar.
_SILENT_SECONDS = 0.5
_WIDTH = 30

_Progress = tuple[int, int, int, str]  # the result of a native call's progress()


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


class _Surface(Protocol):
    """A place to draw a bar: draws it repeatedly, and clears it."""

    def draw(self, what: str, share: float, told: str) -> None: ...
    def clear(self) -> None: ...


class _Terminal:
    def draw(self, what: str, share: float, told: str) -> None:
        self._write(f"{what} [{'#' * int(share * _WIDTH):<{_WIDTH}}] {told}")

    def clear(self) -> None:
        self._write("")

    def _write(self, line: str) -> None:
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()


class _Notebook:
    def __init__(self) -> None:
        self._handle: Any = None

    def draw(self, what: str, share: float, told: str) -> None:
        self._show(f'{html.escape(what)} <progress value="{share:.4f}" max="1"></progress> {html.escape(told)}')

    def clear(self) -> None:
        self._show("")

    def _show(self, written: str) -> None:
        from IPython.display import HTML, display

        if self._handle is None:
            self._handle = display(HTML(written), display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(HTML(written))  # type: ignore[no-untyped-call]


def _surface() -> _Surface | None:
    """Returns None if there is neither a notebook nor a terminal."""
    ipython = sys.modules.get("IPython")
    if ipython is not None and hasattr(ipython.get_ipython(), "kernel"):  # not IPython's own terminal
        return _Notebook()
    if sys.stderr is not None and sys.stderr.isatty():
        return _Terminal()
    return None


class Bar:
    """Draws on the terminal or in the notebook, and clears itself at the end."""

    def __init__(self, what: str | None) -> None:
        self._what = what or ""
        self._began = time.monotonic()
        self._drawn = False
        self._surface = None if what is None else _surface()

    @property
    def enabled(self) -> bool:
        return self._surface is not None

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self._drawn and self._surface is not None:
            self._surface.clear()

    def show(self, progress: _Progress | None) -> None:
        seconds = time.monotonic() - self._began
        if self._surface is None or progress is None or seconds < _SILENT_SECONDS:
            return
        done, total, _, waiting_for = progress
        told = f"waits for {waiting_for}" if waiting_for else f"{size(done / seconds)}/s"
        self._surface.draw(self._what, done / total if total else 0.0, f"{size(done)} of {size(total)}, {told}")
        self._drawn = True
