"""Follows a key: gives each new version when it is ready on this node.

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
        self.pause_seconds = 0.0  # seconds in apply() and commit(), while the program does not compute
        self._bases: frozenset[str] = frozenset()  # the version that the changes start from
        self._found: list[_native.Changes] | None = None

    def __repr__(self) -> str:
        return f"<tensorcast.Version {self.revision} of {self.key}: {self.artifact_id}>"

    @property
    def weights(self) -> Weights:
        """The tensors of this version, with its lease. With prepare=False, available only after prepare() or apply().

        In a follow with live weights, returns those weights, which hold this version after commit().
        """
        if self._follow.live is not None:
            return self._follow.live
        if self._weights is None:
            raise ClosedError(f"version {self.revision} of {self.key} is not prepared; call prepare()")
        return self._weights

    def _prepare(self, *, timeout: float | None = None) -> calls.Steps[Weights]:
        """Brings this version to the node, and takes a lease on it. Returns at once if the version is already prepared."""
        if self._follow.live is not None:
            if self._follow.live.artifact_id != self.artifact_id:
                yield from self._follow.live._prepare(self.artifact_id, timeout=timeout)
            return self._follow.live
        if self._weights is None:
            self._weights = yield from self._follow.get(self.artifact_id, timeout)
            # Finds the changes from the version of the last apply(), so that the next apply() only has to write.
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

        into: a contiguous tensor for each name, with the same dtype and shape.
        from_: the version that the tensors hold (an artifact id, or a value with an artifact_id), if this follow did not
            write them. None: the version that earlier apply() calls of this follow wrote; tensors that these calls did not
            write are written whole.

        If the store has the differences, only the changed elements are written. The values come from the verified bytes of
        this version. After an error, repeat the call, or call apply() of a later version, to finish the update.
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
            self._found = None  # releases the leases on the differences
            return done
        finally:
            self.pause_seconds += time.perf_counter() - begun

    apply, apply_async = calls.forms(_apply)

    def _commit(self, *, timeout: float | None = None) -> calls.Steps[float]:
        """Declares that the program now uses this version, and ends the lease of the previous version. Returns the pause in
        seconds.

        In a follow with live weights, changes these weights to this version, like Weights.commit() with this timeout.
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
        """Ends this version's lease as soon as no array of it exists."""
        self._found = None
        if self._weights is not None:
            self._weights.close()


class Follow(calls.Closing):
    """The result of Store.follow(): an iterator over the versions of a key. It gives the newest version when that
    version is ready on this node.

    Iterate with `for` in a thread or with `async for` in a coroutine. Revisions only grow, and versions that are no longer
    the newest are left out. A follow of a group gives the versions that all members have prepared. The lease of a version
    that was not committed ends when the iterator gives the next one. Only one thread or task at a time may iterate.
    """

    def __init__(self, store: Store, source: Watch | Group, key: str, prepare: bool, get: Mapping[str, Any],
                 live: Weights | None = None, timeout: float | None = None) -> None:
        self.store = store
        self.key = key
        self.live = live  # the weights that change to each version; None: each version has its own weights
        self._source = source
        self._until = None if timeout is None else time.monotonic() + timeout
        self._prepared = prepare
        self._get = get
        self._revision = 0  # the revision of the last given version
        self._given: Version | None = None
        self._committed: Version | None = None
        self._memory: changes.Memory | None = None  # written by the last apply(); kept so that its addresses are not reused
        self.held: frozenset[str] = frozenset()  # versions of which that memory may hold elements; empty: unknown

    def close(self) -> None:
        """Ends the iteration, and the leases of its versions as soon as no array of them exists."""
        self._source.close()
        for version in (self._given, self._committed):
            if version is not None:
                version.release()

    def get(self, artifact_id: str, timeout: float | None) -> calls.Steps[Weights]:
        return (yield from self.store._get(artifact_id, timeout=timeout, progress=False, **self._get))

    def begin_write(self, version: Version, memory: changes.Memory, from_: list[str]) -> frozenset[str]:
        """Returns the versions of which the memory may hold elements; empty: unknown. Adds `version` to `held`, since the
        write begins now.
        """
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
                    return None  # a newer version replaced it, and the watch reports that one
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
            if announced is not None:  # the version that was announced before this process joined
                version = Version(self, *announced)
                yield from version._prepare(timeout=self._left())
                return self._give(version)

    next_announced, next_announced_async = calls.forms(_next_announced)

    def _left(self) -> float | None:
        return None if self._until is None else self._until - time.monotonic()

    def _newest(self, watch: Watch, key: Key) -> Key | None:
        """The newest of the changes that have arrived in the watch; None: there is nothing to prepare."""
        wanted: Key | None = None
        for change in (key, *watch.pending()):
            if change.name != self.key:
                continue  # the watch covers all keys that begin with this name
            if change.deleted:
                wanted = None  # a later binding has a higher revision than all before
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
