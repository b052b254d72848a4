"""What a store has and does, as plain values: `store.status()`, `ls`, `rm`, `pin`, `replicate`, `explain`.

Each value is a frozen dataclass whose fields are those of the daemon's own messages. In a notebook it shows itself as a
table, and a transfer with the times of its stages. Bytes are bytes, times seconds since 1970, durations seconds.
"""

from __future__ import annotations

import dataclasses
import html
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from tensorcast import arguments, calls
from tensorcast.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError

if TYPE_CHECKING:
    from tensorcast import _native
    from tensorcast.store import Key

_Fields = Mapping[str, Any]
_Entry = TypeVar("_Entry")

_ARTIFACT_ID = re.compile(r"tc[0-9]+:")


class Listing(Sequence[_Entry]):
    """A list of values, which a notebook shows as one table."""

    def __init__(self, entries: Iterable[_Entry]) -> None:
        self._entries = tuple(entries)

    @overload
    def __getitem__(self, index: int) -> _Entry: ...
    @overload
    def __getitem__(self, index: slice) -> Listing[_Entry]: ...
    def __getitem__(self, index: int | slice) -> _Entry | Listing[_Entry]:
        return Listing(self._entries[index]) if isinstance(index, slice) else self._entries[index]

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Listing) and self._entries == other._entries

    def __repr__(self) -> str:
        return "[" + ",\n ".join(map(repr, self._entries)) + "]"

    def _repr_html_(self) -> str:
        return _table([dataclasses.asdict(entry) for entry in self._entries])  # type: ignore[call-overload]


class _Shown:
    """Shows a dataclass as a table of one row."""

    def _repr_html_(self) -> str:
        return _table([dataclasses.asdict(self)])  # type: ignore[call-overload]


@dataclasses.dataclass(frozen=True)
class Pool(_Shown):
    location: str
    capacity_bytes: int
    used_bytes: int
    pinned_bytes: int  # of leased and pinned replicas, which eviction cannot take
    evictions: int


@dataclasses.dataclass(frozen=True)
class Stage(_Shown):
    """A stage of a transfer with one source: fetch, verify or place."""

    stage: str
    source: str
    lane: str
    bytes: int
    start: float
    end: float
    busy: float  # summed over chunks that overlap


@dataclasses.dataclass(frozen=True)
class Source(_Shown):
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
        return _table([facts]) + _table([vars(source) for source in self.sources]) + _timeline(self)


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
        return _table([facts]) + _table([vars(pool) for pool in self.pools]) + _table(transfers)


@dataclasses.dataclass(frozen=True)
class Artifact(_Shown):
    artifact_id: str
    keys: tuple[str, ...]
    image_bytes: int
    tensor_count: int
    created: float
    replicas: int  # on all nodes
    files: tuple[str, ...]  # that it was imported from


@dataclasses.dataclass(frozen=True)
class Replica(_Shown):
    replica_id: str
    artifact_id: str
    node_id: str
    location: str
    state: str
    image_bytes: int
    leases: int
    pinned: bool


@dataclasses.dataclass(frozen=True)
class Wish(_Shown):
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
    """The calls of a store about the store itself: a part of tensorcast.Store."""

    if TYPE_CHECKING:  # what the rest of it has

        @property
        def native(self) -> _native.Client: ...
        def options(self, timeout: float | None) -> _native.CallOptions: ...
        def resolve(self, key: str, *, timeout: float | None = None) -> Key: ...
        def keys(self, prefix: str = "", *, timeout: float | None = None) -> list[Key]: ...
        def unbind(self, key: str, *, expected_revision: int | None = None, timeout: float | None = None) -> None: ...

    def status(self, *, timeout: float | None = None) -> Status:
        """The daemon as it is now: pools, leases, transfers."""
        return _status(calls.finish(self.native.status(options=self.options(timeout))))

    def ls(self, *, unkeyed_only: bool = False, timeout: float | None = None) -> Listing[Artifact]:
        """All artifacts that the global store knows, wherever they are."""
        found = calls.finish(self.native.list_artifacts(unkeyed_only=bool(unkeyed_only), min_age=0.0, options=self.options(timeout)))
        return Listing(map(_artifact, found))

    def replicas(self, artifact: str = "", *, timeout: float | None = None) -> Listing[Replica]:
        """The replicas on this daemon's node; of one artifact (a key or an id), or all."""
        artifact_id = self._id_of(artifact) if arguments.text("artifact", artifact) else ""
        return Listing(map(_replica, calls.finish(self.native.list_replicas(artifact_id, options=self.options(timeout)))))

    def rm(self, artifact: str, *, force: bool = False, timeout: float | None = None) -> None:
        """Deletes an artifact (a key, which goes too, or an id) everywhere.

        FailedPreconditionError while other keys are bound to it, which `force` takes away as well.
        """
        artifact_id = self._id_of(artifact)
        bound = [key for key in self.keys("", timeout=timeout) if key.artifact_id == artifact_id]
        others = [key.name for key in bound if key.name != artifact]
        if others and not force:
            raise FailedPreconditionError(
                f"nothing was deleted: {len(others)} other keys are bound to artifact {artifact_id}, such as {others[0]}"
            )
        for key in bound:
            # Of this revision: a key that was bound anew meanwhile stays, and names another artifact.
            self.unbind(key.name, expected_revision=key.revision, timeout=timeout)
        calls.finish(self.native.delete_artifact(artifact_id, only_if_unkeyed=True, options=self.options(timeout)))

    def evict(self, replica_id: str, *, force: bool = False, timeout: float | None = None) -> None:
        """Drops one replica of this node; with `force` even the last copy."""
        calls.finish(self.native.evict_replica(arguments.text("replica_id", replica_id), force=bool(force), options=self.options(timeout)))

    def pin(self, artifact: str, *, timeout: float | None = None) -> None:
        """Keeps what this node has of an artifact (a key, its id, or a replica's id) from being evicted."""
        self._set_pinned(artifact, True, timeout)

    def unpin(self, artifact: str, *, timeout: float | None = None) -> None:
        """Allows its eviction again."""
        self._set_pinned(artifact, False, timeout)

    def replicate(
        self, artifact: str, to: str | Sequence[str], *, device: str = "cpu", lane: str = "", timeout: float | None = None
    ) -> Listing[Wish]:
        """Wishes that an artifact be on other nodes (their names or ids). Returns at once; `wishes` shows how far it is.

        `to` is a node, or a list of them, each with a device of its own if need be ("node-b:gpu:0").
        NotFoundError for a node that there is not.
        """
        targets = [(node, location or arguments.text("device", device)) for node, _, location in (target.partition(":") for target in arguments.texts("to", to))]
        artifact_id = self._id_of(artifact)
        answer = calls.finish(self.native.replicate(artifact_id, targets, lane=arguments.text("lane", lane), options=self.options(timeout)))
        results = list(zip(targets, answer["results"]))
        for (node, _), result in results:
            if result["error"]:
                raise NotFoundError(f"{node}: {_error(result['error'])}")
        return Listing(_result(artifact_id, node, result) for (node, _), result in results)

    def wishes(self, artifact: str = "", *, timeout: float | None = None) -> Listing[Wish]:
        """What was wished for by `replicate`, of one artifact or all, and how far it is."""
        artifact_id = self._id_of(artifact) if arguments.text("artifact", artifact) else ""
        return Listing(map(_wish, calls.finish(self.native.list_wishes(artifact_id, options=self.options(timeout)))))

    def explain(self, transfer: str | Transfer | Mapping[str, Any] | None = "last", *, timeout: float | None = None) -> Explanation:
        """Where the time of a transfer to this node went.

        `transfer` is its id, a Transfer, `Weights.transfer`, or "last". NotFoundError for one that is not remembered.
        """
        if isinstance(transfer, Transfer):
            transfer = transfer.transfer_id
        elif isinstance(transfer, Mapping):
            transfer = str(transfer["transfer_id"])
        elif transfer is None:
            raise NotFoundError("nothing was transferred: it was there already")
        if arguments.text("transfer", transfer) == "last":
            recent = self.status(timeout=timeout).recent
            if not recent:
                raise NotFoundError("this daemon remembers no transfer")
            transfer = recent[0].transfer_id
        answer = calls.finish(self.native.explain_transfer(transfer, options=self.options(timeout)))
        return Explanation(hops=tuple(map(_hop, answer["hops"])), left_out=answer["left_out"])

    def _id_of(self, artifact: str) -> str:
        if not arguments.text("artifact", artifact):
            raise InvalidArgumentError("an artifact is named by a key or an artifact id")
        return artifact if _ARTIFACT_ID.match(artifact) else self.resolve(artifact).artifact_id

    def _set_pinned(self, artifact: str, pinned: bool, timeout: float | None) -> None:
        arguments.text("artifact", artifact)
        there = self.replicas(timeout=timeout)
        chosen = [replica.replica_id for replica in there if replica.replica_id == artifact]
        if not chosen:
            artifact_id = self._id_of(artifact)
            chosen = [replica.replica_id for replica in there if replica.artifact_id == artifact_id]
        if not chosen:
            raise NotFoundError(f"this node has no replica of {artifact}")
        for replica_id in chosen:
            calls.finish(self.native.set_pinned(replica_id, pinned, options=self.options(timeout)))


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
        replicas=len(fields["replicas"]),
        files=tuple(file["path"] for origin in fields["origins"] for file in origin["files"]),
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


def _wish(fields: _Fields) -> Wish:
    return Wish(
        artifact_id=fields["artifact_id"],
        node=fields["node_name"] or fields["node_id"],
        location=_location(fields["location"]),
        state=fields["state"].removeprefix("WISH_STATE_").lower(),
        error=_error(fields["error"]),
        waiting_for=fields["waiting_for"],
        bytes=fields["bytes"],
        bytes_total=fields["bytes_total"],
    )


def _result(artifact_id: str, node: str, fields: _Fields) -> Wish:
    if fields["wish"]:
        return _wish(fields["wish"])
    return Wish(
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


def _status(fields: _Fields) -> Status:
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


def _cell(name: str, value: Any) -> str:
    if name.endswith("bytes") or name == "bytes_total":
        return f"{value / 2**20:,.1f} MiB"
    if isinstance(value, float):
        return f"{value:.6f}" if value < 1e8 else f"{value:.3f}"
    if isinstance(value, (tuple, list)):
        return ", ".join(map(str, value))
    return str(value)


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_cell(name, value))}</td>" for name, value in row.items()) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


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
