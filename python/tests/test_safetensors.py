"""The drop-in for safetensors. test_safetensors_suite.py also runs the safetensors project's own tests."""

import json
import os

import numpy as np
import pytest
import safetensors
import safetensors.numpy

import tensorcast.safetensors
from tensorcast import default_store
from tensorcast.safetensors import StoredFile, safe_open
from tensorcast.safetensors.numpy import load_file, save_file

TENSORS = {"a": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.array(7, np.int64), "none": np.zeros((0, 3), np.uint8)}


def equal(one, other):
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and np.array_equal(one[name], other[name]) for name in one
    )


def test_tensors_saved_under_a_key_are_loaded_by_it(store):
    save_file(TENSORS, "tc://safetensors/key", {"format": "np"})
    assert equal(load_file("tc://safetensors/key"), TENSORS)
    with safe_open("tc://safetensors/key", framework="np") as file:
        assert file.keys() == sorted(TENSORS)
        assert file.metadata() == {"format": "np"}
        part = file.get_slice("a")
        assert (part.get_shape(), part.get_dtype()) == ([3, 4], "F32")
        assert np.array_equal(part[1:, 0], TENSORS["a"][1:, 0])


def test_an_unbound_key_raises_file_not_found(store):
    with pytest.raises(FileNotFoundError, match="nobody/bound"):
        load_file("tc://nobody/bound")
    with pytest.raises(FileNotFoundError):
        safe_open("tc://nobody/bound", framework="np")


def test_a_path_that_was_put_is_attached_until_it_changes(store, tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(TENSORS, path)
    assert not isinstance(safe_open(path, framework="np"), StoredFile)
    store.put(path)
    with safe_open(path, framework="np") as file:
        assert isinstance(file, StoredFile)
        assert equal(file.get_tensors(), TENSORS)
    other = {"a": TENSORS["a"] + 1, **{name: TENSORS[name] for name in ("b", "none")}}
    safetensors.numpy.save_file(other, path)
    os.utime(path, ns=(1, 1))
    assert equal(load_file(path), other)


def test_a_shard_gives_its_own_tensors(store, tmp_path):
    shards = {"model-1.safetensors": {"x[1]": np.ones(3)}, "model-2.safetensors": {"x*": np.zeros(2), "y": np.ones(1)}}
    for name, tensors in shards.items():
        safetensors.numpy.save_file(tensors, tmp_path / name)
    index = {"weight_map": {tensor: name for name, tensors in shards.items() for tensor in tensors}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    store.put(tmp_path)
    for name, tensors in shards.items():
        with safe_open(tmp_path / name, framework="np") as file:
            assert isinstance(file, StoredFile)
            assert equal(file.get_tensors(), tensors)


def test_a_shard_without_tensors_is_empty(store, tmp_path):
    safetensors.numpy.save_file({"x": np.ones(2)}, tmp_path / "model-1.safetensors")
    safetensors.numpy.save_file({}, tmp_path / "model-2.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"x": "model-1.safetensors"}}')
    store.put(tmp_path)
    assert load_file(tmp_path / "model-2.safetensors") == {}


def test_a_write_to_loaded_tensors_stays_private(store):
    save_file(TENSORS, "tc://safetensors/private")
    mine = load_file("tc://safetensors/private")
    mine["a"][:] = -1
    assert equal(load_file("tc://safetensors/private"), TENSORS)


def test_without_a_daemon_files_are_read(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORCAST_DAEMON", f"unix:{tmp_path}/nobody.sock")
    default_store.forget()
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path)
    assert equal(load_file(path), TENSORS)


def test_a_file_that_is_closed_says_so(store):
    save_file(TENSORS, "tc://safetensors/closed")
    with safe_open("tc://safetensors/closed", framework="np") as file:
        kept = file.get_tensor("a")
    with pytest.raises(safetensors.SafetensorError, match="File is closed"):
        file.keys()
    assert np.array_equal(kept, TENSORS["a"])


def test_a_missing_tensor_raises_the_originals_error(store):
    save_file(TENSORS, "tc://safetensors/errors")
    with safe_open("tc://safetensors/errors", framework="np") as file:
        with pytest.raises(safetensors.SafetensorError, match="does not contain tensor nothing"):
            file.get_tensor("nothing")
    with pytest.raises(tensorcast.safetensors.SafetensorError, match="framework"):
        safe_open("tc://safetensors/errors", framework="abacus")
    default_store.forget()
