"""Connecting to the store daemon of this host, and what can be asked of it."""

from __future__ import annotations

import collections
import dataclasses
import os
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from tensorcast import _native, arguments, arrays, calls, tracing
from tensorcast.admin import Administration
from tensorcast.errors import CancelledError, ClosedError, InvalidArgumentError, InvalidTypeError, NotFoundError, UnavailableError
from tensorcast.tables import Listing, Shown
from tensorcast.weights import Weights

_SYSTEM_FOLDER = "/var/lib/tensorcast"


def _state_folder() -> str:
    """Where a daemon that this user starts without configuration has its sockets."""
    if os.geteuid() == 0:
        return _SYSTEM_FOLDER
    if state := os.environ.get("XDG_STATE_HOME"):
        return f"{state}/tensorcast"
    return f"{home}/.local/state/tensorcast" if (home := os.environ.get("HOME")) else f"/tmp/tensorcast-{os.geteuid()}"


# This user's own daemon, then the packaged service, then a daemon that root started without configuration. The last
# two have a socket for programs of the host and one for their own user.
DEFAULT_SOCKETS = (*((f"{_state_folder()}/daemon.sock",) if _state_folder() != _SYSTEM_FOLDER else ()),
                   *(f"{folder}/{name}.sock" for folder in ("/run/tensorcast", _SYSTEM_FOLDER) for name in ("client", "daemon")))


@dataclasses.dataclass(frozen=True)
class Key(Shown):
    """A key and what it means; in a watch, a change of it."""

    name: str
    artifact_id: str
    revision: int
    updated: float  # seconds since 1970
    deleted: bool = False
    unconfirmed: bool = False  # the global store did not answer: as the daemon last knew it
    keep: int = 0  # how many versions it keeps, the current one among them; 0: not told (in a watch)
    earlier: tuple[str, ...] = ()  # the artifacts that it named before and still keeps, the newest first


@dataclasses.dataclass(frozen=True)
class Put(Shown):
    """What was stored."""

    artifact_id: str
    replica_id: str
    existed: bool  # the same content was there already
    key_revision: int  # 0: no key was asked for
    transfer: dict[str, Any] | None


def daemon_address(daemon: str | os.PathLike[str] | None = None) -> str:
    """Where the daemon is: the argument, else TENSORCAST_DAEMON, else the host's default socket."""
    named = os.environ.get("TENSORCAST_DAEMON") if daemon is None else daemon
    if named:
        return arguments.address(named)
    if daemon is not None:
        arguments.text("daemon", daemon)
    for path in DEFAULT_SOCKETS:
        if os.access(path, os.W_OK):
            return f"unix:{path}"
    raise UnavailableError(f"no daemon at {' or '.join(DEFAULT_SOCKETS)} that this user may use: start one with "
                           '"tensorcast daemon", or name one that runs (TENSORCAST_DAEMON)')


class Watch:
    """Keys under a prefix: as they are, then each change, for as long as it is iterated over.

    `for` in a thread, `async for` in a coroutine; close(), the end of a `with`, or the store's close() ends it. A
    connection that breaks is made again, and each change is told once.
    """

    def __init__(self, call: _native.Call) -> None:
        self._call: _native.Call | None = call
        self._ready: collections.deque[Key] = collections.deque()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Watch:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the watch; a thread that waits in it is told by StopIteration."""
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    def _take(self, call: _native.Call) -> None:
        taken: list[dict[str, Any]] = call.take()
        self._ready.extend(Key(**key) for key in taken)
        if taken:
            return
        try:
            call.result()  # it has ended, and says why
        except CancelledError:
            if self._call is not None:
                raise

    def __iter__(self) -> Iterator[Key]:
        return self

    def __next__(self) -> Key:
        while not self._ready:
            call = self._call
            if call is None:
                raise StopIteration
            if call.wait(0.05) and self._call is not None:
                self._take(call)
        return self._ready.popleft()

    def __aiter__(self) -> AsyncIterator[Key]:
        return self

    async def __anext__(self) -> Key:
        while not self._ready:
            call = self._call
            if call is None:
                raise StopAsyncIteration
            await calls.news(call)
            if self._call is not None:
                self._take(call)
        return self._ready.popleft()


class Store(Administration):
    """A connection to a store daemon: made by connect().

    Thread-safe: any number of threads, and asyncio, may share one. Each call has a `timeout` in seconds (None:
    none), is ended by Ctrl-C, and leaves the GIL to others while it waits. Of the calls whose names end in
    `_async` a task that is cancelled cancels the call; each call has such a form.

    `key in store` tells whether a key is bound. A store can be pickled: the process that reads it connects anew. A
    process that is forked has no connection: its calls raise ForkedError, which says what works.
    """

    def __init__(self, client: _native.Client, daemon: str, certificates: Mapping[str, Any] | None = None) -> None:
        self._client: _native.Client | None = client
        self.certificates = dict(certificates or {})
        self._watches: weakref.WeakValueDictionary[int, Watch] = weakref.WeakValueDictionary()
        self.daemon = daemon

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Store:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _connect_again, (self.daemon, self.certificates)

    def __contains__(self, key: str) -> bool:
        """Whether the key is bound."""
        try:
            self.resolve(key)
        except NotFoundError:
            return False
        return True

    def close(self) -> None:
        """Ends the connection and its watches; weights that were got by it stay good."""
        self._client = None
        for watch in self._watches.valuerefs():
            if (pending := watch()) is not None:
                pending.close()

    def __repr__(self) -> str:
        return f"<tensorcast.Store at {self.daemon}{', closed' if self._client is None else ''}>"

    @property
    def native(self) -> _native.Client:
        """The native connection, for the other modules of this package."""
        if self._client is None:
            raise ClosedError("this store was closed")
        return self._client

    def options(self, timeout: float | None) -> _native.CallOptions:
        """What each call of the native connection is given."""
        seconds = None if timeout is None else arguments.seconds(timeout)
        return _native.CallOptions(timeout=seconds, traceparent=tracing.current_traceparent() or "")

    # Getting.

    def _start_get(self, artifact: str, device: arguments.Device, tensors: str | Sequence[str] | None, lane: str,
                   wait_for_space: bool, confirmed: bool, attach: bool, pin: bool, timeout: float | None) -> _native.Call:
        return self.native.get(arguments.text("artifact", artifact), location=arguments.location(device),
                               tensors=_chosen(tensors), lane=arguments.text("lane", lane),
                               wait_for_space=bool(wait_for_space), confirmed=bool(confirmed), attach=attach, pin=bool(pin),
                               options=self.options(timeout))

    def _get(self, artifact: str, *, device: arguments.Device = "cpu", tensors: str | Sequence[str] | None = None,
             lane: str = "", wait_for_space: bool = False, confirmed: bool = False, pin: bool = False,
             timeout: float | None = None, progress: bool = True) -> calls.Steps[Weights]:
        """Brings an artifact to this host and maps it: no copy is made for the caller.

        artifact: a key, or an artifact id.
        device: "cpu", or "gpu:N" (or "cuda:N", or a torch.device), where the daemon's GPU N is.
        tensors: only these; names, or patterns of names as a shell has them ("model.layers.[0-7].*"). None: all.
        lane: force "local", "ucx", "ucx-rma", "tcp" or "disk".
        wait_for_space: wait, to the timeout, where the pool is full of what is in use.
        confirmed: UnavailableError where the global store does not answer, instead of a key as this daemon last knew it.
        pin: keep it on this node also when nobody uses it, until it is unpinned.
        progress: a bar on the terminal or in the notebook, if there is one, for what takes long.

        NotFoundError for what nobody has, ResourceExhaustedError where there is no room,
        FailedPreconditionError where the daemon's memory cannot be mapped here (another host's), DataLossError
        when no source has intact bytes.
        """
        call = self._start_get(artifact, device, tensors, lane, wait_for_space, confirmed, True, pin, timeout)
        return Weights((yield call, f"get {artifact}" if progress else None), self)

    get, get_async = calls.forms(_get)

    def _get_at(self, artifact: str, devices: arguments.Device | Sequence[arguments.Device], *,
                tensors: str | Sequence[str] | None = None, lane: str = "", wait_for_space: bool = False,
                confirmed: bool = False, pin: bool = False, timeout: float | None = None, progress: bool = True) -> calls.Steps[dict[str, Weights]]:
        """As get, at several devices of this host side by side: the weights at each.

        devices: as get takes one; "gpu:all" is every GPU of the daemon. What is not on this host yet comes to it once.

        All or none: the first error, which names its device, ends the rest.
        """
        call = self.native.get_at(arguments.text("artifact", artifact), locations=arguments.locations("devices", devices),
                                  tensors=_chosen(tensors), lane=arguments.text("lane", lane),
                                  wait_for_space=bool(wait_for_space), confirmed=bool(confirmed), pin=bool(pin),
                                  options=self.options(timeout))
        replicas = yield call, f"get {artifact}" if progress else None
        return {replica.device: Weights(replica, self) for replica in replicas}

    get_at, get_at_async = calls.forms(_get_at)

    def _prefetch(self, artifact: str, *, device: arguments.Device = "cpu", tensors: str | Sequence[str] | None = None,
                  lane: str = "", wait_for_space: bool = False, confirmed: bool = False, pin: bool = False,
                  timeout: float | None = None, progress: bool = True) -> calls.Steps[str]:
        """Brings an artifact to this host (device may be "disk", too) without mapping it: its replica's id."""
        call = self._start_get(artifact, device, tensors, lane, wait_for_space, confirmed, False, pin, timeout)
        replica: _native.Replica = yield call, f"prefetch {artifact}" if progress else None
        return replica.replica_id

    prefetch, prefetch_async = calls.forms(_prefetch)

    # Putting.

    def _start_put(self, source: str | os.PathLike[str] | Mapping[str, Any], key: str | None,
                   metadata: Mapping[str, str] | None, device: arguments.Device, expected_revision: int | None, keep: int | None,
                   durable: bool,
                   wait_for_space: bool, verify: bool, pin: bool, timeout: float | None) -> _native.Call:
        if key is not None:
            arguments.text("key", key)
        revision = arguments.revision(expected_revision)
        versions = arguments.keep(keep)
        if key is None and versions is not None:
            raise InvalidArgumentError("keep is of a key, and no key was given")
        if isinstance(source, Mapping):
            if verify:
                raise InvalidArgumentError("verify is for files: what is in memory is read once anyway")
            return self.native.put(arrays.to_put(source), metadata=_metadata(metadata), key=key,
                                   expected_revision=revision, keep=versions, durable=bool(durable),
                                   location=arguments.location(device), wait_for_space=bool(wait_for_space),
                                   pin=bool(pin), options=self.options(timeout))
        if metadata is not None:
            raise InvalidArgumentError("metadata is for tensors: files carry their own")
        if not isinstance(source, (str, bytes, os.PathLike)):
            raise InvalidTypeError("source is a path, or a mapping of names to arrays, not "
                                   f"{arguments.shown(source)}")
        return self.native.import_files(arguments.path("source", source), key=key,
                                        expected_revision=revision, keep=versions, durable=bool(durable),
                                        location=arguments.location(device), wait_for_space=bool(wait_for_space),
                                        verify=bool(verify), pin=bool(pin), options=self.options(timeout))

    def _put(self, source: str | os.PathLike[str] | Mapping[str, Any], key: str | None = None, *,
             metadata: Mapping[str, str] | None = None, device: arguments.Device = "cpu",
             expected_revision: int | None = None, keep: int | None = None, durable: bool = False, wait_for_space: bool = False,
             verify: bool = False, pin: bool = False, timeout: float | None = None,
             progress: bool = True) -> calls.Steps[Put]:
        """Stores a model, and binds a key to it.

        source: a .safetensors file or a folder of shards with their index, which this process opens and the daemon reads
            (through "host:port" the daemon opens the path itself, below its import roots); or a
            mapping of names to arrays: numpy's, torch's, jax's, whatever has DLPack or the buffer protocol, in
            host memory or on a GPU. These are copied once; nothing of them is kept. They must not be written to
            until the put returns.
        metadata: of a mapping of arrays.
        expected_revision: compare-and-swap of the key; 0: it must not exist yet. FailedPreconditionError if it is
            another.
        keep: how many versions the key keeps from now on, this one among them; earlier ones go when room is needed
            and no lease is on them. None: what an earlier put gave, else what the global store's configuration says.
        durable: packed to disk before this returns. What was packed stays until `rm` or `gc`.
        verify: read the files twice; AbortedError when something wrote to them meanwhile.
        pin: keep it on this node also when nobody uses it, until it is unpinned. A call of its own, once it is
            stored: the error of that one says so, and the model is there.

        InvalidArgumentError names the tensor, or the file, that cannot be stored; NotFoundError and
        PermissionDeniedError for a path that this process cannot open.
        """
        call = self._start_put(source, key, metadata, device, expected_revision, keep, durable, wait_for_space,
                               verify, pin, timeout)
        return Put(**(yield call, f"put {key or 'tensors'}" if progress else None))

    put, put_async = calls.forms(_put)

    def _find_imported(self, path: str | os.PathLike[str], *, timeout: float | None = None) -> calls.Steps[tuple[str, int]]:
        """What this host's daemon imported a file as: an artifact id, and of how many files that import was.

        NotFoundError when it did not, or when the file has another size or mtime since.
        """
        found: tuple[str, int] = yield self.native.find_imported(arguments.path("path", path), options=self.options(timeout))
        return found

    find_imported, find_imported_async = calls.forms(_find_imported)

    # Keys.

    def _resolve(self, key: str, *, confirmed: bool = False, timeout: float | None = None) -> calls.Steps[Key]:
        """What a key means. NotFoundError for a key that is not bound.

        confirmed: as in get. Without it such an answer is marked: `unconfirmed`.
        """
        call = self.native.resolve_key(arguments.text("key", key), confirmed=bool(confirmed), options=self.options(timeout))
        return Key(**(yield call))

    resolve, resolve_async = calls.forms(_resolve)

    def _bind(self, key: str, artifact_id: str, *, expected_revision: int | None = None, keep: int | None = None,
              timeout: float | None = None) -> calls.Steps[Key]:
        """Binds a key to another artifact (its id, or a key that is bound to it now), under the next revision.

        expected_revision, keep: as in put.
        """
        call = self.native.bind_key(arguments.text("key", key), arguments.text("artifact_id", artifact_id),
                                    expected_revision=arguments.revision(expected_revision), keep=arguments.keep(keep),
                                    options=self.options(timeout))
        return Key(**(yield call))

    bind, bind_async = calls.forms(_bind)

    def _unbind(self, key: str, *, expected_revision: int | None = None, timeout: float | None = None) -> calls.Steps[None]:
        """Takes a key away; the artifact stays."""
        yield self.native.delete_key(arguments.text("key", key), expected_revision=arguments.revision(expected_revision),
                                     options=self.options(timeout))

    unbind, unbind_async = calls.forms(_unbind)

    def _keys(self, prefix: str = "", *, timeout: float | None = None) -> calls.Steps[Listing[Key]]:
        """The keys under a prefix, in their order."""
        found = yield self.native.list_keys(arguments.text("prefix", prefix), options=self.options(timeout))
        return Listing(Key(**key) for key in found)

    keys, keys_async = calls.forms(_keys)

    def watch(self, prefix: str = "", *, timeout: float | None = None) -> Watch:
        """The keys under a prefix as they are, then each change: for `for`, and for `async for`.

        DeadlineExceededError after the timeout.
        """
        watch = Watch(self.native.watch_keys(arguments.text("prefix", prefix), options=self.options(timeout)))
        self._watches[id(watch)] = watch
        if self._client is None:  # closed by another thread, which may not have seen this one
            watch.close()
        return watch


def _chosen(tensors: str | Sequence[str] | None) -> list[str]:
    if tensors is None:
        return []  # all, to the daemon
    chosen = arguments.texts("tensors", tensors)
    if not chosen:
        raise InvalidArgumentError("tensors is empty, so there is nothing to get: None stands for all")
    return chosen


def _metadata(given: Mapping[str, str] | None) -> dict[str, str]:
    if given is not None and not isinstance(given, Mapping):
        raise InvalidTypeError(f"metadata is a mapping of str to str, not {arguments.shown(given)}")
    for name, said in (given or {}).items():
        if not isinstance(name, str) or not isinstance(said, str):
            raise InvalidTypeError(f"metadata is str to str, not {arguments.shown(name)} to {arguments.shown(said)}")
    return {arguments.text("metadata", name): arguments.text("metadata", said) for name, said in (given or {}).items()}


def _connect(daemon: str | os.PathLike[str] | None = None, *, timeout: float = 5.0, wait: float = 0.0,
             ca: str = "", certificate: str = "", key: str = "", trust_domain: str = "") -> calls.Steps[Store]:
    """Connects to the store daemon of this host.

    daemon: a socket ("unix:/path" or a path) or "host:port"; else TENSORCAST_DAEMON, else the host's default socket.
    timeout: seconds that a daemon which is there may take to answer.
    wait: seconds to wait for a daemon that is not there yet; 0: that is an error at once.
    ca, certificate, key, trust_domain: PEM files and a name, for mutual TLS with host:port.

    UnavailableError when no daemon is there, or it gives no answer; PermissionDeniedError when this user may not
    connect; InvalidArgumentError for an address or certificates that make no sense.
    """
    address = daemon_address(daemon)
    given = {"ca": ca, "certificate": certificate, "key": key, "trust_domain": trust_domain}
    certificates = {name: value for name, value in given.items() if arguments.text(name, value)}
    client = yield _native.connect(address, arguments.seconds(timeout), arguments.seconds(wait),
                                   _native.Certificates(**certificates))
    return Store(client, address, certificates)


connect, connect_async = calls.forms(_connect)


def _connect_again(daemon: str, certificates: Mapping[str, Any]) -> Store:
    return connect(daemon, **certificates)
