"""What a caller gave, looked at before it goes to the native module: an error names the argument, and shows what it was."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from tensorcast.errors import InvalidArgumentError, InvalidTypeError

if TYPE_CHECKING:
    import torch

    Device: TypeAlias = str | torch.device

_LONGEST_SHOWN = 80
_REVISIONS = 1 << 64
_MAX_KEEP = 1000


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


def _is_device(value: Any) -> bool:
    """Whether it is a torch.device, without importing torch for that."""
    return not isinstance(value, str) and isinstance(getattr(value, "type", None), str) and hasattr(value, "index")


def location(value: Device, what: str = "device") -> str:
    """A device as the store calls it: "cpu", "gpu:N" (as torch has it: "cuda:N"), or "disk"."""
    device: Any = value
    if _is_device(device):
        device = device.type if device.index is None else f"{device.type}:{device.index}"
    name = text(what, device)
    kind, _, number = name.partition(":")
    if kind == "cpu" and number.isdecimal():
        return "cpu"  # torch numbers it, too
    if kind not in ("gpu", "cuda"):
        return name
    return f"gpu:{number or _current_gpu()}"


def locations(what: str, value: Device | Iterable[Device]) -> list[str]:
    devices: Any = [value] if _is_device(value) else value
    if isinstance(devices, Iterable) and not isinstance(devices, (str, bytes, bytearray)):
        return [location(one, f"each of {what}") for one in devices]
    return [location(one) for one in texts(what, devices)]


def _current_gpu() -> int:
    """What torch means by "cuda" in this thread."""
    torch: Any = sys.modules.get("torch")
    return int(torch.cuda.current_device()) if torch is not None and torch.cuda.is_initialized() else 0


def pattern_of(name: str) -> str:
    """A pattern that only this name of a tensor matches: what is special in it stands for itself in a set of its own."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def address(value: str | os.PathLike[str]) -> str:
    """Of a daemon; the path of a socket is one, too."""
    named = text("daemon", os.fspath(value) if isinstance(value, os.PathLike) else value)
    if isinstance(value, os.PathLike) or named.startswith(("/", "./", "../", "~/")):
        return "unix:" + os.path.abspath(os.path.expanduser(named))
    return named


def keep(value: Any) -> int | None:
    """How many versions of a key are kept."""
    if value is None:
        return None
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise InvalidTypeError(f"keep is an int, not {shown(value)}") from None
    if not 1 <= number <= _MAX_KEEP:
        raise InvalidArgumentError(f"keep: {number}: a key keeps 1 to {_MAX_KEEP} versions, the current one among them")
    return number


def seconds(value: Any, what: str = "timeout") -> float:
    try:
        if isinstance(value, (str, bytes)):  # which float() would read
            raise TypeError
        number = float(value)
    except TypeError:
        raise InvalidTypeError(f"{what} is a number of seconds, not {shown(value)}") from None
    except OverflowError:  # an int beyond them
        number = float("inf") if value > 0 else -1.0
    if not number >= 0:
        raise InvalidArgumentError(f"{what}: {value} is no number of seconds, 0 or more")
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
