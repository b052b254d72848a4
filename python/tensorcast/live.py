"""Following a key: each new version, once it is ready on this node.

    async for version in store.follow("policy"):               # or `for`, in a thread
        engine.pause()
        version.apply(into=tensors)                            # the elements that changed, into memory of the engine
        version.commit()
        engine.resume()
        print(version.revision, version.pause_seconds)
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tensorcast import _native, calls, changes
from tensorcast.errors import ClosedError, InvalidArgumentError, NotFoundError
from tensorcast.groups import Group
from tensorcast.weights import Weights

if TYPE_CHECKING:
    from tensorcast.store import Key, Store, Watch


class Version:
    """A version of a followed key. Made by Follow."""

    def __init__(self, follow: Follow, revision: int, artifact_id: str) -> None:
        self._follow = follow
        self._weights: Weights | None = None
        self.key = follow.key
        self.artifact_id = artifact_id
        self.revision = revision
        self.pause_seconds = 0.0  # in apply() and commit(), when the program does not compute
        self._bases: frozenset[str] = frozenset()  # that the changes are from
        self._found: list[_native.Changes] | None = None

    def __repr__(self) -> str:
        return f"<tensorcast.Version {self.revision} of {self.key}: {self.artifact_id}>"

    @property
    def weights(self) -> Weights:
        """The tensors of this version, with its lease. With prepare=False only after prepare() or apply().

        Of a follow with live weights: these, which are of this version from commit() on.
        """
        if self._follow.live is not None:
            return self._follow.live
        if self._weights is None:
            raise ClosedError(f"version {self.revision} of {self.key} is not prepared; call prepare()")
        return self._weights

    def _prepare(self, *, timeout: float | None = None) -> calls.Steps[Weights]:
        """Brings this version to the node, and takes a lease on it. It returns at once for a version that is prepared."""
        if self._follow.live is not None:
            if self._follow.live.artifact_id != self.artifact_id:
                yield from self._follow.live._prepare(self.artifact_id, timeout=timeout)
            return self._follow.live
        if self._weights is None:
            self._weights = yield from self._follow.get(self.artifact_id, timeout)
            # From what apply() wrote last: then the next apply() only writes.
            yield from self._find(self._follow.held, self._follow.store.options(timeout))
        return self._weights

    prepare, prepare_async = calls.forms(_prepare)

    def _find(self, bases: frozenset[str], options: _native.CallOptions) -> calls.Steps[list[_native.Changes]]:
        if self._found is None or self._bases != bases:
            self._found = yield from changes.find(self._follow.store, self.weights, sorted(bases), options)
            self._bases = bases
        return self._found

    def _apply(self, into: Mapping[str, Any], *, from_: Any = None, timeout: float | None = None) -> calls.Steps[changes.Written]:
        """Writes this version into tensors that the program owns: numpy arrays, or torch tensors in host memory or on a GPU.

        into: a tensor for each name, of the same dtype and shape, contiguous.
        from_: the version that the tensors hold (an artifact id, or a value that has one), for tensors that this follow did
            not write. None: what its earlier apply() calls wrote into them; other tensors are written whole.

        Only the elements that changed are written where the store has the differences, and the values are those of this
        version's verified bytes. After an error, or a later version in its place, the same call finishes the update.
        """
        if self._follow.live is not None:
            raise InvalidArgumentError("apply: this follow changes live weights; call commit(), and leave apply() out")
        begun = time.perf_counter()
        options = self._follow.store.options(timeout)
        weights = yield from self._prepare(timeout=timeout)
        memory = changes.memory_of(weights, into)
        try:
            bases = self._follow.begin_write(self, memory, changes.held(from_))
            done = yield from changes.write(weights, memory, (yield from self._find(bases, options)), options)
            self._follow.held = frozenset((self.artifact_id,))
            self._found = None  # ends the leases on the differences
            return done
        finally:
            self.pause_seconds += time.perf_counter() - begun

    apply, apply_async = calls.forms(_apply)

    def _commit(self, *, timeout: float | None = None) -> calls.Steps[float]:
        """Says that the program uses this version now: the lease of the version before it ends. Returns the pause in seconds.

        In a follow with live weights it changes them to this version, as Weights.commit() does with this timeout.
        """
        begun = time.perf_counter()
        live = self._follow.live
        try:
            if live is None:
                self._follow.committed(self)
            elif live.artifact_id != self.artifact_id:
                yield from live._commit(self.artifact_id, timeout=timeout)
        finally:
            self.pause_seconds += time.perf_counter() - begun
        return self.pause_seconds

    commit, commit_async = calls.forms(_commit)

    def release(self) -> None:
        """Ends this version's lease, as soon as no array of it is left."""
        self._found = None
        if self._weights is not None:
            self._weights.close()


class Follow(calls.Closing):
    """The result of Store.follow(): an iterator over the versions of a key, the newest as it becomes ready on this node.

    Iterate with `for` in a thread or with `async for` in a coroutine. Revisions only grow; versions that a newer one overtook
    are left out. A follow of a group gives the versions that all members have prepared. A version that was not committed ends its lease when the next one is given. One thread or task at a time.
    """

    def __init__(self, store: Store, source: Watch | Group, key: str, prepare: bool, get: Mapping[str, Any],
                 live: Weights | None = None, timeout: float | None = None) -> None:
        self.store = store
        self.key = key
        self.live = live  # the weights that become each version; None: each version has its own
        self._source = source
        self._until = None if timeout is None else time.monotonic() + timeout
        self._prepared = prepare
        self._get = get
        self._revision = 0  # of the version that was given last
        self._given: Version | None = None
        self._committed: Version | None = None
        self._memory: changes.Memory | None = None  # that apply() wrote last; it stays alive, so its addresses are its own
        self.held: frozenset[str] = frozenset()  # versions of which that memory may hold elements; empty: unknown

    def close(self) -> None:
        """Ends the iteration, and the leases of its versions as soon as no array of them is left."""
        self._source.close()
        for version in (self._given, self._committed):
            if version is not None:
                version.release()

    def get(self, artifact_id: str, timeout: float | None) -> calls.Steps[Weights]:
        return (yield from self.store._get(artifact_id, timeout=timeout, progress=False, **self._get))

    def begin_write(self, version: Version, memory: changes.Memory, from_: list[str]) -> frozenset[str]:
        """The versions of which the memory may hold elements; empty: unknown. Until `held` is set again, also of `version`."""
        known = self._memory is not None and self._memory.addresses == memory.addresses
        bases = frozenset(from_) | self.held if known and self.held else frozenset(from_)
        self._memory, self.held = memory, bases | {version.artifact_id} if bases else bases
        return bases

    def committed(self, version: Version) -> None:
        before, self._committed = self._committed, version
        if before is not None and before is not version:
            before.release()

    def _give(self, version: Version) -> Version:
        if self._given is not None and self._given is not self._committed:
            self._given.release()
        self._given, self._revision = version, version.revision
        return version

    def _next_bound(self, key: Key) -> calls.Steps[Version | None]:
        """The version that the key names; None: there is nothing to give before the key's next change."""
        version = Version(self, key.revision, key.artifact_id)
        if self._prepared:
            try:
                yield from version._prepare()
            except NotFoundError:
                if (yield from self.store._resolve(self.key)).revision > key.revision:
                    return None  # a newer version took its place, and the watch tells of it
                raise
        return self._give(version)

    next_bound, next_bound_async = calls.forms(_next_bound)

    def _next_announced(self, group: Group) -> calls.Steps[Version]:
        """The next version that all members of the group have prepared."""
        gone = None
        while True:
            wanted = yield from group._next(after=gone, timeout=self._left())
            version = Version(self, *wanted)
            try:
                yield from version._prepare(timeout=self._left())
            except NotFoundError:
                if (yield from self.store._resolve(self.key)).revision <= wanted.revision:
                    raise
                gone = wanted
                continue
            announced = yield from group._report(wanted, timeout=self._left())
            if announced == wanted:
                return self._give(version)
            version.release()
            if announced is not None:  # what was announced before this process joined
                version = Version(self, *announced)
                yield from version._prepare(timeout=self._left())
                return self._give(version)

    next_announced, next_announced_async = calls.forms(_next_announced)

    def _left(self) -> float | None:
        return None if self._until is None else self._until - time.monotonic()

    def _newest(self, watch: Watch, key: Key) -> Key | None:
        """The newest of the changes that the watch has; None: there is nothing to prepare."""
        wanted: Key | None = None
        for change in (key, *watch.pending()):
            if change.name != self.key:
                continue  # the watch is for all keys with this prefix
            if change.deleted:
                wanted = None  # the next binding has a higher revision than all before
            elif change.revision > max(self._revision, wanted.revision if wanted else 0):
                wanted = change
        return wanted

    def __iter__(self) -> Iterator[Version]:
        return self

    def __next__(self) -> Version:
        if isinstance(self._source, Group):
            return self.next_announced(self._source)
        while True:
            key = self._newest(self._source, next(self._source))
            if key is not None and (version := self.next_bound(key)) is not None:
                return version

    def __aiter__(self) -> AsyncIterator[Version]:
        return self

    async def __anext__(self) -> Version:
        if isinstance(self._source, Group):
            return await self.next_announced_async(self._source)
        while True:
            key = self._newest(self._source, await self._source.__anext__())
            if key is not None and (version := await self.next_bound_async(key)) is not None:
                return version
