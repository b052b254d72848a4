"""Folders `weight_v{N:06d}` of slime and SGLang, written and read: tensorcast.plugins.weight_versions.

The receiver here is written after the layout's description, without the module's code: what it reads, SGLang reads.
"""

import json
import struct
import zlib

import numpy as np
import pytest
from test_changes import after, equal, first

import tensorcast as tc
from tensorcast.plugins import weight_versions

zstandard = pytest.importorskip("zstandard")


def safetensors(path):
    blob = path.read_bytes()
    (length,) = struct.unpack("<Q", blob[:8])
    return json.loads(blob[8 : 8 + length]), blob[8 + length :]


def receive(folder, state):
    """A version's tensors as bytes, made of those of the version before."""
    described = json.loads((folder / "model.safetensors.index.json").read_text())
    metadata = described["metadata"]
    made = dict(state)
    for file in set(described["weight_map"].values()):
        header, data = safetensors(folder / file)
        checksums = header.pop("__metadata__")
        for name, place in header.items():
            begin, end = place["data_offsets"]
            if "delta_encoding" not in metadata:
                made[name] = data[begin:end]
                continue
            assert (metadata["delta_encoding"], metadata["compression_format"], metadata["checksum_format"]) == ("overwrite", "zstd", "adler32")
            delta = zstandard.ZstdDecompressor().decompress(data[begin:end])
            count = int.from_bytes(delta[:4], "little")
            patched = bytearray(made[name])
            for position, value in zip(struct.unpack(f"<{count}I", delta[4 : 4 + 4 * count]), delta[4 + 4 * count :], strict=True):
                patched[position] = value
            assert f"{zlib.adler32(patched):08x}" == checksums[name]
            made[name] = bytes(patched)
    return made


def as_bytes(state):
    return {name: array.tobytes() for name, array in state.items()}


@pytest.fixture
def key(store):
    yield "versions/policy"
    for name in store.keys("versions/"):
        store.unbind(name.name)


def test_exported_versions_are_what_a_receiver_reads(store, key, tmp_path):
    states = [first(200)]
    states += [after(states[0], 201)]
    states += [after(states[1], 202)]
    received, previous = {}, None
    for number, state in enumerate(states, 1):
        put = store.put(state, key=key, base="auto")
        path = weight_versions.export_version(key, tmp_path, number, base=previous, store=store)
        metadata = json.loads((path / "model.safetensors.index.json").read_text())["metadata"]
        assert ("delta_encoding" in metadata) == (number > 1)
        if number > 1:
            assert (metadata["version"], metadata["base_version"]) == (f"{number:06d}", f"{number - 1:06d}")
            assert (path / "model-00001-of-00001.safetensors").stat().st_size < sum(array.nbytes for array in state.values()) / 5
        received = receive(path, received)
        assert received == as_bytes(state)
        previous = put
    assert weight_versions.versions(tmp_path) == [1, 2, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["weight_v000001", "weight_v000002", "weight_v000003"]


def test_densely_changed_version_is_exported_full(store, key, tmp_path):
    base = store.put(first(210), key=key)
    state = first(211)
    store.put(state, key=key)
    path = weight_versions.export_version(key, tmp_path, 2, base=base, store=store)
    assert receive(path, {}) == as_bytes(state)


def test_frame_without_zstandard_is_read_by_it(monkeypatch):
    import sys

    for data in (b"", b"x", bytes(range(256)) * 2000):
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, "zstandard", None)
            frame = weight_versions._frame(data)
        assert zstandard.ZstdDecompressor().decompress(frame) == data


@pytest.fixture
def published(store, key, tmp_path):
    """A full version and two deltas, with files beside the first."""
    states = [first(220)]
    states += [after(states[0], 221)]
    states += [after(states[1], 222)]
    previous = None
    for number, state in enumerate(states, 1):
        previous, base = store.put(state, key="versions/source", base="auto"), previous
        weight_versions.export_version("versions/source", tmp_path, number, base=base, store=store)
    (tmp_path / "weight_v000001/config.json").write_text('{"a": 1}')
    return tmp_path, states


def test_imported_versions_are_versions_of_the_key(store, key, published):
    folder, states = published
    for number, state in enumerate(states, 1):
        imported = weight_versions.import_version(folder, number, key, store=store)
        with store.get(key) as weights:
            assert weights.artifact_id == imported.artifact_id
            assert equal(weights.numpy(), state) and weights.metadata["weight_version"] == str(number)
        assert bytes(store.files(key)["config.json"]) == b'{"a": 1}'
    again = weight_versions.import_version(folder, 3, key, store=store)
    assert again == imported
    with store.changes(store.resolve(key).earlier[0], key) as changed:
        assert changed.source == "differences"


def test_delta_on_another_version_is_refused(store, key, published):
    folder, states = published
    weight_versions.import_version(folder, 1, key, store=store)
    with pytest.raises(tc.FailedPreconditionError, match="delta on version 2, and versions/policy has version 1"):
        weight_versions.import_version(folder, 3, key, store=store)
    store.put(states[1], key=key)
    with pytest.raises(tc.FailedPreconditionError, match="not imported"):
        weight_versions.import_version(folder, 2, key, store=store)
    with pytest.raises(tc.NotFoundError, match="weight_v000009"):
        weight_versions.import_version(folder, 9, key, store=store)


@pytest.mark.parametrize(("version", "reads"), [(1, "_read_safetensors"), (2, "_patched")])
def test_version_that_is_bound_during_an_import_stays(store, key, published, monkeypatch, version, reads):
    folder, states = published
    for earlier in range(1, version):
        weight_versions.import_version(folder, earlier, key, store=store)
    read = getattr(weight_versions, reads)

    def late(*arguments):
        store.put(states[2], key=key)
        return read(*arguments)

    monkeypatch.setattr(weight_versions, reads, late)
    with pytest.raises(tc.FailedPreconditionError, match="revision"):
        weight_versions.import_version(folder, version, key, store=store)
    with store.get(key) as weights:
        assert equal(weights.numpy(), states[2])


def test_damaged_delta_is_found_by_its_checksum(store, key, published):
    folder, states = published
    weight_versions.import_version(folder, 1, key, store=store)
    file = folder / "weight_v000002/model-00001-of-00001.safetensors"
    header, data = safetensors(file)
    name = next(name for name in header if name != "__metadata__")
    header["__metadata__"][name] = "00000000"
    written = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(written)) + written + data)
    with pytest.raises(tc.DataLossError, match=f"{name} does not match its checksum"):
        weight_versions.import_version(folder, 2, key, store=store)
    with store.get(key) as weights:
        assert equal(weights.numpy(), states[0])


def test_xor_delta_is_read(store, key, published):
    folder, states = published
    weight_versions.import_version(folder, 1, key, store=store)
    path = folder / "weight_v000002"
    changed = {name: np.frombuffer(states[0][name].tobytes(), np.uint8) ^ np.frombuffer(states[1][name].tobytes(), np.uint8)
               for name in ("large", "half")}
    frames = {name: ("U8", [len(frame)], frame) for name, data in changed.items()
              for frame in [zstandard.ZstdCompressor().compress(data.tobytes())]}
    weight_versions._write_safetensors(path / "model-00001-of-00001.safetensors", frames,
                                       {name: f"{zlib.adler32(states[1][name].tobytes()):08x}" for name in changed})
    index = json.loads((path / "model.safetensors.index.json").read_text())
    index["metadata"]["delta_encoding"] = "xor"
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    weight_versions.import_version(folder, 2, key, store=store)
    with store.get(key) as weights:
        assert equal(weights.numpy(), states[1])
