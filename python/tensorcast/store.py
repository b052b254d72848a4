"""The connection to the store daemon of this host, and its calls."""

from __future__ import annotations

import collections
import dataclasses
import os
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from tensorcast import _native, arguments, arrays, calls, changes, tracing
from tensorcast.admin import Administration
from tensorcast.errors import CancelledError, ClosedError, InvalidArgumentError, InvalidTypeError, NotFoundError
from tensorcast.files import Files
from tensorcast.groups import Group
from tensorcast.live import Follow
from tensorcast.tables import Listing, Shown
from tensorcast.weights import Weights

_Options = TypeVar("_Options", _native.GetOptions, _native.PutOptions)


@dataclasses.dataclass(frozen=True)
class Key(Shown):
    """A key and the artifact that it is bound to. A watch gives one for each change of a key."""

    name: str
    artifact_id: str
    revision: int
    updated: float  # seconds since 1970
    deleted: bool = False
    unconfirmed: bool = False  # True: the global store did not answer, and the daemon remembered this binding
    files_id: str = ""  # the artifact id of the files (config.json, tokenizer) that are bound with the tensors; "": none
    keep: int = 0  # number of versions that the key keeps, with the current one; 0: unknown (in a watch)
    earlier: tuple[str, ...] = ()  # ids of the earlier versions that the key keeps, the newest first


@dataclasses.dataclass(frozen=True)
class Put(Shown):
    """The result of a put."""

    artifact_id: str
    replica_id: str
    existed: bool  # True: the store had the same artifact before the put
    key_revision: int  # 0: the put named no key
    files_id: str  # the artifact id of the files that the key binds with the tensors; "": none
    transfer: dict[str, Any] | None
    difference: dict[str, Any] | None = None  # the published difference: artifact_id, base_id, target_id, image_bytes
    no_difference: str = ""  # why a requested difference was not made; "": made, or not requested


class Watch(calls.Closing):
    """An iterator over the keys that begin with a prefix: first every key as it is now, then each change.

    Iterate with `for` in a thread or with `async for` in a coroutine. close(), the end of a `with` block and the store's
    close() end the watch. After a broken connection the watch connects again, and gives no change twice. Of several quick
    changes of one key, a slow program may get only the last.
    """

    def __init__(self, call: _native.Call) -> None:
        self._call: _native.Call | None = call
        self._ready: collections.deque[Key] = collections.deque()

    def close(self) -> None:
        """Ends the watch. A thread that waits for the next change gets StopIteration."""
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    def pending(self) -> list[Key]:
        """Returns the changes that have arrived and were not returned yet, without waiting. Iteration does not repeat
        them.
        """
        if (call := self._call) is not None:
            self._ready.extend(Key(**key) for key in call.take())
        pending = list(self._ready)
        self._ready.clear()
        return pending

    def _take(self, call: _native.Call) -> None:
        taken: list[dict[str, Any]] = call.take()
        self._ready.extend(Key(**key) for key in taken)
        if taken:
            return
        try:
            call.result()  # the call has ended: this raises its error
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


class Store(Administration, calls.Closing):
    """A connection to a store daemon, made by connect().

    Thread-safe: any number of threads, and asyncio, may share one store. Each call has a `timeout` in seconds (None: no
    timeout) and releases the GIL while it waits. Ctrl-C cancels the call. Each call except watch() and follow() also
    has a form for asyncio, with `_async` after its name. Cancelling the task cancels the call.

    `key in store` tells whether a key is bound. A store can be pickled: the process that unpickles it makes a connection of
    its own. A forked process has no connection: its calls raise ForkedError with a message that says what works there.
    """

    def __init__(self, client: _native.Client, daemon: str, certificates: Mapping[str, Any] | None = None) -> None:
        self._client: _native.Client | None = client
        self.certificates = dict(certificates or {})
        self._watches: weakref.WeakValueDictionary[int, Watch] = weakref.WeakValueDictionary()
        self.daemon = daemon

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
        """Ends the connection and its watches. Weights from this store stay valid."""
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
            raise ClosedError(f"the store at {self.daemon} was closed; connect again")
        return self._client

    def options(self, timeout: float | None) -> _native.CallOptions:
        """The options of one native call: its timeout, and its trace."""
        seconds = None if timeout is None else arguments.seconds(timeout)
        return _native.CallOptions(timeout=seconds, traceparent=tracing.current_traceparent() or "")

    # Getting.

    def _start_get(self, artifact: str, device: arguments.Device, tensors: str | Sequence[str] | None, lane: str,
                   wait_for_space: bool, confirmed: bool, attach: bool, pin: bool, advance: bool,
                   options: _native.CallOptions) -> _native.Call:
        get = _filled(_native.GetOptions(), location=arguments.location(device), tensors=_chosen(tensors),
                      lane=arguments.text("lane", lane), wait_for_space=bool(wait_for_space), confirmed=bool(confirmed),
                      attach=attach, pin=bool(pin), advance=bool(advance))
        return self.native.get(arguments.text("artifact", artifact), get, options=options)

    def _get(self, artifact: str, *, device: arguments.Device = "cpu", tensors: str | Sequence[str] | None = None,
             lane: str = "", wait_for_space: bool = False, confirmed: bool = False, pin: bool = False,
             advance: bool = False, into: Mapping[str, Any] | None = None, from_: Any = None, live: bool = False,
             timeout: float | None = None, progress: bool = True) -> calls.Steps[Weights]:
        """Brings an artifact to this host and maps it. The caller reads the store's own memory; nothing is copied.

        artifact: a key, or an artifact id.
        device: where the replica is: "cpu", or "gpu:N" (also "cuda:N" or a torch.device) for the daemon's GPU N.
        tensors: names of the tensors to get, or shell patterns of names ("model.layers.[0-7].*"). None: all tensors.
        lane: force "local", "ucx", "ucx-rma", "tcp" or "disk".
        wait_for_space: while all replicas of the pool are in use, wait for space until the timeout. With advance, also wait
            for the readers of the earlier version.
        confirmed: raise UnavailableError if the global store does not answer. False: if the global store does not
            answer, use the binding of the key that the daemon remembers.
        pin: keep the replica on this node until unpin(), even while no client has a lease on it.
        advance: overwrite the replica of an earlier version on the same device with this version. So the node holds one
            image instead of two, and the earlier replica is gone. The daemon chooses the replica from which the store's
            differences lead to this version. Without such differences, it chooses the least recently used idle replica on
            that device with the same tensors, under any key. Raises FailedPreconditionError with the reason if the chosen
            replica is in use (also by this process), is pinned, or is a last copy. Cannot be combined with tensors, lane or
            "disk".
        into: also copy the tensors into these tensors of the program, by name: contiguous numpy arrays, or torch tensors in
            host memory or on a GPU, with the same dtypes and shapes. Weights.written describes the write. This thread
            enqueues writes to a GPU on torch's current stream, and the timeout does not end them. get_async enqueues them in
            the event loop's thread, and blocks the loop meanwhile. After an error, repeat the call to finish the write.
        from_: the version that the tensors of `into` hold: an artifact id, a value with an artifact_id, or a list of these
            if the tensors may hold a mixture. If the store has the differences from these versions, only changed elements
            are written. None: all elements are written.
        live: the weights can change to a later version at the same addresses. They change when all processes that hold them
            call Weights.commit(), or Version.commit() of a follow. Requires all tensors, in host memory or on a GPU.
        progress: show a bar on the terminal or in the notebook while a long transfer runs.

        Raises NotFoundError if no node has the artifact, and ResourceExhaustedError if the pool has no room. Raises
        FailedPreconditionError if this process cannot map the daemon's memory, because the daemon is on another host.
        Raises DataLossError if no source has intact bytes.
        """
        bases, options = changes.held(from_), self.options(timeout)
        if into is None and bases:
            raise InvalidArgumentError(f"get {artifact}: from_ is for a get that writes into tensors, and into is missing; pass into=")
        if into is not None and arguments.location(device) != "cpu":
            raise InvalidArgumentError(f"get {artifact}: into writes tensors from host memory, not from {arguments.shown(device)}; leave device out")
        if live and arguments.location(device) == "disk":
            raise InvalidArgumentError(f"get {artifact}: live weights are in host memory or on a GPU, not on disk; pass another device")
        if live and tensors is not None:
            raise InvalidArgumentError(f"get {artifact}: live weights have all tensors of the artifact; leave tensors out")
        if live and pin:
            raise InvalidArgumentError(f"get {artifact}: live weights cannot be pinned; leave pin out")
        call = self._start_get(artifact, device, tensors, lane, wait_for_space, confirmed, True, pin, advance, options)
        weights = Weights((yield call, f"get {artifact}" if progress else None), self)
        if live:
            yield from weights.make_live(self, options)
        if into is not None:
            memory = changes.memory_of(weights, into)
            found = yield from changes.find(self, weights, bases, options)
            weights.written = yield from changes.write(weights, memory, found, options)
        return weights

    get, get_async = calls.forms(_get)

    def _get_at(self, artifact: str, devices: arguments.Device | Sequence[arguments.Device], *,
                tensors: str | Sequence[str] | None = None, lane: str = "", wait_for_space: bool = False,
                confirmed: bool = False, pin: bool = False, timeout: float | None = None, progress: bool = True) -> calls.Steps[dict[str, Weights]]:
        """Brings an artifact to several devices of this host in parallel. Returns the weights by device.

        devices: each as in get; "gpu:all" stands for every GPU of the daemon. An artifact that is not on this host yet
            is transferred to it once.

        The other arguments are those of get. The first error names its device and cancels the remaining devices.
        """
        get = _filled(_native.GetOptions(), tensors=_chosen(tensors), lane=arguments.text("lane", lane),
                      wait_for_space=bool(wait_for_space), confirmed=bool(confirmed), pin=bool(pin))
        call = self.native.get_at(arguments.text("artifact", artifact), arguments.locations("devices", devices), get,
                                  options=self.options(timeout))
        replicas = yield call, f"get {artifact}" if progress else None
        return {replica.device: Weights(replica, self) for replica in replicas}

    get_at, get_at_async = calls.forms(_get_at)

    def _prefetch(self, artifact: str, *, device: arguments.Device = "cpu", tensors: str | Sequence[str] | None = None,
                  lane: str = "", wait_for_space: bool = False, confirmed: bool = False, pin: bool = False,
                  advance: bool = False, timeout: float | None = None, progress: bool = True) -> calls.Steps[str]:
        """Brings an artifact to this host without mapping it. Returns the id of the replica.

        device: as in get, or "disk". The other arguments are those of get.
        """
        call = self._start_get(artifact, device, tensors, lane, wait_for_space, confirmed, False, pin, advance, self.options(timeout))
        replica: _native.Replica = yield call, f"prefetch {artifact}" if progress else None
        return replica.replica_id

    prefetch, prefetch_async = calls.forms(_prefetch)

    def _files(self, key: str, *, confirmed: bool = False, timeout: float | None = None) -> calls.Steps[Files]:
        """Brings the files that a key binds with its tensors (config.json, tokenizer) to this host.

        Returns a mapping of paths to bytes.

        confirmed: as in get.

        Raises NotFoundError when the key does not exist or binds no files.
        """
        get = _filled(_native.GetOptions(), wait_for_space=True, confirmed=bool(confirmed))
        replica: _native.Replica = yield self.native.get_files(arguments.text("key", key), get, options=self.options(timeout))
        return Files(replica)

    files, files_async = calls.forms(_files)

    def _changes(self, base: Any, target: str, *, wait_for_space: bool = False, timeout: float | None = None) -> calls.Steps[changes.Changes]:
        """Iterates over the tensors that differ between two versions of a model: the name, flat indices and values of each.

        base, target: a key or an artifact id. The base may also be a value with an artifact_id (Version, Weights, Put,
            Key).
        wait_for_space: as in get, for the target.

        The elements come from the differences that the store has between the two, in either direction. If the store has
        none, both images are brought to this host and compared. The target is always brought to this host.
        """
        options = self.options(timeout)
        named = arguments.text("base", getattr(base, "artifact_id", base))
        call = self._start_get(target, "cpu", None, "", wait_for_space, False, True, False, False, options)
        weights = Weights((yield call), self)
        return changes.Changes(weights, (yield self.native.find_changes(weights.native, named, compare=True, options=options)))

    changes, changes_async = calls.forms(_changes)

    # Putting.

    def _start_put(self, source: str | os.PathLike[str] | Mapping[str, Any], key: str | None,
                   metadata: Mapping[str, str] | None, device: arguments.Device, expected_revision: int | None, keep: int | None,
                   durable: bool, archive: str | None,
                   wait_for_space: bool, verify: bool, pin: bool, files: arguments.FilesBeside,
                   base: str | None, require_difference: bool, timeout: float | None) -> _native.Call:
        if key is not None:
            arguments.text("key", key)
        revision = arguments.revision(expected_revision)
        versions = arguments.keep(keep)
        if key is None and versions is not None:
            raise InvalidArgumentError("put: keep needs a key, and no key was given; pass key=")
        put = _filled(_native.PutOptions(), key=key, expected_revision=revision, keep=versions, durable=bool(durable),
                      archive="" if archive is None else arguments.text("archive", archive),
                      location=arguments.location(device), wait_for_space=bool(wait_for_space), verify=bool(verify),
                      pin=bool(pin), files=bool(files), files_at=arguments.files_at(files),
                      base="" if base is None else arguments.text("base", base), require_difference=bool(require_difference))
        if put.files_at and not isinstance(source, Mapping):
            raise InvalidArgumentError("put: files can be paths only if source has arrays; pass files=True to take the other files of the source folder")
        if put.files_at and key is None:
            raise InvalidArgumentError("put: files need a key, and no key was given; pass key=")
        if isinstance(source, Mapping):
            if verify:
                raise InvalidArgumentError("put: verify is for files; leave it out for arrays, which are read once")
            return self.native.put(arrays.to_put(source), _metadata(metadata), put, options=self.options(timeout))
        if metadata is not None:
            raise InvalidArgumentError("put: metadata is for arrays; leave it out for files, which carry their own")
        if not isinstance(source, (str, bytes, os.PathLike)):
            raise InvalidTypeError("source must be a path, or a mapping of names to arrays, not "
                                   f"{arguments.shown(source)}")
        return self.native.import_files(arguments.model("source", source), put, options=self.options(timeout))

    def _put(self, source: str | os.PathLike[str] | Mapping[str, Any], key: str | None = None, *,
             metadata: Mapping[str, str] | None = None, device: arguments.Device = "cpu",
             expected_revision: int | None = None, keep: int | None = None, durable: bool = False, archive: str | None = None,
             wait_for_space: bool = False, verify: bool = False, pin: bool = False, files: arguments.FilesBeside = True,
             base: str | None = None, require_difference: bool = False, timeout: float | None = None,
             progress: bool = True) -> calls.Steps[Put]:
        """Stores a model, and binds a key to it if one is given.

        source: a .safetensors file, a folder of shards with their index, or a mapping of names to arrays.
            Files: this process opens them and the daemon reads them. Through "host:port" the daemon opens the path
            itself, below its import roots.
            Objects: the URI of such a file or folder, "s3://bucket/prefix", "gs://...", "https://..." or
            "hf://org/name[@revision]". The daemon reads it: with its own credentials if the URI is below its
            daemon.origins, else with those of this process (AWS_*, profiles, HF_TOKEN) for this call.
            Arrays: of numpy, torch, jax, or any library with DLPack or the buffer protocol, in host memory or on a GPU.
            They are copied once, and the store keeps no reference to them. Do not write to them before put returns.
        metadata: texts by name, to store with arrays. Files have their own metadata.
        device: where the replica is made: "cpu", or "gpu:N" as in get.
        expected_revision: bind the key only if it has this revision (compare-and-swap), or with 0 only if the key does
            not exist. If the key has another revision, put raises FailedPreconditionError.
        keep: number of versions that the key keeps from now on, with the new one. Older versions are deleted when room is
            needed and they have no lease. None: the number of an earlier put, else the number in the global store's
            configuration.
        durable: write the packed model to disk before put returns. The file stays until `rm` or `gc`.
        archive: also write the packed model to this archive of the daemon, "s3://bucket/prefix", before put returns. Nodes
            that list the archive in daemon.origins or daemon.archives can read the object. The object stays until `gc`.
        wait_for_space: as in get.
        verify: read the files twice, and raise AbortedError if another process wrote to them meanwhile.
        pin: as in get.
        files: True: bind the other files of a source folder (config.json, tokenizer) with the tensors, for files(). A later
            put of tensors with the same names, dtypes and shapes keeps these files. With arrays and a key, pass a folder, a
            file or a list of these. Such files are bound after the tensors, under a further revision of the key.
        base: also publish the difference from an earlier version, so that a node with that version transfers only the
            changes: "auto" (the version that the key names now), a key, an artifact id, or "none". Put.difference describes
            the result. If no difference can be made, Put.no_difference says why; the model itself is stored anyway. None:
            the daemon's configuration decides.
        require_difference: raise FailedPreconditionError, and publish nothing, if no difference can be made.
        progress: as in get.

        Raises InvalidArgumentError with the name of the tensor or file that cannot be stored. Raises NotFoundError or
        PermissionDeniedError for a path that this process cannot open, or a URI that the daemon cannot read.
        """
        call = self._start_put(source, key, metadata, device, expected_revision, keep, durable, archive, wait_for_space,
                               verify, pin, files, base, require_difference, timeout)
        return Put(**(yield call, f"put {key or 'tensors'}" if progress else None))

    put, put_async = calls.forms(_put)

    def _find_imported(self, path: str | os.PathLike[str], *, timeout: float | None = None) -> calls.Steps[tuple[str, int]]:
        """Finds the artifact that this host's daemon imported from a file. Returns its id and the number of its files.

        Raises NotFoundError if the daemon did not import the file, or the file's size or mtime changed since.
        """
        found: tuple[str, int] = yield self.native.find_imported(arguments.path("path", path), options=self.options(timeout))
        return found

    find_imported, find_imported_async = calls.forms(_find_imported)

    # Keys.

    def _resolve(self, key: str, *, confirmed: bool = False, timeout: float | None = None) -> calls.Steps[Key]:
        """Returns the artifact and the revision of a key. Raises NotFoundError for a key that is not bound.

        confirmed: as in get. Without it, Key.unconfirmed marks an answer that the global store did not give.
        """
        call = self.native.resolve_key(arguments.text("key", key), confirmed=bool(confirmed), options=self.options(timeout))
        return Key(**(yield call))

    resolve, resolve_async = calls.forms(_resolve)

    def _bind(self, key: str, artifact_id: str, *, expected_revision: int | None = None, keep: int | None = None,
              timeout: float | None = None) -> calls.Steps[Key]:
        """Binds a key to another artifact, under the next revision.

        artifact_id: the artifact's id, or a key that is bound to it now.
        expected_revision, keep: as in put.
        """
        call = self.native.bind_key(arguments.text("key", key), arguments.text("artifact_id", artifact_id),
                                    expected_revision=arguments.revision(expected_revision), keep=arguments.keep(keep),
                                    options=self.options(timeout))
        return Key(**(yield call))

    bind, bind_async = calls.forms(_bind)

    def _unbind(self, key: str, *, expected_revision: int | None = None, timeout: float | None = None) -> calls.Steps[None]:
        """Deletes a key; the artifact stays.

        expected_revision: delete the key only if it has this revision.
        """
        yield self.native.delete_key(arguments.text("key", key), expected_revision=arguments.revision(expected_revision),
                                     options=self.options(timeout))

    unbind, unbind_async = calls.forms(_unbind)

    def _keys(self, prefix: str = "", *, timeout: float | None = None) -> calls.Steps[Listing[Key]]:
        """Lists the keys that begin with a prefix, in alphabetical order."""
        found = yield self.native.list_keys(arguments.text("prefix", prefix), options=self.options(timeout))
        return Listing(Key(**key) for key in found)

    keys, keys_async = calls.forms(_keys)

    def watch(self, prefix: str = "", *, timeout: float | None = None) -> Watch:
        """Iterates over the keys that begin with a prefix: first every key as it is now, then each change.

        The result works with `for` and `async for`, and raises DeadlineExceededError after the timeout.
        """
        watch = Watch(self.native.watch_keys(arguments.text("prefix", prefix), options=self.options(timeout)))
        self._watches[id(watch)] = watch
        if self._client is None:  # another thread closed the store, perhaps before this watch was in its set
            watch.close()
        return watch

    def follow(self, key: str, *, prepare: bool = True, device: arguments.Device = "cpu", tensors: str | Sequence[str] | None = None,
               wait_for_space: bool = True, live: Weights | None = None, group: str | None = None, size: int | None = None,
               member: str | None = None, on_lost: str = "wait", lost_after: float = 15.0, timeout: float | None = None) -> Follow:
        """Iterates over the versions of a key: the version that the key names now, then newer ones, never an older one.

        prepare: bring each version to this node before the iterator gives it. False: Version.prepare() or apply() brings
            it.
        device, tensors, wait_for_space: as in get, for the versions.
        live: weights of get(live=True). Each version is prepared for the memory of these weights, and Version.commit()
            changes the weights to the version.
        group: the name of a version group of `size` members, which this process joins. The iterator gives a version after
            all members have prepared it. None: this process follows alone.
        size, member, on_lost, lost_after: as in groups.Group.

        The result works with `for` and `async for`, and raises DeadlineExceededError after the timeout.
        """
        get = {"device": device, "tensors": tensors, "wait_for_space": wait_for_space}
        key = arguments.text("key", key)
        if live is not None and not live.live:
            raise InvalidArgumentError(f"follow {key}: live must be weights of get(live=True), and these weights do not change; get them with live=True")
        if live is not None and (tensors is not None or arguments.location(device) not in ("cpu", live.device)):
            raise InvalidArgumentError(f"follow {key}: live weights change as a whole and on their own device; leave out tensors and device")
        if group is None:
            if size is not None:
                raise InvalidArgumentError(f"follow {key}: size={size!r} is the size of a group; pass group, too")
            return Follow(self, self.watch(key, timeout=timeout), key, bool(prepare), get, live, timeout)
        if not prepare:
            raise InvalidArgumentError(f"follow {key}: a group announces only versions that its members have prepared; leave out prepare=False")
        if size is None:
            raise InvalidArgumentError(f"follow {key}: group {group} needs its size; pass the number of members")
        members = Group(self, key, group, size, member=member, on_lost=on_lost, lost_after=lost_after)
        return Follow(self, members, key, True, get, live, timeout)


def _chosen(tensors: str | Sequence[str] | None) -> list[str]:
    if tensors is None:
        return []  # means all tensors to the daemon
    chosen = arguments.texts("tensors", tensors)
    if not chosen:
        raise InvalidArgumentError("tensors is empty, so there is nothing to get; pass None for all tensors")
    return chosen


def _metadata(given: Mapping[str, str] | None) -> dict[str, str]:
    if given is not None and not isinstance(given, Mapping):
        raise InvalidTypeError(f"metadata must be a mapping of str to str, not {arguments.shown(given)}")
    for name, said in (given or {}).items():
        if not isinstance(name, str) or not isinstance(said, str):
            raise InvalidTypeError(f"metadata must map str to str, not {arguments.shown(name)} to {arguments.shown(said)}")
    return {arguments.text("metadata", name): arguments.text("metadata", said) for name, said in (given or {}).items()}


def _filled(options: _Options, **fields: Any) -> _Options:
    """The options with these fields; None leaves the default."""
    for name, value in fields.items():
        if value is not None:
            setattr(options, name, value)
    return options


def _connect(daemon: str | os.PathLike[str] | None = None, *, timeout: float = 5.0, wait: float = 0.0,
             ca: str = "", certificate: str = "", key: str = "", trust_domain: str = "") -> calls.Steps[Store]:
    """Connects to the store daemon of this host.

    daemon: a socket ("unix:/path" or a path) or "host:port". None: TENSORCAST_DAEMON, else the first daemon that listens in
        $XDG_RUNTIME_DIR/tensorcast, in this user's state folder or in /run/tensorcast.
    timeout: max seconds until a running daemon answers.
    wait: seconds to wait for a daemon that does not run yet. 0: raise UnavailableError at once.
    ca, certificate, key: PEM files, for mutual TLS with "host:port".
    trust_domain: the trust domain that the daemon's certificate must have. Empty: the one of `certificate`.

    Raises UnavailableError if no daemon runs there or the daemon does not answer, and PermissionDeniedError if this user
    may not connect. Raises InvalidArgumentError for a malformed address or unusable certificates.
    """
    given = {"ca": ca, "certificate": certificate, "key": key, "trust_domain": trust_domain}
    certificates = {name: value for name, value in given.items() if arguments.text(name, value)}
    client: _native.Client = yield _native.connect(arguments.daemon(daemon), arguments.seconds(timeout),
                                                   arguments.seconds(wait), _native.Certificates(**certificates))
    return Store(client, client.daemon, certificates)


connect, connect_async = calls.forms(_connect)


def _connect_again(daemon: str, certificates: Mapping[str, Any]) -> Store:
    return connect(daemon, **certificates)
