"""What a get gives: the tensors of an artifact, by name, where they lie."""

from __future__ import annotations

import html
import warnings
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tensorcast import _native, arguments, arrays
from tensorcast.errors import ClosedError, DataLossError, FailedPreconditionError, NotFoundError
from tensorcast.progress import size
from tensorcast.tables import table

if TYPE_CHECKING:
    from tensorcast.store import Store


class Weights(Mapping[str, _native.Array]):
    """The tensors of a replica on this host, and a lease on it: a mapping of names to arrays, in their order.

    Nothing is copied. The lease ends when the weights are closed (or dropped) and no array that was made of
    them is left; until then the store keeps the memory as it is, also when the daemon goes away.

    Thread-safe. In a forked child the arrays stay readable, and keep the memory for as long as it lives. Weights can be
    pickled, for a process that is spawned: what travels is their name, and the process that reads them gets the same
    tensors from the daemon, with a lease of its own. So the sender keeps them until they were read.
    """

    def __init__(self, replica: _native.Replica, store: Store) -> None:
        self._replica: _native.Replica | None = replica
        self._tensors = replica.tensors()
        self._origin = store.daemon, store.certificates

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Weights:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        names = None if len(self) == self._open().tensor_count else list(map(arguments.pattern_of, self))
        return _get_again, (self._origin, self.artifact_id, self.device, names)

    def close(self) -> None:
        """Gives the lease back, once no array that was made of it is left. More than once is fine."""
        self._replica = None
        self._tensors = {}

    @property
    def closed(self) -> bool:
        return self._replica is None

    def _open(self) -> _native.Replica:
        replica = self._replica
        if replica is None:
            raise ClosedError("these weights were closed; arrays that were made of them are still good")
        return replica

    def __getitem__(self, name: str) -> _native.Array:
        tensor = self._tensors.get(name)
        if tensor is None:
            replica = self._open()
            chosen = f" among the {len(self._tensors)} of {replica.tensor_count} that were asked for"
            written = str(name).encode(errors="backslashreplace").decode()
            raise NotFoundError(f'artifact {replica.artifact_id} has no tensor "{written}"'
                                f'{chosen if len(self._tensors) < replica.tensor_count else ""}')
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
        """All of them as numpy.ndarray, read-only. TypeError, naming the dtype, for what numpy has none for."""
        self._open()
        return {name: arrays.to_numpy(tensor) for name, tensor in self._tensors.items()}

    def torch(self) -> dict[str, Any]:
        """All of them as torch.Tensor.

        torch has no read-only tensors: what is written takes a page of this process's own, is seen by whatever
        was made of these weights, and by nobody else. Of weights that are not `writable` the tensors are
        copies, which a RuntimeWarning says.
        """
        if self.device == "cpu" and not self.writable:
            warnings.warn("the store's memory is huge pages that were set aside (vm.nr_hugepages), and fewer are "
                          "free than these weights take: torch, which may write, gets copies", RuntimeWarning, 2)
        return {name: arrays.to_torch(tensor) for name, tensor in self._tensors.items()}

    def jax(self) -> dict[str, Any]:
        """All of them as jax.Array."""
        self._open()
        return {name: arrays.to_jax(tensor) for name, tensor in self._tensors.items()}

    def slice(self, name: str, index: Any) -> Any:
        """`weights[name].numpy()[index]`: a view, of which only what is looked at is read.

        Of weights on a GPU a torch.Tensor, likewise.
        """
        tensor = self[name]
        return tensor.numpy()[index] if tensor.device == "cpu" else tensor.torch()[index]

    @property
    def artifact_id(self) -> str:
        return self._open().artifact_id

    @property
    def replica_id(self) -> str:
        return self._open().replica_id

    @property
    def device(self) -> str:
        """"cpu" or "gpu:N"."""
        return self._open().device

    @property
    def nbytes(self) -> int:
        """Bytes of the artifact as a whole, with what lies between its tensors."""
        return self._open().nbytes

    @property
    def metadata(self) -> dict[str, str]:
        """What the artifact was put with, or its files carry."""
        return self._open().metadata

    @property
    def key_revision(self) -> int:
        """Of the key it was asked for by; 0 when it was asked for by its id."""
        return self._open().key_revision

    @property
    def key_unconfirmed(self) -> bool:
        """True when the global store did not answer: the key is as the daemon last knew it."""
        return self._open().key_unconfirmed

    @property
    def writable(self) -> bool:
        """Whether torch has the store's memory itself, copy-on-write.

        False on a GPU, and where the daemon's pool is of huge pages that were set aside (vm.nr_hugepages) and fewer
        are free than these weights take: they are reserved for a write when weights are got, since one that finds
        none ends the process. A forked child has no reservation, so there such a write may.
        """
        return self._open().writable

    @property
    def lost(self) -> bool:
        """True once the daemon went away: the arrays stay readable, but for new ones get again."""
        return self._open().lost

    @property
    def transfer(self) -> dict[str, Any] | None:
        """How they came to this node: id, bytes, seconds, sources; None when they were there."""
        return self._open().transfer()

    @property
    def state(self) -> str:
        """"attached"; "lost" once the daemon went away; "damaged" once it found that the bytes match their digests no more.

        Damaged weights stay mapped, and what was read of them lately may be wrong: get them again. The daemon takes
        another replica from a good source by itself.
        """
        replica = self._open()
        if replica.damage:
            return "damaged"
        return "lost" if replica.lost else "attached"

    def check(self) -> None:
        """Raises DataLossError when the bytes were found damaged, FailedPreconditionError when the daemon went away."""
        if damage := self._open().damage:
            raise DataLossError(f"{self.artifact_id} is damaged in this node's memory, get it again: {damage}")
        if self.lost:
            raise FailedPreconditionError(f"the daemon that leased {self.artifact_id} went away: get it again")


def _get_again(origin: tuple[str, Mapping[str, str]], artifact_id: str, device: str, names: list[str] | None) -> Weights:
    """What was pickled, in the process that reads it: by the one connection that it has for all such weights."""
    from tensorcast import default_store

    daemon, certificates = origin
    return default_store.connect(daemon, **certificates).get(artifact_id, device=device, tensors=names, progress=False)
