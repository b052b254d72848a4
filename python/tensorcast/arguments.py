"""What a caller gave, looked at before it goes to the native module: an error names the argument, and shows what it was."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable
from typing import Any

from tensorcast.errors import InvalidArgumentError, InvalidTypeError

_LONGEST_SHOWN = 80
_REVISIONS = 1 << 64


def shown(value: object) -> str:
    """The value for a message, of a length that can be read."""
    written = ascii(value)
    return written if len(written) <= _LONGEST_SHOWN else f"{written[:_LONGEST_SHOWN]}... ({type(value).__name__})"


def text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidTypeError(f"{what} is a str, not {shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"{what} cannot be written in UTF-8: {shown(value)}") from None
    return value


def texts(what: str, value: str | Iterable[object]) -> list[str]:
    """Of a list of strings, or of one that stands for a list of one."""
    if isinstance(value, str):
        return [text(what, value)]
    if isinstance(value, (bytes, bytearray)) or not isinstance(value, Iterable):
        raise InvalidTypeError(f"{what} is a list of str, not {shown(value)}")
    return [text(f"each of {what}", one) for one in value]


def seconds(value: Any) -> float:
    try:
        if isinstance(value, (str, bytes)):  # which float() would read
            raise TypeError
        number = float(value)
    except TypeError:
        raise InvalidTypeError(f"timeout is a number of seconds, not {shown(value)}") from None
    except OverflowError:  # an int beyond them
        number = float("inf") if value > 0 else -1.0
    if not number >= 0:
        raise InvalidArgumentError(f"timeout: {value} is no number of seconds, 0 or more")
    return number


def revision(value: Any) -> int | None:
    if value is None:
        return None
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidTypeError(f"expected_revision is an int, not {shown(value)}") from None
    if not 0 <= number < _REVISIONS:
        raise InvalidArgumentError(f"expected_revision: {number} is no revision of a key, which begin at 1; 0: there is none yet")
    return number


def path(what: str, value: str | bytes | os.PathLike[Any]) -> str:
    """Absolute, since the daemon has a working directory of its own."""
    try:
        name = os.fsdecode(value)
    except TypeError:
        raise InvalidTypeError(f"{what} is a path, not {shown(value)}") from None
    if not name:
        raise InvalidArgumentError(f"{what} is an empty path")
    return text(what, os.path.abspath(name))
