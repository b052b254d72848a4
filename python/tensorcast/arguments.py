"""Checks of arguments before they go to the native module. An error names the argument and shows its value."""

from __future__ import annotations

import operator
import os
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from tensorcast.errors import InvalidArgumentError, InvalidTypeError

if TYPE_CHECKING:
    import torch

    Device: TypeAlias = str | torch.device
    FilesBeside: TypeAlias = bool | str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

_MAX_SHOWN = 80
_REVISIONS = 1 << 64
_MAX_KEEP = 1000
_OBJECT_URI = re.compile("[a-z0-9+.-]+://")  # IsObjectUri of core/artifact/object_uri.h


def shown(value: object) -> str:
    """The value as text for a message, shortened."""
    written = ascii(value)
    return written if len(written) <= _MAX_SHOWN else f"{written[:_MAX_SHOWN]}... ({type(value).__name__})"


def text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidTypeError(f"{what} must be a str, not {shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"{what} cannot be written in UTF-8: {shown(value)}; leave lone surrogates out") from None
    return value


def texts(what: str, value: str | Iterable[object]) -> list[str]:
    """A list of strings. A single string becomes a list of one."""
    if isinstance(value, str):
        return [text(what, value)]
    if isinstance(value, (bytes, bytearray)) or not isinstance(value, Iterable):
        raise InvalidTypeError(f"{what} must be a list of str, not {shown(value)}")
    return [text(f"each of {what}", one) for one in value]


def _is_device(value: Any) -> bool:
    """Whether the value is a torch.device. Does not import torch."""
    return not isinstance(value, str) and isinstance(getattr(value, "type", None), str) and hasattr(value, "index")


def location(value: Device, what: str = "device") -> str:
    """The store's name of a device: "cpu", "gpu:N" (torch's "cuda:N"), or "disk"."""
    device: Any = value
    if _is_device(device):
        device = device.type if device.index is None else f"{device.type}:{device.index}"
    name = text(what, device)
    kind, _, number = name.partition(":")
    if kind == "cpu" and number.isdecimal():
        return "cpu"  # torch also writes "cpu:0"
    if kind not in ("gpu", "cuda"):
        return name
    return f"gpu:{number or _current_gpu()}"


def locations(what: str, value: Device | Iterable[Device]) -> list[str]:
    devices: Any = [value] if _is_device(value) else value
    if isinstance(devices, Iterable) and not isinstance(devices, (str, bytes, bytearray)):
        return [location(one, f"each of {what}") for one in devices]
    return [location(one) for one in texts(what, devices)]


def _current_gpu() -> int:
    """The GPU that torch uses for "cuda" in this thread."""
    torch: Any = sys.modules.get("torch")
    return int(torch.cuda.current_device()) if torch is not None and torch.cuda.is_initialized() else 0


def pattern_of(name: str) -> str:
    """A shell pattern that matches only this tensor name: each special character is in brackets."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def daemon(value: str | os.PathLike[str] | None) -> str:
    """The address or path of a daemon for the native module. For None, an empty text: the native module finds a daemon."""
    named = text("daemon", os.fspath(value) if isinstance(value, os.PathLike) else "" if value is None else value)
    return f"./{named}" if isinstance(value, os.PathLike) and not named.startswith(("/", "~/")) else named


def keep(value: Any) -> int | None:
    """The number of versions that a key keeps; None stays None."""
    if value is None:
        return None
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise InvalidTypeError(f"keep must be an int, not {shown(value)}") from None
    if not 1 <= number <= _MAX_KEEP:
        raise InvalidArgumentError(f"keep must be 1 to {_MAX_KEEP} versions, the current one included, not {number}")
    return number


def seconds(value: Any, what: str = "timeout") -> float:
    try:
        if isinstance(value, (str, bytes)):  # float() would parse it
            raise TypeError
        number = float(value)
    except TypeError:
        raise InvalidTypeError(f"{what} must be a number of seconds, not {shown(value)}") from None
    except OverflowError:  # an int that no float can hold
        number = float("inf") if value > 0 else -1.0
    if not number >= 0:
        raise InvalidArgumentError(f"{what} must be at least 0 seconds, not {value}")
    return number


def revision(value: Any) -> int | None:
    if value is None:
        return None
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidTypeError(f"expected_revision must be an int, not {shown(value)}") from None
    if not 0 <= number < _REVISIONS:
        raise InvalidArgumentError(f"expected_revision must be 0 (the key does not exist) or a revision of the key, which is 1 or more; it is {number}")
    return number


def model(what: str, value: str | bytes | os.PathLike[Any]) -> str:
    """The absolute path of files, or the unchanged URI of an object, which the daemon reads."""
    return value if isinstance(value, str) and _OBJECT_URI.match(value) else path(what, value)


def path(what: str, value: str | bytes | os.PathLike[Any]) -> str:
    """The absolute path, because the daemon has another working directory."""
    try:
        name = os.fsdecode(value)
    except TypeError:
        raise InvalidTypeError(f"{what} must be a path, not {shown(value)}") from None
    if not name:
        raise InvalidArgumentError(f"{what} is an empty path; pass the path of a file or a folder")
    return text(what, os.path.abspath(name))


def files_at(value: FilesBeside) -> list[str]:
    """The absolute paths of files and folders; none if the value is a bool."""
    if isinstance(value, int):
        return []
    paths: Any = [value] if isinstance(value, (str, bytes, os.PathLike)) else value
    if not isinstance(paths, Iterable):
        raise InvalidTypeError(f"files must be True, False, a path or a list of paths, not {shown(value)}")
    return [path("each of files", one) for one in paths]
