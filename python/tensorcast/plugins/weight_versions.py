"""Reads and writes versions as folders `weight_v{N:06d}`, the form in which slime, miles and SGLang exchange them over a
shared file system.

    weight_versions.export_version("policy", "/shared/run-1", 7, base=previous)      # a trainer with TensorCast feeds SGLang
    weight_versions.import_version("/shared/run-1", 7, "policy")                      # slime feeds nodes with TensorCast

A folder is a checkpoint of Hugging Face's layout. It is one of two kinds:

- full: safetensors files with all tensors;
- a delta against version N-1: the index names `delta_encoding`, `version` and `base_version`, each tensor is a Zstandard
  frame (RFC 8878), and the metadata of a file has a checksum of each tensor's new bytes. The content of a frame with
  `overwrite`: the count (u32), the positions of the changed bytes (u32 each), then their new values. With `xor`: the XOR of
  all old and new bytes.

This module reads both encodings and writes `overwrite`. An imported version becomes an ordinary version of the store, with
digests that the daemon computes. A delta on a wrong base is refused because of its version number or its checksums.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import pathlib
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tensorcast import arrays, default_store
from tensorcast.errors import DataLossError, FailedPreconditionError, NotFoundError, UnimplementedError

if TYPE_CHECKING:
    from tensorcast.store import Key, Store
    from tensorcast.weights import Weights

_INDEX = "model.safetensors.index.json"
_FILE = "model-00001-of-00001.safetensors"
_FOLDER = re.compile(r"weight_v(\d{6,})")
_VERSION = "weight_version"  # a name in the metadata of imported artifacts
_MAX_BLOCK = 128 << 10  # of a Zstandard frame


def versions(folder: str | os.PathLike[str]) -> list[int]:
    """The version numbers in the folder, ascending."""
    found = (_FOLDER.fullmatch(path.name) for path in pathlib.Path(folder).iterdir())
    return sorted(int(match[1]) for match in found if match)


def folder_of(folder: str | os.PathLike[str], version: int) -> pathlib.Path:
    return pathlib.Path(folder) / f"weight_v{version:06d}"


def export_version(source: str, folder: str | os.PathLike[str], version: int, *, base: Any = None, store: Store | None = None,
                   timeout: float | None = None) -> pathlib.Path:
    """Writes a version of the store as a folder. The folder gets its name only when it is complete. Returns its path.

    source: a key or an artifact id. Files that the key binds with the tensors (config.json, tokenizer) are also written.
    base: the version that the folder has as N-1 (a key, an artifact id, or a value with an artifact_id). Then a delta is
        written, if the changes are sparse. None: a full version is written.
    """
    store = store if store is not None else default_store.connect()
    target = folder_of(folder, version)
    made = pathlib.Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=folder))
    try:
        with store.get(source, timeout=timeout, progress=False) as weights:
            delta = None if base is None else _delta_of(store, weights, base, timeout)
            described: dict[str, Any] = {}
            tensors: dict[str, tuple[str, list[int], Any]]
            if delta is None:
                tensors = {name: (array.dtype, list(array.shape), array.raw) for name, array in weights.items()}
                checksums = {"format": "pt"}
            else:
                tensors = {name: ("U8", [len(data)], data) for name, data in delta.items()}
                checksums = {name: _adler32(weights[name].raw) for name in delta}
                described = {"version": f"{version:06d}", "base_version": f"{version - 1:06d}", "delta_encoding": "overwrite",
                             "compression_format": "zstd", "checksum_format": "adler32"}
            total = _write_safetensors(made / _FILE, tensors, checksums)
        index = {"metadata": {"total_size": total, **described}, "weight_map": {name: _FILE for name in tensors}}
        (made / _INDEX).write_text(json.dumps(index, indent=1))
        for path, data in _files_of(store, source, timeout).items():
            (made / path).parent.mkdir(parents=True, exist_ok=True)
            (made / path).write_bytes(bytes(data))
        os.chmod(made, 0o755)
        os.rename(made, target)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return target


def import_version(folder: str | os.PathLike[str], version: int, key: str, *, base: str = "auto", store: Store | None = None,
                   timeout: float | None = None) -> Key:
    """Puts a version of the folder under a key. For a delta, the key must name version N-1, imported by this function.

    base: as in Store.put.

    Returns the key afterwards. If the key already names this version of a delta, puts nothing.

    Raises FailedPreconditionError if the key names another version or was bound again during the import, and DataLossError
    if a checksum does not match.
    """
    store = store if store is not None else default_store.connect()
    path = folder_of(folder, version)
    described = _described(path)
    if "delta_encoding" not in described:
        revision = _revision_of(store, key, timeout)  # before the files are read: a version that is bound meanwhile stays
        _put(store, dict(_read_safetensors(path)), path, key, revision, version, base, timeout)
        return store.resolve(key, timeout=timeout)
    with store.get(key, timeout=timeout, progress=False) as weights:
        held = weights.metadata.get(_VERSION)
        if held == str(version):
            return store.resolve(key, timeout=timeout)
        if held != str(int(described["base_version"])):
            raise FailedPreconditionError(f"import {path}: the folder has a delta on version {int(described['base_version'])}, and {key} has "
                                          f"{f'version {held}' if held else 'a version that was not imported'}; import the versions in order")
        _put(store, _patched(path, described, weights), path, key, weights.key_revision, version, base, timeout)
    return store.resolve(key, timeout=timeout)


def _revision_of(store: Store, key: str, timeout: float | None) -> int:
    """The revision of the key; 0 if it does not exist."""
    try:
        return store.resolve(key, timeout=timeout).revision
    except NotFoundError:
        return 0


def _put(store: Store, state: Mapping[str, Any], path: pathlib.Path, key: str, revision: int, version: int, base: str,
         timeout: float | None) -> None:
    """Binds the key only if it still has this revision: another process may import a later version at the same time."""
    beside = [str(file) for file in sorted(path.iterdir()) if file.is_file() and file.suffix != ".safetensors" and file.name != _INDEX]
    store.put(state, key=key, expected_revision=revision, metadata={_VERSION: str(version)}, base=base, files=beside or True,
              timeout=timeout, progress=False)


def _files_of(store: Store, source: str, timeout: float | None) -> Mapping[str, Any]:
    try:
        return store.files(source, timeout=timeout)
    except NotFoundError:
        return {}


def _delta_of(store: Store, weights: Weights, base: Any, timeout: float | None) -> dict[str, bytes] | None:
    """The frame with positions and bytes of each changed tensor. None: only a full version is possible."""
    import numpy

    frames: dict[str, bytes] = {}
    with store.changes(base, weights.artifact_id, timeout=timeout) as found:
        for name, indices, values in found:
            if indices is None or values.nbytes == 0 or weights[name].nbytes >= 1 << 32:
                return None  # the whole tensor changed, or its positions need more than 32 bits
            width = values.nbytes // len(indices)
            positions = (indices.numpy()[:, None] * width + numpy.arange(width)).astype("<u4").reshape(-1)
            raw: Any = values.raw
            frames[name] = _frame(len(positions).to_bytes(4, "little") + positions.tobytes() + bytes(raw))
    return frames


def _patched(path: pathlib.Path, described: Mapping[str, str], weights: Weights) -> dict[str, arrays.Packed]:
    import numpy

    def packed(array: Any) -> arrays.Packed:
        return arrays.Packed(array.dtype, array.shape, numpy.frombuffer(array.raw, numpy.uint8))

    state = {name: packed(array) for name, array in weights.items()}
    if described.get("compression_format") != "zstd" or described["delta_encoding"] not in ("overwrite", "xor"):
        raise UnimplementedError(f"import {path}: the delta encoding {described['delta_encoding']} with compression {described.get('compression_format')} is not known; "
                                 "import a full version")
    checksum = _checksums(described["checksum_format"])
    for file in sorted(path.glob("*.safetensors")):
        header, data = _open_safetensors(file)
        wanted = header.get("__metadata__", {})
        for name, place in header.items():
            if name == "__metadata__":
                continue
            if name not in state:
                raise DataLossError(f"import {path}: {name} is not a tensor of the previous version; import a full version")
            delta = numpy.frombuffer(_decompressed(bytes(data[slice(*place["data_offsets"])])), numpy.uint8)
            before = state[name]
            made = before.data.copy()
            if described["delta_encoding"] == "xor":
                made[: len(delta)] ^= delta
            else:
                count = int.from_bytes(delta[:4].tobytes(), "little")
                made[numpy.frombuffer(delta[4 : 4 + 4 * count].tobytes(), "<u4")] = delta[4 + 4 * count :]
            if checksum(made) != wanted.get(name):
                raise DataLossError(f"import {path}: {name} does not match its checksum after the delta; import a full version")
            state[name] = dataclasses.replace(before, data=made)
    return state


def _described(path: pathlib.Path) -> dict[str, str]:
    """The metadata of the index; empty for a full version without metadata."""
    if not path.is_dir():
        raise NotFoundError(f"import {path}: this folder does not exist; versions() lists the versions that exist")
    try:
        metadata: dict[str, str] = json.loads((path / _INDEX).read_text()).get("metadata", {})
    except FileNotFoundError:
        return {}
    return metadata


def _write_safetensors(path: pathlib.Path, tensors: Mapping[str, tuple[str, list[int], Any]], metadata: Mapping[str, str]) -> int:
    """Writes a safetensors file. Returns the number of bytes of its tensors."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
        end += len(data)
    written = json.dumps(header).encode()
    written += b" " * (-len(written) % 8)
    with path.open("wb") as file:
        file.write(len(written).to_bytes(8, "little") + written)
        for _, _, data in tensors.values():
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return end


def _open_safetensors(path: pathlib.Path) -> tuple[dict[str, Any], Any]:
    """Returns the header of a safetensors file, and the bytes after the header."""
    import numpy

    mapped = numpy.memmap(path, numpy.uint8, "r")
    begin = 8 + int.from_bytes(bytes(mapped[:8]), "little")
    return json.loads(bytes(mapped[8:begin])), mapped[begin:]


def _read_safetensors(folder: pathlib.Path) -> Iterator[tuple[str, arrays.Packed]]:
    for file in sorted(folder.glob("*.safetensors")):
        header, data = _open_safetensors(file)
        for name, place in header.items():
            if name != "__metadata__":
                yield name, arrays.Packed(place["dtype"], tuple(place["shape"]), data[slice(*place["data_offsets"])])


def _adler32(data: Any) -> str:
    return f"{zlib.adler32(data):08x}"


def _checksums(algorithm: str) -> Any:
    """The function that computes the checksum of bytes, as text."""
    if algorithm == "adler32":
        return _adler32
    if algorithm == "xxh3-128":
        made = _package("xxhash").xxh3_128
    elif algorithm == "blake3":
        made = _package("blake3").blake3
    else:
        raise UnimplementedError(f"read a delta: the checksum {algorithm} is not known; import a full version")
    return lambda data: made(data).hexdigest()


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UnimplementedError(f"read a delta: the package {name} is not installed; install {name}") from error


def _frame(data: bytes) -> bytes:
    """A Zstandard frame (RFC 8878): compressed if the package zstandard is installed, otherwise made of raw blocks."""
    with contextlib.suppress(ImportError):
        compressed: bytes = importlib.import_module("zstandard").ZstdCompressor(level=1).compress(data)
        return compressed
    blocks = [data[at : at + _MAX_BLOCK] for at in range(0, len(data), _MAX_BLOCK)] or [b""]
    frame = b"\x28\xb5\x2f\xfd" + b"\xe0" + len(data).to_bytes(8, "little")  # one segment, with its size in eight bytes
    for number, block in enumerate(blocks):
        last = number == len(blocks) - 1
        frame += (len(block) << 3 | last).to_bytes(3, "little") + block
    return frame


def _decompressed(frame: bytes) -> bytes:
    data: bytes = _package("zstandard").ZstdDecompressor().decompress(frame)
    return data
