"""The files that a key binds with its tensors: config.json, tokenizer, licence."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from tensorcast import _native, calls
from tensorcast.errors import ClosedError, NotFoundError


class Files(Mapping[str, bytes], calls.Closing):
    """The files of a model on this host, with a lease on them: a mapping of paths to bytes, in alphabetical order.

    A path is relative to the model's folder and has `/` between its parts. `files[path]` copies the bytes; `view(path)`
    returns the store's own memory. The lease ends when the files are closed (or garbage collected) and no view of them
    exists.

    Thread-safe.
    """

    def __init__(self, replica: _native.Replica) -> None:
        self._replica: _native.Replica | None = replica
        self._files = replica.tensors()

    def close(self) -> None:
        """Ends the lease as soon as no view of these files exists. May be called more than once."""
        self._replica = None
        self._files = {}

    def _open(self) -> _native.Replica:
        if self._replica is None:
            raise ClosedError("these files were closed; get them again (views of them stay valid)")
        return self._replica

    def view(self, path: str) -> memoryview:
        """The bytes of one file, read-only and without a copy."""
        file = self._files.get(path)
        if file is None:
            replica = self._open()
            written = str(path).encode(errors="backslashreplace").decode()
            raise NotFoundError(f'find file "{written}": artifact {replica.artifact_id} has no such file; list(files) lists the paths')
        raw: Any = file.raw  # its stub does not say that it has the buffer protocol
        return memoryview(raw)

    def __getitem__(self, path: str) -> bytes:
        return self.view(path).tobytes()

    def __iter__(self) -> Iterator[str]:
        self._open()
        return iter(self._files)

    def __len__(self) -> int:
        self._open()
        return len(self._files)

    def __repr__(self) -> str:
        if self._replica is None:
            return "<tensorcast.Files, closed>"
        return f"<tensorcast.Files of {self.artifact_id}: {len(self)} files>"

    @property
    def artifact_id(self) -> str:
        return self._open().artifact_id

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Writes all files below a folder. Makes the folder if it is missing, and overwrites files with the same paths."""
        for path in self:
            target = pathlib.Path(folder, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(self.view(path))
