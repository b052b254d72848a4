"""This process's connection to the daemon of its host, for what has no store of its own: the safetensors drop-in, the
loaders of serving engines. Thread-safe; after a fork the child makes its own.
"""

from __future__ import annotations

import os
import threading
import time

import tensorcast
from tensorcast.store import daemon_address

_RETRY_SECONDS = 30.0  # between two looks for a daemon that was not there

_lock = threading.Lock()
_stores: dict[tuple[int, str], tensorcast.Store] = {}  # by process and address
_absent_until = 0.0


def connect(daemon: str | None = None) -> tensorcast.Store:
    """The connection to that daemon, by default to TENSORCAST_DAEMON or the host's own."""
    address = daemon or daemon_address()
    with _lock:
        store = _stores.get((os.getpid(), address))
        if store is None:
            store = _stores[os.getpid(), address] = tensorcast.connect(address)
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
