"""The administrative calls of a store and their results: `store.status()`, `ls`, `rm`, `pin`, `replicate`, `explain`.

Each result is a frozen dataclass with the fields of the daemon's own messages. A notebook shows a result as a table, and a
transfer as bars of its stages. Sizes are in bytes, times in seconds since 1970, durations in seconds.
"""

from __future__ import annotations

import dataclasses
import html
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tensorcast import arguments, calls
from tensorcast.errors import Error, FailedPreconditionError, InvalidArgumentError, NotFoundError, of_code
from tensorcast.tables import Listing, Shown, table

if TYPE_CHECKING:
    from tensorcast import _native

_Fields = Mapping[str, Any]

_ARTIFACT_ID = re.compile(r"tc[0-9]+:")


@dataclasses.dataclass(frozen=True)
class Pool(Shown):
    """A memory pool of the daemon."""

    location: str
    capacity_bytes: int
    used_bytes: int
    pinned_bytes: int  # bytes of leased and pinned replicas, which cannot be evicted
    evictions: int


@dataclasses.dataclass(frozen=True)
class Stage(Shown):
    """A stage of a transfer with one source: fetch, verify or place."""

    stage: str
    source: str
    lane: str
    bytes: int
    start: float
    end: float
    busy: float  # the sum over chunks; chunks may overlap in time


@dataclasses.dataclass(frozen=True)
class Source(Shown):
    """A source of a transfer, and the amount that the transfer read from it."""

    source: str
    source_type: str
    lane: str
    bytes: int
    joined: float
    left: float | None  # None: the transfer still uses the source
    error: str  # why the transfer stopped using the source; empty: it did not


@dataclasses.dataclass(frozen=True)
class Transfer:
    """A transfer that has ended or is running."""

    transfer_id: str
    artifact_id: str
    replica_id: str
    destination: str
    bytes: int
    bytes_total: int
    queued: float
    start: float
    end: float  # for a running transfer: the time of this status
    verified_chunks: int
    refetched_chunks: int
    error: str  # empty: the transfer succeeded or is running
    trace_id: str
    sources: tuple[Source, ...]
    stages: tuple[Stage, ...]

    @property
    def seconds(self) -> float:
        return self.end - self.queued

    def _repr_html_(self) -> str:
        facts = {name: value for name, value in vars(self).items() if name not in ("sources", "stages")}
        return table([facts]) + table([vars(source) for source in self.sources]) + _timeline(self)


@dataclasses.dataclass(frozen=True)
class Hop:
    """One node on the path of a transfer's bytes."""

    node: str
    transfer: Transfer | None  # the transfer that made the node's replica; None: the node does not remember it
    under_way: bool
    problem: str  # why this node gave no answer; empty: it answered

    def _repr_html_(self) -> str:
        what = f"<p><b>{html.escape(self.node)}</b> {html.escape(self.problem)}</p>"
        return what + (self.transfer._repr_html_() if self.transfer else "")


@dataclasses.dataclass(frozen=True)
class Explanation:
    """Where the time of a transfer went: first on this node, then on the nodes that the bytes came from."""

    hops: tuple[Hop, ...]
    left_out: str  # names the nodes that were not asked, for people; empty: all were asked

    def _repr_html_(self) -> str:
        return "".join(hop._repr_html_() for hop in self.hops) + html.escape(self.left_out)


@dataclasses.dataclass(frozen=True)
class Status:
    """The state of a daemon at one moment."""

    node_id: str
    name: str
    draining: bool
    global_store: str
    global_store_reachable: bool
    global_store_error: str
    replicas: int
    leases: int
    active_transfers: int
    active_servings: int
    pools: tuple[Pool, ...]
    running: tuple[Transfer, ...]
    recent: tuple[Transfer, ...] = dataclasses.field(repr=False)  # the newest first

    def _repr_html_(self) -> str:
        facts = {name: value for name, value in vars(self).items() if not isinstance(value, tuple)}
        transfers = [
            {"transfer_id": t.transfer_id, "destination": t.destination, "bytes": t.bytes, "seconds": t.seconds, "error": t.error}
            for t in self.running + self.recent
        ]
        return table([facts]) + table([vars(pool) for pool in self.pools]) + table(transfers)


@dataclasses.dataclass(frozen=True)
class Artifact(Shown):
    """An artifact that the global store knows."""

    artifact_id: str
    keys: tuple[str, ...]
    image_bytes: int
    tensor_count: int
    created: float
    replicas: int  # the number of ready replicas on all nodes
    files: tuple[str, ...]  # the files that the artifact was imported from
    kept_by: tuple[str, ...]  # the keys that keep the artifact as an earlier version
    released: bool  # True: no key is bound to this version or keeps it, so it is deleted when room is needed
    listed: tuple[Replica, ...] = ()  # after ls(replicas=True): each replica, also those that are not ready yet
    kind: str = "tensors"  # or "files" that keys bind with tensors; tensor_count is then the number of files


@dataclasses.dataclass(frozen=True)
class Replica(Shown):
    """A copy of an artifact on one node, at one location."""

    replica_id: str
    artifact_id: str
    node_id: str
    location: str
    state: str
    image_bytes: int
    leases: int
    pinned: bool


@dataclasses.dataclass(frozen=True)
class ReplicationTask(Shown):
    """A task to make a replica of an artifact at a location of a node."""

    artifact_id: str
    node: str
    location: str
    state: str  # "there": the location had a replica before the task
    error: str  # of the last failed attempt
    waiting_for: str
    bytes: int
    bytes_total: int


@dataclasses.dataclass(frozen=True)
class Follower(Shown):
    """A place that the store keeps at the newest version of a key."""

    key: str
    node: str
    location: str
    newest_revision: int  # the key's; 0: the key is not bound
    revision: int  # the newest kept revision that is ready at the place; 0: none
    artifact_id: str  # of the newest revision
    state: str  # "there", or the state of the task that brings the newest version, or "": no such task
    error: str  # of the last failed attempt
    waiting_for: str


class Administration:
    """The administrative calls of tensorcast.Store, which inherits from this class.

    Each call has one deadline for all the requests that it sends to the daemon.
    """

    if TYPE_CHECKING:  # the members that Store adds

        @property
        def native(self) -> _native.Client: ...
        def options(self, timeout: float | None) -> _native.CallOptions: ...

    def _status(self, *, timeout: float | None = None) -> calls.Steps[Status]:
        """Returns the state of the daemon: its pools, leases and transfers."""
        return _status_of((yield self.native.status(options=self.options(timeout))))

    status, status_async = calls.forms(_status)

    def _ls(
        self, *, unkeyed_only: bool = False, replicas: bool = False, timeout: float | None = None
    ) -> calls.Steps[Listing[Artifact]]:
        """Lists the artifacts that the global store knows, on all nodes.

        unkeyed_only: only artifacts that no key is bound to or keeps as an earlier version.
        replicas: also list the replicas of each artifact (Artifact.listed). False: only count them.
        """
        found = yield self.native.list_artifacts(
            unkeyed_only=bool(unkeyed_only), min_age=0.0, replicas=bool(replicas), options=self.options(timeout)
        )
        return Listing(map(_artifact, found))

    ls, ls_async = calls.forms(_ls)

    def _replicas(self, artifact: str = "", *, timeout: float | None = None) -> calls.Steps[Listing[Replica]]:
        """Lists the replicas of one artifact (a key or an artifact id), or of all artifacts, on the daemon's node."""
        options = self.options(timeout)
        artifact_id = (yield from self._id_of(artifact, options)) if arguments.text("artifact", artifact) else ""
        return Listing(map(_replica, (yield self.native.list_replicas(artifact_id, options=options))))

    replicas, replicas_async = calls.forms(_replicas)

    def _rm(self, artifact: str, *, force: bool = False, timeout: float | None = None) -> calls.Steps[None]:
        """Deletes an artifact on all nodes.

        artifact: a key, which is deleted too, or an artifact id.
        force: also delete the other keys that are bound to the artifact. If `artifact` is a key, delete the artifact even
            if keys keep it as an earlier version; an artifact id needs no `force` for this.

        Without `force`, raises FailedPreconditionError and deletes nothing if such a key exists.
        """
        options = self.options(timeout)
        artifact_id = yield from self._id_of(artifact, options)
        keys = yield self.native.list_keys("", options=options)
        bound = [key for key in keys if key["artifact_id"] == artifact_id]
        keepers = [key["name"] for key in keys if artifact_id in key["earlier"]]
        if keepers and artifact != artifact_id and not force:
            raise FailedPreconditionError(
                f"rm {artifact}: key {keepers[0]} keeps artifact {artifact_id} as an earlier version, so nothing was deleted; "
                "pass force=True to delete the artifact all the same"
            )
        others = [key["name"] for key in bound if key["name"] != artifact]
        if others and not force:
            raise FailedPreconditionError(
                f"rm {artifact}: artifact {artifact_id} is {'' if artifact == artifact_id else 'also '}bound to key {others[0]}"
                f"{f' and {len(others) - 1} more' if len(others) > 1 else ''}, so nothing was deleted; pass force=True to delete "
                "the artifact with these keys, or remove only a key with unbind()"
            )
        for key in bound:
            # Only this revision: a key that was rebound meanwhile names another artifact, and stays.
            yield self.native.delete_key(key["name"], expected_revision=key["revision"], options=options)
        yield self.native.delete_artifact(artifact_id, options=options)

    rm, rm_async = calls.forms(_rm)

    def _gc(self, *, older_than: float = 86400.0, dry_run: bool = False, timeout: float | None = None) -> calls.Steps[Listing[Artifact]]:
        """Deletes the artifacts that no key is bound to or keeps as an earlier version. Returns the deleted artifacts.

        In the daemon's archives, also deletes objects that no artifact needs, and aborts uploads that a crash left there.

        older_than: the min age of an artifact, an archived object or an upload, in seconds.
        dry_run: delete nothing, and return what would be deleted.
        """
        options = self.options(timeout)
        age = arguments.seconds(older_than, "older_than")
        found = list(map(_artifact, (yield self.native.list_artifacts(unkeyed_only=True, min_age=age, replicas=False, options=options))))
        if dry_run:
            return Listing(found)
        deleted = []
        for artifact in found:
            try:
                yield self.native.delete_artifact(artifact.artifact_id, options=options)
            except (FailedPreconditionError, NotFoundError):
                continue  # after the list was made, a key was bound to it, or another process deleted it
            deleted.append(artifact)
        yield self.native.collect_archives(min_age=age, options=options)
        return Listing(deleted)

    gc, gc_async = calls.forms(_gc)

    def _evict(self, replica_id: str, *, force: bool = False, timeout: float | None = None) -> calls.Steps[None]:
        """Evicts a replica from this node.

        replica_id: a replica id; or a key or an artifact id, for all replicas of that artifact on this node.
        force: evict the replica even if it is the last copy.
        """
        yield self.native.evict_replica(arguments.text("replica_id", replica_id), force=bool(force), options=self.options(timeout))

    evict, evict_async = calls.forms(_evict)

    def _pin(self, artifact: str, *, timeout: float | None = None) -> calls.Steps[None]:
        """Protects replicas of this node from eviction, until unpin().

        artifact: a replica id; or a key or an artifact id, for all replicas of that artifact on this node.
        """
        yield from self._set_pinned(artifact, True, timeout)

    pin, pin_async = calls.forms(_pin)

    def _unpin(self, artifact: str, *, timeout: float | None = None) -> calls.Steps[None]:
        """Ends the protection of pin(). The argument is as in pin()."""
        yield from self._set_pinned(artifact, False, timeout)

    unpin, unpin_async = calls.forms(_unpin)

    def _replicate(
        self, artifact: str, to: str | Sequence[str], *, device: arguments.Device = "cpu", lane: str = "", timeout: float | None = None
    ) -> calls.Steps[Listing[ReplicationTask]]:
        """Submits tasks that replicate an artifact to other nodes, and returns without waiting for them.

        to: a node's name or id, or a list of them. Each may name a device of its own ("node-b:gpu:0").
        device: the location on the other nodes.
        lane: as in get.

        `replication_tasks` shows the progress. Raises NotFoundError for an unknown node, InvalidArgumentError for a device that
        the node does not have, and ResourceExhaustedError if the artifact does not fit there.
        """
        options = self.options(timeout)
        targets = _targets(to, device)
        artifact_id = yield from self._id_of(artifact, options)
        answer = yield self.native.replicate(artifact_id, targets, lane=arguments.text("lane", lane), options=options)
        results = list(zip(targets, answer["results"]))
        for (node, _), result in results:
            if result["error"]:
                raise _refusal(f"replicate {artifact} to {node}", result["error"])
        return Listing(_result(artifact_id, node, result) for (node, _), result in results)

    replicate, replicate_async = calls.forms(_replicate)

    def _replication_tasks(self, artifact: str = "", *, timeout: float | None = None) -> calls.Steps[Listing[ReplicationTask]]:
        """Lists the tasks of `replicate` for one artifact (a key or an artifact id) or for all, with their progress."""
        options = self.options(timeout)
        artifact_id = (yield from self._id_of(artifact, options)) if arguments.text("artifact", artifact) else ""
        return Listing(map(_task, (yield self.native.list_replication_tasks(artifact_id, options=options))))

    replication_tasks, replication_tasks_async = calls.forms(_replication_tasks)

    def _cancel_replication(
        self, artifact: str, to: str | Sequence[str] | None = None, *, device: arguments.Device = "cpu", timeout: float | None = None
    ) -> calls.Steps[Listing[ReplicationTask]]:
        """Cancels unfinished tasks of `replicate`, also those for the artifact's files, and returns the cancelled ones.

        to, device: as in `replicate`. If `to` is None, every unfinished task of the artifact.
        """
        options = self.options(timeout)
        targets = [] if to is None else _targets(to, device)
        if to is not None and not targets:
            raise InvalidArgumentError(f"cancel replication of {artifact}: to is empty; pass nodes, or None for every task of the artifact")
        artifact_id = yield from self._id_of(artifact, options)
        answer = yield self.native.cancel_replication_tasks(artifact_id, targets, options=options)
        return Listing(map(_task, answer["tasks"]))

    cancel_replication, cancel_replication_async = calls.forms(_cancel_replication)

    def _add_followers(
        self, key: str, to: str | Sequence[str], *, device: arguments.Device = "cpu", timeout: float | None = None
    ) -> calls.Steps[Listing[Follower]]:
        """Adds followers: from now on the store replicates each new version of the key to these places.

        key: a key's name; the key need not be bound yet.
        to, device: as in `replicate`. A place that already follows the key does not change.

        Returns the followers without waiting for their first version. Raises NotFoundError for an unknown node.
        """
        targets = _targets(to, device)
        answer = yield self.native.follow_key(arguments.text("key", key), targets, options=self.options(timeout))
        for (node, _), result in zip(targets, answer["results"]):
            if result["error"]:
                raise _refusal(f"add followers of {key} at {node}", result["error"])
        return Listing(_follower(result["follower"]) for result in answer["results"])

    add_followers, add_followers_async = calls.forms(_add_followers)

    def _followers(self, key: str = "", *, timeout: float | None = None) -> calls.Steps[Listing[Follower]]:
        """Lists the followers of a key, or of all keys if `key` is empty, with the revision that each follower has."""
        answer = yield self.native.list_followers(arguments.text("key", key), options=self.options(timeout))
        return Listing(map(_follower, answer["followers"]))

    followers, followers_async = calls.forms(_followers)

    def _remove_followers(
        self, key: str, to: str | Sequence[str] | None = None, *, device: arguments.Device = "cpu", timeout: float | None = None
    ) -> calls.Steps[Listing[Follower]]:
        """Removes followers of a key, and returns the removed ones. Their replicas stay.

        to, device: as in `replicate`. If `to` is None, every follower of the key.
        """
        targets = [] if to is None else _targets(to, device)
        if to is not None and not targets:
            raise InvalidArgumentError(f"remove followers of {key}: to is empty; pass nodes, or None for every follower of the key")
        answer = yield self.native.unfollow_key(arguments.text("key", key), targets, options=self.options(timeout))
        return Listing(map(_follower, answer["followers"]))

    remove_followers, remove_followers_async = calls.forms(_remove_followers)

    def _explain(
        self, transfer: str | Transfer | Mapping[str, Any] | None = "last", *, timeout: float | None = None
    ) -> calls.Steps[Explanation]:
        """Explains where the time of a transfer to this node went.

        transfer: a transfer id, a Transfer, `Weights.transfer` or "last". A key or an artifact id stands for the latest
            transfer of that artifact.

        Raises NotFoundError for a transfer that the daemon does not remember.
        """
        options = self.options(timeout)
        if isinstance(transfer, Transfer):
            transfer = transfer.transfer_id
        elif isinstance(transfer, Mapping):
            transfer = str(transfer["transfer_id"])
        elif transfer is None:
            raise NotFoundError("explain None: there was no transfer, since the replica was on this node before; pass a transfer id or a key")
        if arguments.text("transfer", transfer) == "last":
            recent = _status_of((yield self.native.status(options=options))).recent
            if not recent:
                raise NotFoundError("explain last: this daemon remembers no transfer; ask the daemon of the node that received one")
            transfer = recent[0].transfer_id
        try:
            answer = yield self.native.explain_transfer(transfer, options=options)
        except NotFoundError:
            latest = yield from self._latest_of(transfer, options)
            if latest is None:
                raise
            answer = yield self.native.explain_transfer(latest, options=options)
        return Explanation(hops=tuple(map(_hop, answer["hops"])), left_out=answer["left_out"])

    explain, explain_async = calls.forms(_explain)

    def _latest_of(self, artifact: str, options: _native.CallOptions) -> calls.Steps[str | None]:
        """The id of the latest transfer of an artifact (a key or an artifact id) that this daemon remembers."""
        try:
            artifact_id = yield from self._id_of(artifact, options)
        except NotFoundError:
            return None
        status = _status_of((yield self.native.status(options=options)))
        return next((one.transfer_id for one in status.running + status.recent if one.artifact_id == artifact_id), None)

    def _id_of(self, artifact: str, options: _native.CallOptions) -> calls.Steps[str]:
        if not arguments.text("artifact", artifact):
            raise InvalidArgumentError("find an artifact: the name is empty; pass a key or an artifact id")
        if _ARTIFACT_ID.match(artifact):
            return artifact
        resolved: str = (yield self.native.resolve_key(artifact, confirmed=True, options=options))["artifact_id"]
        return resolved

    def _set_pinned(self, artifact: str, pinned: bool, timeout: float | None) -> calls.Steps[None]:
        arguments.text("artifact", artifact)
        options = self.options(timeout)
        there = list(map(_replica, (yield self.native.list_replicas("", options=options))))
        chosen = [replica.replica_id for replica in there if replica.replica_id == artifact]
        if not chosen:
            artifact_id = yield from self._id_of(artifact, options)
            chosen = [replica.replica_id for replica in there if replica.artifact_id == artifact_id]
        if not chosen:
            raise NotFoundError(f"{'pin' if pinned else 'unpin'} {artifact}: this node has no replica of this artifact; get the artifact "
                                "first, or make this call to the daemon of another node")
        for replica_id in chosen:
            yield self.native.set_pinned(replica_id, pinned, options=options)


def _targets(to: str | Sequence[str], device: arguments.Device) -> list[tuple[str, str]]:
    """Pairs of a node and a location."""
    default = arguments.location(device)
    return [
        (node, arguments.location(location) if location else default)
        for node, _, location in (target.partition(":") for target in arguments.texts("to", to))
    ]


def _location(fields: _Fields | None) -> str:
    if not fields:
        return ""
    kind = fields["kind"].removeprefix("LOCATION_KIND_").lower()
    return f"gpu:{fields['device']}" if kind == "gpu" else kind


def _error(fields: _Fields | None) -> str:
    return "" if not fields else fields["message"]


def _refusal(operation: str, fields: _Fields) -> Error:
    return of_code(fields["code"], f"{operation}: {fields['message']}")


def _artifact(fields: _Fields) -> Artifact:
    return Artifact(
        artifact_id=fields["artifact_id"],
        keys=tuple(fields["keys"]),
        image_bytes=fields["image_bytes"],
        tensor_count=fields["tensor_count"],
        created=fields["created"] or 0.0,
        replicas=fields["replica_count"],
        files=tuple(file["uri"] for origin in fields["origins"] for file in origin["objects"]),
        kept_by=tuple(fields["kept_by"]),
        released=fields["released"],
        listed=tuple(map(_replica, fields["replicas"])),
        kind=("tensors", "files")[fields["kind"]],
    )


def _replica(fields: _Fields) -> Replica:
    return Replica(
        replica_id=fields["replica_id"],
        artifact_id=fields["artifact_id"],
        node_id=fields["node_id"],
        location=_location(fields["location"]),
        state=fields["state"].removeprefix("REPLICA_STATE_").lower(),
        image_bytes=fields["image_bytes"],
        leases=fields["leases"],
        pinned=fields["pinned"],
    )


def _task(fields: _Fields) -> ReplicationTask:
    return ReplicationTask(
        artifact_id=fields["artifact_id"],
        node=fields["node_name"] or fields["node_id"],
        location=_location(fields["location"]),
        state=fields["state"].removeprefix("REPLICATION_TASK_STATE_").lower(),
        error=_error(fields["error"]),
        waiting_for=fields["waiting_for"],
        bytes=fields["bytes"],
        bytes_total=fields["bytes_total"],
    )


def _follower(fields: _Fields) -> Follower:
    task = _task(fields["task"]) if fields["task"] else None
    there = fields["revision"] != 0 and fields["revision"] == fields["newest_revision"]
    return Follower(
        key=fields["key"],
        node=fields["node_name"] or fields["node_id"],
        location=_location(fields["location"]),
        newest_revision=fields["newest_revision"],
        revision=fields["revision"],
        artifact_id=fields["artifact_id"],
        state="there" if there else task.state if task else "",
        error=task.error if task else "",
        waiting_for=task.waiting_for if task else "",
    )


def _result(artifact_id: str, node: str, fields: _Fields) -> ReplicationTask:
    if fields["task"]:
        return _task(fields["task"])
    return ReplicationTask(
        artifact_id=artifact_id,
        node=node,
        location=_location(fields["location"]),
        state="there",
        error="",
        waiting_for="",
        bytes=0,
        bytes_total=0,
    )


def _transfer(fields: _Fields) -> Transfer:
    return Transfer(
        transfer_id=fields["transfer_id"],
        artifact_id=fields["artifact_id"],
        replica_id=fields["replica_id"],
        destination=_location(fields["destination"]),
        bytes=fields["bytes"],
        bytes_total=fields["bytes_total"],
        queued=fields["queued"] or 0.0,
        start=fields["start"] or 0.0,
        end=fields["end"] or 0.0,
        verified_chunks=fields["verified_chunks"],
        refetched_chunks=fields["refetched_chunks"],
        error=_error(fields["error"]),
        trace_id=fields["trace_id"],
        sources=tuple(
            Source(
                source=source["source"],
                source_type=source["source_type"],
                lane=source["lane"],
                bytes=source["bytes"],
                joined=source["joined"] or 0.0,
                left=source["left"],
                error=_error(source["error"]),
            )
            for source in fields["sources"]
        ),
        stages=tuple(
            Stage(
                stage=stage["stage"],
                source=stage["source"],
                lane=stage["lane"],
                bytes=stage["bytes"],
                start=stage["start"] or 0.0,
                end=stage["end"] or 0.0,
                busy=stage["busy"] or 0.0,
            )
            for stage in fields["stages"]
        ),
    )


def _hop(fields: _Fields) -> Hop:
    transfer = _transfer(fields["transfer"]) if fields["transfer"] else None
    return Hop(node=fields["node"], transfer=transfer, under_way=fields["under_way"], problem=fields["problem"])


def _status_of(fields: _Fields) -> Status:
    return Status(
        node_id=fields["node"]["node_id"],
        name=fields["node"]["name"],
        draining=fields["node"]["draining"],
        global_store=fields["global_store"],
        global_store_reachable=fields["global_store_reachable"],
        global_store_error=fields["global_store_error"],
        replicas=fields["replicas"],
        leases=fields["leases"],
        active_transfers=fields["active_transfers"],
        active_servings=fields["active_servings"],
        pools=tuple(
            Pool(
                location=_location(pool["location"]),
                capacity_bytes=pool["capacity_bytes"],
                used_bytes=pool["used_bytes"],
                pinned_bytes=pool["pinned_bytes"],
                evictions=pool["evictions"],
            )
            for pool in fields["pools"]
        ),
        running=tuple(map(_transfer, fields["running_transfers"])),
        recent=tuple(map(_transfer, fields["recent_transfers"])),
    )


def _timeline(transfer: Transfer) -> str:
    """The stages as bars over the time of the transfer: an SVG image without scripts."""
    whole = max(transfer.end - transfer.queued, 1e-9)
    width, row = 600, 22
    colours: dict[str, str] = {"fetch": "#4c78a8", "verify": "#f58518", "place": "#54a24b"}
    bars = []
    for number, stage in enumerate(transfer.stages):
        left = (stage.start - transfer.queued) / whole * width
        length = max((stage.end - stage.start) / whole * width, 1.0)
        label = f"{stage.stage} from {stage.source} ({stage.lane}): {stage.end - stage.start:.3f} s, busy {stage.busy:.3f} s"
        bars.append(
            f'<rect x="{left:.1f}" y="{number * row}" width="{length:.1f}" height="{row - 6}" '
            f'fill="{colours.get(stage.stage, "#888")}"><title>{html.escape(label)}</title></rect>'
            f'<text x="{width + 8}" y="{number * row + row - 10}" font-size="12">{html.escape(label)}</text>'
        )
    if not bars:
        return ""
    return f'<svg width="{width + 400}" height="{len(bars) * row}" role="img">{"".join(bars)}</svg>'
