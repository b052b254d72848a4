"""Values that a notebook shows as tables."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, overload

_Entry = TypeVar("_Entry")

# A longer table ends with the number of rows that it does not show.
_MAX_ROWS = 200


class Listing(Sequence[_Entry]):
    """A list of values that a notebook shows as one table."""

    def __init__(self, entries: Iterable[_Entry]) -> None:
        self._entries = tuple(entries)

    @overload
    def __getitem__(self, index: int) -> _Entry: ...
    @overload
    def __getitem__(self, index: slice) -> Listing[_Entry]: ...
    def __getitem__(self, index: int | slice) -> _Entry | Listing[_Entry]:
        return Listing(self._entries[index]) if isinstance(index, slice) else self._entries[index]

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        """A listing also equals a list of the same values."""
        return isinstance(other, (Listing, list)) and self._entries == tuple(other)

    def __repr__(self) -> str:
        return "[" + ",\n ".join(map(repr, self._entries)) + "]"

    def _repr_html_(self) -> str:
        return table([dataclasses.asdict(entry) for entry in self._entries])  # type: ignore[call-overload]


class Shown:
    """A base for dataclasses: a notebook shows the value as a table of one row."""

    def _repr_html_(self) -> str:
        return table([dataclasses.asdict(self)])  # type: ignore[call-overload]


def _cell(name: str, value: Any) -> str:
    if name.endswith("bytes") or name == "bytes_total":
        return f"{value / 2**20:,.1f} MiB"
    if isinstance(value, float):
        return f"{value:.6f}" if value < 1e8 else f"{value:.3f}"
    if isinstance(value, (tuple, list)):
        return ", ".join(map(str, value))
    return str(value)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """An HTML table of rows that all have the names of the first row. All texts are escaped."""
    if not rows:
        return ""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_cell(name, value))}</td>" for name, value in row.items()) + "</tr>"
        for row in rows[:_MAX_ROWS]
    )
    rest = f"<p>and {len(rows) - _MAX_ROWS:,} more</p>" if len(rows) > _MAX_ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"
