"""What a store has and does, as plain values: `store.status()`, `ls`, `rm`, `pin`, `replicate`, `explain`.

Each value is a frozen dataclass whose fields are those of the daemon's own messages. In a notebook it shows itself as a
table, and a transfer with the times of its stages. Bytes are bytes, times seconds since 1970, durations seconds.
"""

from __future__ import annotations

import dataclasses
import html
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tensorcast import arguments, calls
from tensorcast.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from tensorcast.tables import Listing, Shown, table

if TYPE_CHECKING:
    from tensorcast import _native

_Fields = Mapping[str, Any]

_ARTIFACT_ID = re.compile(r"tc[0-9]+:")


@dataclasses.dataclass(frozen=True)
class Pool(Shown):
    location: str
    capacity_bytes: int
    used_bytes: int
    pinned_bytes: int  # of leased and pinned replicas, which eviction cannot take
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
    busy: float  # summed over chunks that overlap


@dataclasses.dataclass(frozen=True)
class Source(Shown):
    """Whom a transfer read, and how much of it."""

    source: str
    source_type: str
    lane: str
    bytes: int
    joined: float
    left: float | None  # None: it is in use
    error: str  # why it was given up; empty: it was not


@dataclasses.dataclass(frozen=True)
class Transfer:
    """A transfer that ended, or one under way."""

    transfer_id: str
    artifact_id: str
    replica_id: str
    destination: str
    bytes: int
    bytes_total: int
    queued: float
    start: float
    end: float  # of one under way: when it was looked at
    verified_chunks: int
    refetched_chunks: int
    error: str  # empty: it succeeded, or runs
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
    """One node of the way that the bytes of a transfer took."""

    node: str
    transfer: Transfer | None  # that made the replica there; None: it is not remembered
    under_way: bool
    problem: str  # why there is no word of this node; empty: there is

    def _repr_html_(self) -> str:
        what = f"<p><b>{html.escape(self.node)}</b> {html.escape(self.problem)}</p>"
        return what + (self.transfer._repr_html_() if self.transfer else "")


@dataclasses.dataclass(frozen=True)
class Explanation:
    """Where the time of a transfer went: this node's part first, then those of the nodes that fed it."""

    hops: tuple[Hop, ...]
    left_out: str  # what was not asked any more; empty: nothing

    def _repr_html_(self) -> str:
        return "".join(hop._repr_html_() for hop in self.hops) + html.escape(self.left_out)


@dataclasses.dataclass(frozen=True)
class Status:
    """A daemon at a moment."""

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
    artifact_id: str
    keys: tuple[str, ...]
    image_bytes: int
    tensor_count: int
    created: float
    replicas: int  # on all nodes, those that are ready
    files: tuple[str, ...]  # that it was imported from
    kept_by: tuple[str, ...]  # keys of which it is an earlier version that is kept
    released: bool  # no key names or keeps this version any more: it goes when room is needed
    listed: tuple[Replica, ...] = ()  # each replica, also one that is not ready yet, where ls was asked for them


@dataclasses.dataclass(frozen=True)
class Replica(Shown):
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
    """That an artifact be at a place. Pending until it is there."""

    artifact_id: str
    node: str
    location: str
    state: str  # "there" where a replica was there already
    error: str  # of the last attempt that failed
    waiting_for: str
    bytes: int
    bytes_total: int


class Administration:
    """The calls of a store about the store itself: a part of tensorcast.Store.

    Each call has one deadline, which all that it asks the daemon for shares.
    """

    if TYPE_CHECKING:  # what the rest of it has

        @property
        def native(self) -> _native.Client: ...
        def options(self, timeout: float | None) -> _native.CallOptions: ...

    def _status(self, *, timeout: float | None = None) -> calls.Steps[Status]:
        """The daemon as it is now: pools, leases, transfers."""
        return _status_of((yield self.native.status(options=self.options(timeout))))

    status, status_async = calls.forms(_status)

    def _ls(
        self, *, unkeyed_only: bool = False, replicas: bool = False, timeout: float | None = None
    ) -> calls.Steps[Listing[Artifact]]:
        """All artifacts that the global store knows, wherever they are.

        replicas: list each artifact's replicas, too (Artifact.listed); without it they are counted.
        """
        found = yield self.native.list_artifacts(
            unkeyed_only=bool(unkeyed_only), min_age=0.0, replicas=bool(replicas), options=self.options(timeout)
        )
        return Listing(map(_artifact, found))

    ls, ls_async = calls.forms(_ls)

    def _replicas(self, artifact: str = "", *, timeout: float | None = None) -> calls.Steps[Listing[Replica]]:
        """The replicas on this daemon's node; of one artifact (a key or an id), or all."""
        options = self.options(timeout)
        artifact_id = (yield from self._id_of(artifact, options)) if arguments.text("artifact", artifact) else ""
        return Listing(map(_replica, (yield self.native.list_replicas(artifact_id, options=options))))

    replicas, replicas_async = calls.forms(_replicas)

    def _rm(self, artifact: str, *, force: bool = False, timeout: float | None = None) -> calls.Steps[None]:
        """Deletes an artifact (a key, which goes too, or an id) everywhere.

        FailedPreconditionError while other keys are bound to it, which `force` takes away as well, and for a key whose
        artifact another key keeps as an earlier version, which `force` takes from that one.
        """
        options = self.options(timeout)
        artifact_id = yield from self._id_of(artifact, options)
        keys = yield self.native.list_keys("", options=options)
        bound = [key for key in keys if key["artifact_id"] == artifact_id]
        keepers = [key["name"] for key in keys if artifact_id in key["earlier"]]
        if keepers and artifact != artifact_id and not force:
            raise FailedPreconditionError(
                f"rm {artifact}: nothing was deleted: key {keepers[0]} keeps the artifact {artifact_id} as an earlier version"
            )
        others = [key["name"] for key in bound if key["name"] != artifact]
        if others and not force:
            raise FailedPreconditionError(
                f"nothing was deleted: {len(others)} other keys are bound to artifact {artifact_id}, such as {others[0]}"
            )
        for key in bound:
            # Of this revision: a key that was bound anew meanwhile stays, and names another artifact.
            yield self.native.delete_key(key["name"], expected_revision=key["revision"], options=options)
        yield self.native.delete_artifact(artifact_id, only_if_unkeyed=False, options=options)

    rm, rm_async = calls.forms(_rm)

    def _gc(self, *, older_than: float = 86400.0, dry_run: bool = False, timeout: float | None = None) -> calls.Steps[Listing[Artifact]]:
        """Deletes artifacts that no key names, and that none keeps as an earlier version: those that it deleted.

        older_than: seconds; only those that were stored so long ago.
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
                yield self.native.delete_artifact(artifact.artifact_id, only_if_unkeyed=True, options=options)
            except (FailedPreconditionError, NotFoundError):
                continue  # since it was listed, a key was bound to it, or another process deleted it
            deleted.append(artifact)
        return Listing(deleted)

    gc, gc_async = calls.forms(_gc)

    def _evict(self, replica_id: str, *, force: bool = False, timeout: float | None = None) -> calls.Steps[None]:
        """Drops a replica of this node, or all that it has of an artifact (a key, its id); with `force` even the last copy."""
        yield self.native.evict_replica(arguments.text("replica_id", replica_id), force=bool(force), options=self.options(timeout))

    evict, evict_async = calls.forms(_evict)

    def _pin(self, artifact: str, *, timeout: float | None = None) -> calls.Steps[None]:
        """Keeps what this node has of an artifact (a key, its id, or a replica's id) from being evicted."""
        yield from self._set_pinned(artifact, True, timeout)

    pin, pin_async = calls.forms(_pin)

    def _unpin(self, artifact: str, *, timeout: float | None = None) -> calls.Steps[None]:
        """Allows its eviction again."""
        yield from self._set_pinned(artifact, False, timeout)

    unpin, unpin_async = calls.forms(_unpin)

    def _replicate(
        self, artifact: str, to: str | Sequence[str], *, device: arguments.Device = "cpu", lane: str = "", timeout: float | None = None
    ) -> calls.Steps[Listing[ReplicationTask]]:
        """Replicates an artifact to other nodes (their names or ids). Returns at once; `replication_tasks` shows how far it is.

        `to` is a node, or a list of them, each with a device of its own if need be ("node-b:gpu:0").
        NotFoundError for a node that there is not.
        """
        options = self.options(timeout)
        default = arguments.location(device)
        targets = [
            (node, arguments.location(location) if location else default)
            for node, _, location in (target.partition(":") for target in arguments.texts("to", to))
        ]
        artifact_id = yield from self._id_of(artifact, options)
        answer = yield self.native.replicate(artifact_id, targets, lane=arguments.text("lane", lane), options=options)
        results = list(zip(targets, answer["results"]))
        for (node, _), result in results:
            if result["error"]:
                raise NotFoundError(f"{node}: {_error(result['error'])}")
        return Listing(_result(artifact_id, node, result) for (node, _), result in results)

    replicate, replicate_async = calls.forms(_replicate)

    def _replication_tasks(self, artifact: str = "", *, timeout: float | None = None) -> calls.Steps[Listing[ReplicationTask]]:
        """What was requested by `replicate`, of one artifact or all, and how far it is."""
        options = self.options(timeout)
        artifact_id = (yield from self._id_of(artifact, options)) if arguments.text("artifact", artifact) else ""
        return Listing(map(_task, (yield self.native.list_replication_tasks(artifact_id, options=options))))

    replication_tasks, replication_tasks_async = calls.forms(_replication_tasks)

    def _explain(
        self, transfer: str | Transfer | Mapping[str, Any] | None = "last", *, timeout: float | None = None
    ) -> calls.Steps[Explanation]:
        """Where the time of a transfer to this node went.

        `transfer` is its id, a Transfer, `Weights.transfer`, "last", or an artifact (a key, its id) of which the latest
        one is explained. NotFoundError for one that is not remembered.
        """
        options = self.options(timeout)
        if isinstance(transfer, Transfer):
            transfer = transfer.transfer_id
        elif isinstance(transfer, Mapping):
            transfer = str(transfer["transfer_id"])
        elif transfer is None:
            raise NotFoundError("nothing was transferred: it was there already")
        if arguments.text("transfer", transfer) == "last":
            recent = _status_of((yield self.native.status(options=options))).recent
            if not recent:
                raise NotFoundError("this daemon remembers no transfer")
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
        """The id of the latest transfer of an artifact (a key, its id) that this daemon remembers."""
        try:
            artifact_id = yield from self._id_of(artifact, options)
        except NotFoundError:
            return None
        status = _status_of((yield self.native.status(options=options)))
        return next((one.transfer_id for one in status.running + status.recent if one.artifact_id == artifact_id), None)

    def _id_of(self, artifact: str, options: _native.CallOptions) -> calls.Steps[str]:
        if not arguments.text("artifact", artifact):
            raise InvalidArgumentError("an artifact is named by a key or an artifact id")
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
            raise NotFoundError(f"this node has no replica of {artifact}")
        for replica_id in chosen:
            yield self.native.set_pinned(replica_id, pinned, options=options)


def _location(fields: _Fields | None) -> str:
    if not fields:
        return ""
    kind = fields["kind"].removeprefix("LOCATION_KIND_").lower()
    return f"gpu:{fields['device']}" if kind == "gpu" else kind


def _error(fields: _Fields | None) -> str:
    return "" if not fields else fields["message"]


def _artifact(fields: _Fields) -> Artifact:
    return Artifact(
        artifact_id=fields["artifact_id"],
        keys=tuple(fields["keys"]),
        image_bytes=fields["image_bytes"],
        tensor_count=fields["tensor_count"],
        created=fields["created"] or 0.0,
        replicas=fields["replica_count"],
        files=tuple(file["path"] for origin in fields["origins"] for file in origin["files"]),
        kept_by=tuple(fields["kept_by"]),
        released=fields["released"],
        listed=tuple(map(_replica, fields["replicas"])),
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
    """The stages as bars over the time of the transfer, as an image that needs no script."""
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
