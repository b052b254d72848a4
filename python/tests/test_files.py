"""The files beside tensors: put with a folder, bound by its key, kept by later puts of the same model."""

import json

import numpy as np
import pytest
import safetensors.numpy

import tensorcast as tc


def tensors(step=0, rows=2):
    return {"w": np.full((rows, 3), step, np.float32)}


@pytest.fixture
def folder(tmp_path):
    safetensors.numpy.save_file(tensors(), tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "empty").touch()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "vocab.txt").write_bytes(b"a b")
    (tmp_path / "pytorch_model.bin").write_bytes(b"weights")
    return tmp_path


def test_files_of_a_folder_are_read_by_their_paths(store, folder, tmp_path_factory):
    put = store.put(folder, key="files/folder")
    kinds = {artifact.artifact_id: artifact.kind for artifact in store.ls()}
    assert kinds[put.artifact_id] == "tensors" and kinds[put.files_id] == "files"
    with store.files("files/folder") as files:
        assert list(files) == ["config.json", "empty", "sub/vocab.txt"] and files.artifact_id == put.files_id
        assert json.loads(files["config.json"]) == {"model_type": "llama"} and files["empty"] == b""
        assert files.view("sub/vocab.txt").readonly and bytes(files.view("sub/vocab.txt")) == b"a b"
        assert "none" not in files
        with pytest.raises(tc.NotFoundError, match='find file "none"'):
            files["none"]
        out = tmp_path_factory.mktemp("out") / "new"
        files.write(out)
        assert (out / "sub" / "vocab.txt").read_bytes() == b"a b" and (out / "empty").read_bytes() == b""
    with pytest.raises(tc.ClosedError):
        len(files)


def test_next_step_keeps_files_and_another_model_does_not(store, folder):
    first = store.put(folder, key="files/steps")
    assert store.put(tensors(step=1), key="files/steps").files_id == first.files_id
    key = store.resolve("files/steps")
    assert key.revision == 2 and key.files_id == first.files_id and key.artifact_id != first.artifact_id
    assert store.bind("files/promoted", "files/steps").files_id == first.files_id
    assert store.put(tensors(rows=5), key="files/steps").files_id == ""
    with pytest.raises(tc.NotFoundError, match="binds no files"):
        store.files("files/steps")


def test_files_are_bound_with_arrays(store, folder, tmp_path_factory):
    first = store.put(tensors(), key="files/arrays", files=folder)
    key = store.resolve("files/arrays")
    assert key.files_id == first.files_id and key.revision == first.key_revision == 2
    with store.files("files/arrays") as files:
        assert list(files) == ["config.json", "empty", "sub/vocab.txt"]
    # The next step has the same files already, so its put is one binding.
    assert store.put(tensors(step=1), key="files/arrays", files=folder).key_revision == 3
    other = tmp_path_factory.mktemp("other") / "tokenizer.json"
    other.write_text("[]")
    listed = store.put(tensors(step=2), key="files/arrays", files=[folder / "config.json", str(other)])
    assert listed.key_revision == 5 and listed.files_id != first.files_id
    with store.files("files/arrays") as files:
        assert list(files) == ["config.json", "tokenizer.json"] and files["tokenizer.json"] == b"[]"


@pytest.mark.parametrize("files, why", [("nothing/there", "No such file"), (3.5, "files must be"), ([None], "each of files")])
def test_files_that_cannot_be_read_bind_nothing(store, files, why):
    with pytest.raises((tc.Error, TypeError), match=why):
        store.put(tensors(), key="files/refused", files=files)
    with pytest.raises(tc.NotFoundError):
        store.resolve("files/refused")


def test_files_need_arrays_and_a_key(store, folder):
    with pytest.raises(tc.InvalidArgumentError, match="need a key"):
        store.put(tensors(), files=folder)
    with pytest.raises(tc.InvalidArgumentError, match="only if source has arrays"):
        store.put(folder, key="files/refused", files=folder)


def test_ids_of_tensors_do_not_depend_on_files(store, folder):
    with_files = store.put(folder, key="files/with")
    assert with_files.files_id
    without = store.put(folder, key="files/without", files=False)
    assert without.artifact_id == with_files.artifact_id and without.files_id == ""
    assert store.put(folder / "model.safetensors").artifact_id == with_files.artifact_id
