"""This process's default connection to the daemon of its host.

The safetensors drop-in and the loaders of serving engines use it. Thread-safe; a forked child makes its own connection.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import tensorcast
from tensorcast import _native, arguments

_RETRY_SECONDS = 30.0  # seconds between two searches for a missing daemon

_lock = threading.Lock()
_stores: dict[tuple[int, str, frozenset[tuple[str, str]]], tensorcast.Store] = {}  # key: process id, address, certificates
_absent_until = 0.0


def _after_fork() -> None:
    """Makes a new lock, because another thread of the parent may have held the old one."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def connect(daemon: str | None = None, **certificates: Any) -> tensorcast.Store:
    """Returns the connection to a daemon. For None, to the daemon that `tensorcast.connect()` finds."""
    address = _native.find_daemon(arguments.daemon(daemon))
    known_by = os.getpid(), address, frozenset(certificates.items())
    with _lock:
        store = _stores.get(known_by)
        if store is None:
            store = _stores[known_by] = tensorcast.connect(address, **certificates)
        return store


def find() -> tensorcast.Store | None:
    """Returns the default connection, or None if no daemon runs. After a failure it returns None for 30 seconds without a
    search.
    """
    global _absent_until
    if time.monotonic() < _absent_until:
        return None
    try:
        address = _native.find_daemon("")
        if address.startswith("unix:") and not os.path.exists(address[len("unix:") :]):
            return None
        return connect(address)
    except tensorcast.Error:
        _absent_until = time.monotonic() + _RETRY_SECONDS
        return None


def forget() -> None:
    """Closes all default connections, for example before the process changes to another daemon."""
    global _absent_until
    with _lock:
        for store in _stores.values():
            store.close()
        _stores.clear()
        _absent_until = 0.0
