"""The result of a get: the tensors of an artifact by name, in the store's own memory."""

from __future__ import annotations

import html
import math
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tensorcast import _native, arguments, arrays, calls
from tensorcast.errors import ClosedError, DataLossError, FailedPreconditionError, NotFoundError, UnavailableError
from tensorcast.progress import size
from tensorcast.tables import table

if TYPE_CHECKING:
    from tensorcast.changes import Written
    from tensorcast.store import Store


# The client waits this much longer than the timeout of a commit, since the daemon decides whether the commit was in time.
_ANSWER_SECONDS = 10.0


class Weights(Mapping[str, _native.Array], calls.Closing):
    """The tensors of a replica on this host, with a lease on it: a mapping of names to arrays, in the artifact's order.

    Nothing is copied. The lease ends when the weights are closed (or garbage collected) and no array of them exists. Until
    then the memory does not change, even if the daemon ends. Only live weights (get(live=True)) change, in commit().

    Thread-safe. In a forked child the arrays stay readable, and keep the memory while the child lives. Weights can be
    pickled for a spawned process. The pickle holds only the artifact id and the names. The process that unpickles it gets
    the same tensors from the daemon, with another lease. Keep these weights open until that process has its lease.
    """

    def __init__(self, replica: _native.Replica, store: Store) -> None:
        self._replica: _native.Replica | None = replica
        self._tensors = replica.tensors()
        self._origin = store.daemon, store.certificates
        self.written: Written | None = None  # the result of the write of get(into=...)
        self._live: tuple[Store, str] | None = None  # the store, and the id of the live lease

    def __reduce__(self) -> tuple[Any, ...]:
        names = None if len(self) == self._open().tensor_count else list(map(arguments.pattern_of, self))
        return _get_again, (self._origin, self.artifact_id, self.device, names)

    def close(self) -> None:
        """Ends the lease as soon as no array of these weights exists. May be called more than once."""
        self._replica = None
        self._tensors = {}

    def make_live(self, store: Store, options: _native.CallOptions) -> calls.Steps[None]:
        """For Store.get: lets these weights change to another version from now on."""
        self._live = store, (yield store.native.make_live(self._open(), options=options))

    @property
    def live(self) -> bool:
        """True after get(live=True): prepare() and commit() can change these weights to another version."""
        return self._live is not None

    def _opened_live(self, what: str) -> tuple[_native.Replica, Store, str]:
        replica = self._open()
        if self._live is None:
            raise FailedPreconditionError(f"{what}: these weights do not change; get them with live=True")
        return replica, *self._live

    def _prepare(self, version: Any, *, timeout: float | None = None) -> calls.Steps[None]:
        """Brings the changes to another version to this node and verifies them. Does not change these weights.

        version: an artifact id, or a value with an artifact_id (Version, Put, Key). The version must have the same tensors.

        Raises FailedPreconditionError with the reason if the memory cannot change to that version: this replica is pinned, an
        earlier daemon filled its memory (daemon.keep_pool), other processes of this node hold that version live, or
        processes are in commit() to another version. Discards a version that was prepared earlier, if no process commits to
        it.
        """
        _, store, hold = self._opened_live("prepare a version")
        yield store.native.prepare_version(hold, arguments.text("version", getattr(version, "artifact_id", version)),
                                           options=store.options(timeout))

    prepare, prepare_async = calls.forms(_prepare)

    def _commit(self, version: Any, *, timeout: float | None = None) -> calls.Steps[float]:
        """Changes the tensors to another version at the same addresses. Returns the pause in seconds.

        Waits until every process that holds these weights is in commit() to the same version, or has ended. No program may
        read the tensors during commit(). If the weights are on a GPU, wait for the kernels and copies that use them before
        commit(), for example with torch.cuda.synchronize(). Afterwards existing arrays show the new version, and
        artifact_id names it. Pages of host memory that the program wrote to through a torch tensor are private copies, and
        do not change.

        version: as in prepare(). A version that is not prepared is prepared first.
        timeout: seconds to wait for the other processes.

        Raises DeadlineExceededError with the processes that did not commit; in this case nothing was written. Raises
        InternalError if the GPU failed while it wrote: the bytes may be a mixture of both versions, so get the weights
        again. After any other error, commit() may be called again. If `lost` is true after such an error, the bytes may
        also be a mixture.
        """
        begun = time.perf_counter()
        replica, store, hold = self._opened_live("commit to a version")
        wait = math.inf if timeout is None else arguments.seconds(timeout)
        options = store.options(None if timeout is None else timeout + _ANSWER_SECONDS)
        hold = yield store.native.commit_version(replica, hold, arguments.text("version", getattr(version, "artifact_id", version)),
                                                 wait=wait, options=options)
        self._live = store, hold
        return time.perf_counter() - begun

    commit, commit_async = calls.forms(_commit)

    @property
    def closed(self) -> bool:
        return self._replica is None

    def _open(self) -> _native.Replica:
        replica = self._replica
        if replica is None:
            raise ClosedError("these weights were closed; get them again (arrays of them stay valid)")
        return replica

    def __getitem__(self, name: str) -> _native.Array:
        tensor = self._tensors.get(name)
        if tensor is None:
            replica = self._open()
            chosen = f" among the {len(self._tensors)} tensors that the get chose (of {replica.tensor_count})"
            written = str(name).encode(errors="backslashreplace").decode()
            raise NotFoundError(f'find tensor "{written}": artifact {replica.artifact_id} has no such tensor'
                                f'{chosen if len(self._tensors) < replica.tensor_count else ""}; list(weights) lists the names')
        return tensor

    def __iter__(self) -> Iterator[str]:
        self._open()
        return iter(self._tensors)

    def __len__(self) -> int:
        self._open()
        return len(self._tensors)

    def __repr__(self) -> str:
        if self._replica is None:
            return "<tensorcast.Weights, closed>"
        return f"<tensorcast.Weights of {self.artifact_id}: {len(self)} tensors at {self.device}>"

    def _repr_html_(self) -> str:
        rows = [{"name": name, "dtype": tensor.dtype, "shape": str(tensor.shape), "size": size(tensor.nbytes)}
                for name, tensor in self._tensors.items()]
        return f"<p>{html.escape(repr(self)[1:-1])}</p>{table(rows)}"

    def numpy(self) -> dict[str, Any]:
        """All tensors as read-only numpy.ndarray. Raises TypeError for a dtype that numpy does not have."""
        self._open()
        return {name: arrays.to_numpy(tensor) for name, tensor in self._tensors.items()}

    def torch(self) -> dict[str, Any]:
        """All tensors as torch.Tensor.

        torch has no read-only tensors. A write in host memory gives this process a private page: all arrays of these
        weights see the write, and no other process does. If weights in host memory are not `writable`, the tensors are
        copies, and a RuntimeWarning says so. All processes share tensors on a GPU: do not write to them.
        """
        if self.device == "cpu" and not self.writable:
            warnings.warn("torch tensors are copies of these weights: too few reserved huge pages (vm.nr_hugepages) are "
                          "free for private writes to the store's memory; raise vm.nr_hugepages", RuntimeWarning, 2)
        return {name: arrays.to_torch(tensor) for name, tensor in self._tensors.items()}

    def jax(self) -> dict[str, Any]:
        """All tensors as jax.Array."""
        self._open()
        return {name: arrays.to_jax(tensor) for name, tensor in self._tensors.items()}

    def slice(self, name: str, index: Any) -> Any:
        """A view of a part of one tensor: `weights[name].numpy()[index]`. Reads no element until the program uses it.

        The view is a numpy.ndarray in host memory, and a torch.Tensor on a GPU.
        """
        tensor = self[name]
        return tensor.numpy()[index] if tensor.device == "cpu" else tensor.torch()[index]

    @property
    def native(self) -> _native.Replica:
        """The native replica, for the other modules of this package."""
        return self._open()

    @property
    def artifact_id(self) -> str:
        return self._open().artifact_id

    @property
    def replica_id(self) -> str:
        return self._open().replica_id

    @property
    def device(self) -> str:
        """Where the replica is: "cpu" or "gpu:N"."""
        return self._open().device

    @property
    def nbytes(self) -> int:
        """Bytes of the whole artifact, with the padding between its tensors."""
        return self._open().nbytes

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata texts of the put, or of the imported files, by name."""
        return self._open().metadata

    @property
    def key_revision(self) -> int:
        """The revision that the key had at the get; 0 after a get by artifact id."""
        return self._open().key_revision

    @property
    def key_unconfirmed(self) -> bool:
        """True if the global store did not answer the get: the artifact id comes from the binding that the daemon remembers."""
        return self._open().key_unconfirmed

    @property
    def writable(self) -> bool:
        """True if torch tensors in host memory are the store's memory itself, copy-on-write. If False, they are copies.

        False on a GPU, where torch tensors are the store's memory but are shared. Also False if the daemon's pool uses
        reserved huge pages (vm.nr_hugepages) and too few are free: a get reserves pages for private writes, because a write
        without a free huge page ends the process. A forked child has no reservation, so a write there may end the child.
        """
        return self._open().writable

    @property
    def lost(self) -> bool:
        """True after the daemon ended. Existing arrays stay readable; to make new ones, get the weights again."""
        return self._open().lost

    @property
    def transfer(self) -> dict[str, Any] | None:
        """The transfer to this node (id, bytes, seconds, sources); None if the replica was already on the node."""
        return self._open().transfer()

    @property
    def state(self) -> str:
        """The state of the memory: "attached", "lost" (the daemon ended), or "damaged" (a digest did not match).

        Damaged weights stay mapped, but bytes that the program read may be wrong: get the weights again. The daemon
        replaces the replica from an intact source by itself.
        """
        replica = self._open()
        if replica.damage:
            return "damaged"
        return "lost" if replica.lost else "attached"

    def check(self) -> None:
        """Raises DataLossError for damaged weights, and UnavailableError after the daemon ended."""
        if damage := self._open().damage:
            raise DataLossError(f"check {self.artifact_id}: the bytes in this node's memory are damaged: {damage}")
        if self.lost:
            raise UnavailableError(f"check {self.artifact_id}: the daemon that held the lease ended; get the artifact again")


def _get_again(origin: tuple[str, Mapping[str, str]], artifact_id: str, device: str, names: list[str] | None) -> Weights:
    """Unpickles weights: gets them over the process's default connection to their daemon."""
    from tensorcast import default_store

    daemon, certificates = origin
    return default_store.connect(daemon, **certificates).get(artifact_id, device=device, tensors=names, progress=False)
