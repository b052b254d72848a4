"""Groups of processes that change to a new version of a key together, such as the ranks of an engine.

    with tc.connect() as store, Group(store, "policy", "serve-1", size=8) as group:
        while True:
            version = group.agree(prepare)      # prepare(version) brings version.artifact_id to this node
            engine.switch_to(version.artifact_id)

The global store announces a version after all members have prepared it. Each announced version is newer than the previous
one. Members do not communicate with each other, and need no torch process group.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import uuid
from collections.abc import Callable
from os import getpid
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorcast import arguments, calls
from tensorcast.errors import CancelledError, ClosedError, DeadlineExceededError, Error, InvalidArgumentError, UnavailableError

if TYPE_CHECKING:
    from tensorcast import _native
    from tensorcast.store import Store

# The store answers a poll within five seconds. A poll without an answer is repeated after this many seconds.
_POLL_SECONDS = 30.0
_PAUSE_SECONDS = 0.2
_LEAVE_SECONDS = 2.0


class GroupVersion(NamedTuple):
    """A version of a key: a revision of the key, and the artifact that it names."""

    revision: int
    artifact_id: str


class Group(calls.Closing):
    """This process as a member of a version group.

    From the first call until close(), a background thread tells the global store that the member is alive. Only one thread
    or task of the program may use a group at a time.

    store: the connection to the daemon of this host, which forwards the calls to the global store.
    key: all members follow the same key.
    name: the group's name. The key and the name together identify the group.
    size: the number of members. All members pass the same size and the same on_lost.
    member: this member's name, unique in the group. A new process with the name of an earlier member replaces that
        member. None: a generated name that no other process has.
    on_lost: what happens when a member is lost. "wait": the store announces nothing until that member, or a process that
        replaces it, has prepared the version. "fail": the group ends, and the calls of all members raise AbortedError.
        "drop": the other members continue without it.
    lost_after: a member that is silent for this many seconds is lost.
    """

    def __init__(self, store: Store, key: str, name: str, size: int, *, member: str | None = None,
                 on_lost: str = "wait", lost_after: float = 15.0) -> None:
        if on_lost not in ("wait", "fail", "drop"):
            raise InvalidArgumentError(f"join group {name}: on_lost is {on_lost!r}; pass 'wait', 'fail' or 'drop'")
        if not isinstance(size, int) or size < 1:
            raise InvalidArgumentError(f"join group {name}: size is {size!r}; pass the number of members")
        self.store = store
        self.key = arguments.text("key", key)
        self.name = arguments.text("name", name)
        self.size = size
        self.member = f"{socket.gethostname()}-{getpid()}-{uuid.uuid4().hex[:8]}" if member is None else arguments.text("member", member)
        self._on_lost = on_lost
        self._lost_after = float(lost_after)
        self._instance = uuid.uuid4().hex
        self._changed = threading.Condition()
        self._prepared: GroupVersion | None = None  # the last version that this member has prepared
        self._preparing: GroupVersion | None = None  # the group prepares it, and this member has not done so yet
        self._pending: GroupVersion | None = None  # announced, but not returned yet
        self._known = 0  # the last revision announced to this member
        self._waits_for: list[str] = []
        self._busy = 0  # number of calls of the program in progress; the thread does not poll meanwhile
        self._failed: Error | None = None
        self._background: _native.Call | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def announced_revision(self) -> int:
        """The last revision that was announced to this member; 0: none."""
        return self._known

    def close(self) -> None:
        """Leaves the group. For the other members this is the same as the end of this process."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
            if self._background is not None:
                self._background.cancel()
        if self._thread is None:
            return
        try:
            calls.finish(self._poll(_LEAVE_SECONDS, leaves=True))
        except Error:
            pass  # the global store is away or this store is closed: the member is lost after lost_after

    def _next(self, *, after: tuple[int, str] | None = None, timeout: float | None = None) -> calls.Steps[GroupVersion]:
        """Waits for a version that the group prepares, and returns it. The member must prepare the version and
        call prepared().

        Returns the same version until prepared() is called for it, or until the group prepares a newer one. A process that
        joins after an announcement first gets the announced version.

        after: a version that this member cannot prepare, because it was deleted; next() waits for another version.

        Raises DeadlineExceededError after the timeout; the message names the members that the group waits for. Raises
        AbortedError if the group has ended.
        """
        until = _until(timeout)
        with self._in_call():
            while True:
                with self._changed:
                    for wanted in (self._pending, self._preparing):
                        if wanted is not None and wanted != after:
                            return wanted
                yield from self._step(until)

    next, next_async = calls.forms(_next)

    def _report(self, version: tuple[int, str], *, timeout: float | None = None) -> calls.Steps[GroupVersion | None]:
        """Reports that this member has prepared a version, waits until the store announces a version, and returns the
        announced version.

        version: the revision and the artifact id, as next() returned them.

        Returns None if the group now prepares another version. After None, call next() again. Raises the same errors as
        next().
        """
        revision, artifact_id = version
        prepared = GroupVersion(int(revision), arguments.text("artifact id", artifact_id))
        until = _until(timeout)
        with self._in_call():
            with self._changed:
                self._prepared = prepared
                if self._preparing == prepared:
                    self._preparing = None
            while True:
                with self._changed:
                    if self._pending is not None:
                        announced, self._pending = self._pending, None
                        return announced
                    if self._preparing is not None:
                        return None
                yield from self._step(until)

    prepared, prepared_async = calls.forms(_report)

    def agree(self, prepare: Callable[[GroupVersion], Any], *, timeout: float | None = None) -> GroupVersion:
        """Waits for the next version that all members have prepared, and returns it.

        prepare: brings a version to this node, for example `lambda version: store.prefetch(version.artifact_id)`. agree()
            may call it for several versions. If it raises, agree() raises the same exception and may be called again.

        Raises the same errors as next().
        """
        until = _until(timeout)
        while True:
            version = self.next(timeout=_left(until))
            if version != self._prepared:
                prepare(version)
            announced = self.prepared(version, timeout=_left(until))
            if announced is not None:
                if announced != self._prepared:
                    prepare(announced)
                return announced

    def _poll(self, seconds: float, leaves: bool = False) -> _native.Call:
        prepared = self._prepared or GroupVersion(0, "")
        return self.store.native.agree_on_version(
            (self.key, self.name), (self.member, self._instance), size=self.size, on_lost=self._on_lost,
            lost_after=self._lost_after, prepared=(prepared.revision, prepared.artifact_id),
            preparing=self._preparing.revision if self._preparing is not None else 0, known=self._known, leaves=leaves,
            options=self.store.options(max(seconds, 0.001)))

    def _take(self, answer: dict[str, Any]) -> None:
        announced, prepare = answer["announced"], answer["prepare"]
        if announced is not None and announced["revision"] > self._known:
            self._pending = GroupVersion(announced["revision"], announced["artifact_id"])
            self._known = announced["revision"]
        if prepare is not None:
            self._preparing = GroupVersion(prepare["revision"], prepare["artifact_id"])
        self._waits_for = list(answer["waits_for"])

    def _step(self, until: float | None) -> calls.Steps[None]:
        """Polls once, within a call of the program."""
        with self._changed:
            if self._failed is not None:
                raise self._failed
            left = _left(until)
            if left is not None and left <= 0:
                waits = ", waiting for " + ", ".join(self._waits_for) if self._waits_for else ""
                raise DeadlineExceededError(f"agree on a version of {self.key}: group {self.name} announced nothing in time{waits}; "
                                            "allow more time")
            poll = self._poll(_POLL_SECONDS if left is None else min(left, _POLL_SECONDS))
        try:
            answer = yield poll
        except (DeadlineExceededError, UnavailableError):
            return  # the next round says whether the program still waits
        with self._changed:
            self._take(answer)

    def _in_call(self) -> _InCall:
        return _InCall(self)

    def _keep_alive(self) -> None:
        """Polls while no call of the program does, so that the store knows that this member is alive."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._busy == 0 or self._closed)
                if self._closed or self._failed is not None:
                    return
                try:
                    poll = self._background = self._poll(_POLL_SECONDS)
                except Error:
                    return  # the store is closed
            try:
                answer = calls.finish(poll)
            except (CancelledError, DeadlineExceededError):
                continue
            except UnavailableError:
                time.sleep(_PAUSE_SECONDS)
            except Error as error:
                with self._changed:
                    if self._busy == 0:
                        self._failed = error
                        return
            else:
                with self._changed:
                    self._take(answer)
            finally:
                with self._changed:
                    self._background = None


class _InCall:
    """The scope of a call of the program. The call polls, so the background thread does not."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def __enter__(self) -> None:
        group = self._group
        with group._changed:
            if group._closed:
                raise ClosedError(f"agree on a version of {group.key}: group {group.name} is closed; join the group again")
            group._busy += 1
            if group._background is not None:
                group._background.cancel()

    def __exit__(self, *_: object) -> None:
        group = self._group
        with group._changed:
            group._busy -= 1
            group._changed.notify_all()
            if group._thread is not None or group._closed:
                return
            thread = threading.Thread(target=group._keep_alive, name="tensorcast-group", daemon=True)
            # Without a thread the member is kept alive by its calls alone, and the next one tries again.
            with contextlib.suppress(RuntimeError):
                thread.start()
                group._thread = thread


def _until(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


def _left(until: float | None) -> float | None:
    return None if until is None else until - time.monotonic()
