"""This process's connection to the daemon of its host, for what has no store of its own: the safetensors drop-in, the
loaders of serving engines. Thread-safe; after a fork the child makes its own.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import tensorcast
from tensorcast.store import daemon_address

_RETRY_SECONDS = 30.0  # between two looks for a daemon that was not there

_lock = threading.Lock()
_stores: dict[tuple[int, str, frozenset[tuple[str, str]]], tensorcast.Store] = {}  # by process, address and certificates
_absent_until = 0.0


def _after_fork() -> None:
    """Another thread of the parent may have held the lock."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def connect(daemon: str | None = None, **certificates: Any) -> tensorcast.Store:
    """The connection to that daemon, by default to TENSORCAST_DAEMON or the host's own."""
    address = daemon_address(daemon or None)
    known_by = os.getpid(), address, frozenset(certificates.items())
    with _lock:
        store = _stores.get(known_by)
        if store is None:
            store = _stores[known_by] = tensorcast.connect(address, **certificates)
        return store


def find() -> tensorcast.Store | None:
    """None where there is no daemon, which is then not looked for again at once."""
    global _absent_until
    if time.monotonic() < _absent_until:
        return None
    try:
        address = daemon_address()
        if address.startswith("unix:") and not os.path.exists(address[len("unix:") :]):
            return None
        return connect(address)
    except tensorcast.Error:
        _absent_until = time.monotonic() + _RETRY_SECONDS
        return None


def forget() -> None:
    """Closes the connections, for a process that changes its daemon or wants to give them back."""
    global _absent_until
    with _lock:
        for store in _stores.values():
            store.close()
        _stores.clear()
        _absent_until = 0.0
