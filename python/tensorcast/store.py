"""Connecting to the store daemon of this host, and what can be asked of it."""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from tensorcast import _native, arguments, arrays, calls, tracing
from tensorcast.admin import Administration
from tensorcast.errors import ClosedError, InvalidArgumentError, InvalidTypeError, UnavailableError
from tensorcast.weights import Weights

# The socket for programs of the host, then that for the daemon's own user, of a daemon without configuration.
DEFAULT_SOCKETS = ("/var/lib/tensorcast/client.sock", "/var/lib/tensorcast/daemon.sock")


@dataclasses.dataclass(frozen=True)
class Key:
    """A key and what it means; in a watch, a change of it."""

    name: str
    artifact_id: str
    revision: int
    updated: float  # seconds since 1970
    deleted: bool = False
    unconfirmed: bool = False  # the global store did not answer: as the daemon last knew it


@dataclasses.dataclass(frozen=True)
class Put:
    """What was stored."""

    artifact_id: str
    replica_id: str
    existed: bool  # the same content was there already
    key_revision: int  # 0: no key was asked for
    transfer: dict[str, Any] | None


def daemon_address(daemon: str | None = None) -> str:
    """Where the daemon is: the argument, else TENSORCAST_DAEMON, else the host's default socket."""
    if daemon is not None and arguments.text("daemon", daemon):
        return daemon
    if named := os.environ.get("TENSORCAST_DAEMON"):
        return named
    for path in DEFAULT_SOCKETS:
        if os.access(path, os.W_OK):
            return f"unix:{path}"
    raise UnavailableError(f"no daemon was named, TENSORCAST_DAEMON is not set, and neither {DEFAULT_SOCKETS[0]} "
                           f"nor {DEFAULT_SOCKETS[1]} is a socket that this user may use")


def location_of(device: str) -> str:
    """A device as the store calls it: "cpu", "gpu:N" (also as torch has it, "cuda:N"), or "disk"."""
    if arguments.text("device", device) in ("gpu", "cuda"):
        return "gpu:0"
    return "gpu:" + device.removeprefix("cuda:") if device.startswith("cuda:") else device


class Watch:
    """Keys under a prefix: as they are, then each change, for as long as it is iterated over.

    `for` in a thread, `async for` in a coroutine; close(), or the end of a `with`, ends it. A connection that
    breaks is made again, and each change is told once.
    """

    def __init__(self, call: _native.Call) -> None:
        self._call: _native.Call | None = call
        self._ready: collections.deque[Key] = collections.deque()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
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
        if not taken:
            call.result()  # it has ended, and says why

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
    `_async` a task that is cancelled cancels the call.

    A process that is forked has no connection: its calls raise ForkedError.
    """

    def __init__(self, client: _native.Client, daemon: str) -> None:
        self._client: _native.Client | None = client
        self.daemon = daemon

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; weights that were got by it stay good."""
        self._client = None

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

    def _start_get(self, artifact: str, device: str, tensors: str | Sequence[str] | None, lane: str,
                   wait_for_space: bool, attach: bool, pin: bool, timeout: float | None) -> _native.Call:
        return self.native.get(arguments.text("artifact", artifact), location=location_of(device),
                               tensors=_chosen(tensors), lane=arguments.text("lane", lane),
                               wait_for_space=bool(wait_for_space), attach=attach, pin=bool(pin),
                               options=self.options(timeout))

    def get(self, artifact: str, *, device: str = "cpu", tensors: str | Sequence[str] | None = None, lane: str = "",
            wait_for_space: bool = False, pin: bool = False, timeout: float | None = None,
            progress: bool = True) -> Weights:
        """Brings an artifact to this host, from whoever has it, and maps it: no copy is made for the caller.

        artifact: a key, or an artifact id.
        device: "cpu", or "gpu:N" (or "cuda:N"), where the daemon's GPU N is.
        tensors: only these; names, or patterns of names as a shell has them ("model.layers.[0-7].*"). None: all.
        lane: force "local", "ucx", "ucx-rma", "tcp" or "disk".
        wait_for_space: wait, to the timeout, where the pool is full of what is in use.
        pin: keep it on this node also when nobody uses it, until it is unpinned.
        progress: a bar on the terminal, if there is one, for what takes long.

        NotFoundError for what nobody has, ResourceExhaustedError where there is no room,
        FailedPreconditionError where the daemon's memory cannot be mapped here (another host's), DataLossError
        when no source has intact bytes.
        """
        call = self._start_get(artifact, device, tensors, lane, wait_for_space, True, pin, timeout)
        return Weights(calls.finish(call, f"get {artifact}" if progress else None))

    async def get_async(self, artifact: str, *, device: str = "cpu", tensors: str | Sequence[str] | None = None,
                        lane: str = "", wait_for_space: bool = False, pin: bool = False,
                        timeout: float | None = None) -> Weights:
        """As get, for asyncio."""
        call = self._start_get(artifact, device, tensors, lane, wait_for_space, True, pin, timeout)
        return Weights(await calls.finish_async(call))

    def _start_get_at(self, artifact: str, devices: str | Sequence[str], tensors: str | Sequence[str] | None, lane: str,
                      wait_for_space: bool, pin: bool, timeout: float | None) -> _native.Call:
        locations = [location_of(device) for device in arguments.texts("devices", devices)]
        return self.native.get_at(arguments.text("artifact", artifact), locations=locations,
                                  tensors=_chosen(tensors), lane=arguments.text("lane", lane),
                                  wait_for_space=bool(wait_for_space), pin=bool(pin),
                                  options=self.options(timeout))

    def get_at(self, artifact: str, devices: str | Sequence[str], *, tensors: str | Sequence[str] | None = None,
               lane: str = "", wait_for_space: bool = False, pin: bool = False, timeout: float | None = None,
               progress: bool = True) -> dict[str, Weights]:
        """As get, at several devices of this host side by side: the weights at each.

        devices: their names; "gpu:all" is every GPU of the daemon. What is not on this host yet comes to it once.

        All or none: the first error, which names its device, ends the rest.
        """
        call = self._start_get_at(artifact, devices, tensors, lane, wait_for_space, pin, timeout)
        return _by_device(calls.finish(call, f"get {artifact}" if progress else None))

    async def get_at_async(self, artifact: str, devices: str | Sequence[str], *,
                           tensors: str | Sequence[str] | None = None, lane: str = "", wait_for_space: bool = False,
                           pin: bool = False, timeout: float | None = None) -> dict[str, Weights]:
        """As get_at, for asyncio."""
        call = self._start_get_at(artifact, devices, tensors, lane, wait_for_space, pin, timeout)
        return _by_device(await calls.finish_async(call))

    def prefetch(self, artifact: str, *, device: str = "cpu", tensors: str | Sequence[str] | None = None,
                 lane: str = "", wait_for_space: bool = False, pin: bool = False, timeout: float | None = None,
                 progress: bool = True) -> str:
        """Brings an artifact to this host (device may be "disk", too) without mapping it: its replica's id."""
        call = self._start_get(artifact, device, tensors, lane, wait_for_space, False, pin, timeout)
        replica: _native.Replica = calls.finish(call, f"prefetch {artifact}" if progress else None)
        return replica.replica_id

    # Putting.

    def _start_put(self, source: str | os.PathLike[str] | Mapping[str, Any], key: str | None,
                   metadata: Mapping[str, str] | None, device: str, expected_revision: int | None, durable: bool,
                   wait_for_space: bool, verify: bool, pin: bool, timeout: float | None) -> _native.Call:
        if key is not None:
            arguments.text("key", key)
        revision = arguments.revision(expected_revision)
        if isinstance(source, Mapping):
            if verify:
                raise InvalidArgumentError("verify is for files: what is in memory is read once anyway")
            return self.native.put(arrays.to_put(source), metadata=_metadata(metadata), key=key,
                                   expected_revision=revision, durable=bool(durable),
                                   location=location_of(device), wait_for_space=bool(wait_for_space),
                                   pin=bool(pin), options=self.options(timeout))
        if metadata is not None:
            raise InvalidArgumentError("metadata is for tensors: files carry their own")
        if not isinstance(source, (str, bytes, os.PathLike)):
            raise InvalidTypeError("source is a path, or a mapping of names to arrays, not "
                                   f"{arguments.shown(source)}")
        return self.native.import_files(arguments.path("source", source), key=key,
                                        expected_revision=revision, durable=bool(durable),
                                        location=location_of(device), wait_for_space=bool(wait_for_space),
                                        verify=bool(verify), pin=bool(pin), options=self.options(timeout))

    def put(self, source: str | os.PathLike[str] | Mapping[str, Any], key: str | None = None, *,
            metadata: Mapping[str, str] | None = None, device: str = "cpu", expected_revision: int | None = None,
            durable: bool = False, wait_for_space: bool = False, verify: bool = False,
            pin: bool = False, timeout: float | None = None, progress: bool = True) -> Put:
        """Stores a model, and binds a key to it.

        source: a .safetensors file or a folder of shards with their index, which the daemon reads itself; or a
            mapping of names to arrays: numpy's, torch's, jax's, whatever has DLPack or the buffer protocol, in
            host memory or on a GPU. These are copied once; nothing of them is kept.
        metadata: of a mapping of arrays.
        expected_revision: compare-and-swap of the key; 0: it must not exist yet. FailedPreconditionError if it is
            another.
        durable: packed to disk before this returns.
        verify: read the files twice; AbortedError when something wrote to them meanwhile.
        pin: keep it on this node also when nobody uses it, until it is unpinned. A call of its own, once it is
            stored: the error of that one says so, and the model is there.

        InvalidArgumentError names the tensor, or the file, that cannot be stored; PermissionDeniedError for
        a path that is not below the daemon's import roots.
        """
        call = self._start_put(source, key, metadata, device, expected_revision, durable, wait_for_space, verify,
                               pin, timeout)
        return Put(**calls.finish(call, f"put {key or 'tensors'}" if progress else None))

    async def put_async(self, source: str | os.PathLike[str] | Mapping[str, Any], key: str | None = None, *,
                        metadata: Mapping[str, str] | None = None, device: str = "cpu",
                        expected_revision: int | None = None, durable: bool = False,
                        wait_for_space: bool = False, verify: bool = False, pin: bool = False,
                        timeout: float | None = None) -> Put:
        """As put, for asyncio. The arrays must not be written to until it returns."""
        call = self._start_put(source, key, metadata, device, expected_revision, durable, wait_for_space, verify,
                               pin, timeout)
        return Put(**await calls.finish_async(call))

    def find_imported(self, path: str | os.PathLike[str], *, timeout: float | None = None) -> tuple[str, int]:
        """What this host's daemon imported a file as: an artifact id, and of how many files that import was.

        NotFoundError when it did not, or when the file has another size or mtime since.
        """
        found: tuple[str, int] = calls.finish(self.native.find_imported(arguments.path("path", path),
                                                                        options=self.options(timeout)))
        return found

    # Keys.

    def resolve(self, key: str, *, timeout: float | None = None) -> Key:
        """What a key means. NotFoundError for one that nobody bound."""
        return Key(**calls.finish(self.native.resolve_key(arguments.text("key", key), options=self.options(timeout))))

    def bind(self, key: str, artifact_id: str, *, expected_revision: int | None = None,
             timeout: float | None = None) -> Key:
        """Binds a key to another artifact, under the next revision; compare-and-swap as in put."""
        call = self.native.bind_key(arguments.text("key", key), arguments.text("artifact_id", artifact_id),
                                    expected_revision=arguments.revision(expected_revision),
                                    options=self.options(timeout))
        return Key(**calls.finish(call))

    def unbind(self, key: str, *, expected_revision: int | None = None, timeout: float | None = None) -> None:
        """Takes a key away; the artifact stays."""
        calls.finish(self.native.delete_key(arguments.text("key", key),
                                            expected_revision=arguments.revision(expected_revision),
                                            options=self.options(timeout)))

    def keys(self, prefix: str = "", *, timeout: float | None = None) -> list[Key]:
        """The keys under a prefix, in their order."""
        call = self.native.list_keys(arguments.text("prefix", prefix), options=self.options(timeout))
        return [Key(**key) for key in calls.finish(call)]

    def watch(self, prefix: str = "", *, timeout: float | None = None) -> Watch:
        """The keys under a prefix as they are, then each change: for `for`, and for `async for`.

        DeadlineExceededError after the timeout.
        """
        return Watch(self.native.watch_keys(arguments.text("prefix", prefix), options=self.options(timeout)))


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


def _by_device(replicas: Sequence[_native.Replica]) -> dict[str, Weights]:
    return {replica.device: Weights(replica) for replica in replicas}


def _start_connect(address: str, timeout: float, ca: str, certificate: str, key: str,
                   trust_domain: str) -> _native.Call:
    certificates = _native.Certificates(ca=arguments.text("ca", ca), certificate=arguments.text("certificate", certificate),
                                        key=arguments.text("key", key),
                                        trust_domain=arguments.text("trust_domain", trust_domain))
    return _native.connect(address, arguments.seconds(timeout), certificates)


def connect(daemon: str | None = None, *, timeout: float = 5.0, ca: str = "", certificate: str = "",
            key: str = "", trust_domain: str = "") -> Store:
    """Connects to the store daemon of this host.

    daemon: "unix:/path" or "host:port"; else TENSORCAST_DAEMON, else the host's default socket.
    timeout: seconds that it may take to give a sign of life.
    ca, certificate, key, trust_domain: PEM files and a name, for mutual TLS with host:port.

    UnavailableError when it gives none; InvalidArgumentError for an address or certificates that make no sense.
    """
    address = daemon_address(daemon)
    return Store(calls.finish(_start_connect(address, timeout, ca, certificate, key, trust_domain)), address)


async def connect_async(daemon: str | None = None, *, timeout: float = 5.0, ca: str = "", certificate: str = "",
                        key: str = "", trust_domain: str = "") -> Store:
    """As connect, for asyncio."""
    address = daemon_address(daemon)
    call = _start_connect(address, timeout, ca, certificate, key, trust_domain)
    return Store(await calls.finish_async(call), address)
