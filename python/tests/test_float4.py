"""Elements smaller than a byte: in torch, and in files that safetensors reads for torch."""

import json

import numpy as np
import pytest
import safetensors
import safetensors.numpy

import tensorcast as tc
from tensorcast.safetensors import StoredFile, safe_open

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")
needs_float4 = pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"),
                                  reason=f"torch {torch.__version__} has no float4_e2m1fn_x2, which came with 2.8")


def pairs(shape):
    """A tensor of this many bytes, each with two elements."""
    count = int(np.prod(shape))
    return torch.arange(count, dtype=torch.uint8).reshape(shape).view(torch.float4_e2m1fn_x2)


def same(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def write(path, dtype, shape, data):
    """Writes a file of one tensor of any dtype and shape, also those that no library supports."""
    header = json.dumps({"x": {"dtype": dtype, "shape": shape, "data_offsets": [0, len(data)]}}).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


@needs_float4
@pytest.mark.parametrize("shape", [(2, 4), (4,), (3, 1), (0, 4)], ids=str)
def test_float4_tensor_comes_back_as_it_was_put(store, shape):
    tensor = pairs(shape)
    store.put({"x": tensor}, key="float4/put")
    with store.get("float4/put") as weights:
        assert (weights["x"].dtype, weights["x"].shape) == ("F4", (*shape[:-1], shape[-1] * 2))
        assert same(weights.torch()["x"], tensor)
        assert bytes(weights["x"].raw) == tensor.view(torch.uint8).numpy().tobytes()


@needs_float4
def test_float4_view_is_put_in_its_own_order(store):
    store.put({"x": pairs((2, 4)).view(torch.uint8).t().view(torch.float4_e2m1fn_x2)}, key="float4/view")
    with store.get("float4/view") as weights:
        assert weights["x"].torch().view(torch.uint8).tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    with pytest.raises(tc.InvalidArgumentError, match='"x".*no dimension'):
        store.put({"x": pairs((1,)).reshape(())})


@needs_float4
@pytest.mark.parametrize("shape", [(2, 4), (4,), (3, 1), (0, 4)], ids=str)
def test_float4_file_is_read_as_the_original_reads_it(store, tmp_path, shape):
    path = tmp_path / "model.safetensors"
    safetensors_torch.save_file({"x": pairs(shape)}, path)
    store.put(path, key="float4/file")
    with safetensors.safe_open(path, "pt") as read:
        for opened in (path, "tc://float4/file"):
            with safe_open(opened, "pt") as file:
                assert isinstance(file, StoredFile)
                assert same(file.get_tensor("x"), read.get_tensor("x")) and same(file.get_tensors()["x"], pairs(shape))
                assert file.get_slice("x").get_shape() == read.get_slice("x").get_shape()
                assert file.get_slice("x").get_dtype() == read.get_slice("x").get_dtype() == "F4"
                with pytest.raises(safetensors.SafetensorError, match="get_tensor"):
                    file.get_slice("x")[:]


@pytest.mark.parametrize("dtype, shape, size", [("F6_E2M3", [4], 3), ("F6_E3M2", [2, 4], 6), ("F4", [4, 3], 6)], ids=str)
@pytest.mark.parametrize("framework", ["pt", "np"])
def test_unknown_dtypes_are_refused_like_by_the_original(store, tmp_path, dtype, shape, size, framework):
    path = tmp_path / "model.safetensors"
    write(path, dtype, shape, bytes(range(size)))
    store.put(path)
    # The original passes some dtypes to numpy and torch, which raise AttributeError for them.
    with safetensors.safe_open(path, framework) as file, pytest.raises((safetensors.SafetensorError, AttributeError)):
        file.get_tensor("x")
    with safe_open(path, framework) as file:
        assert isinstance(file, StoredFile)
        with pytest.raises(safetensors.SafetensorError, match=f"{dtype}.*raw"):
            file.get_tensor("x")


def test_bytes_of_any_dtype_go_by_dlpack(store):
    store.put({"x": np.arange(6, dtype=np.int32).reshape(2, 3)}, key="float4/bytes")
    with store.get("float4/bytes") as weights:
        taken = torch.utils.dlpack.from_dlpack(weights["x"].raw_dlpack())
        assert taken.dtype == torch.uint8 and taken.view(torch.int32).tolist() == list(range(6))
