"""Tests our reader and writer against the safetensors library itself.

Every file goes library -> our reader -> our writer -> library, and must come back equal, tensor for tensor. Our reader must
refuse all files that the library refuses. CTest runs it with the path of interop_tool as the only argument.
"""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

import numpy
import safetensors
import safetensors.numpy

TOOL = ""

# The names that the library's writer accepts, with the bits of one element.
WRITABLE_DTYPES = {
    "bool": 8, "int8": 8, "uint8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64, "uint64": 64,
    "float16": 16, "float32": 32, "float64": 64, "bfloat16": 16, "complex64": 64,
    "float8_e4m3fn": 8, "float8_e4m3fnuz": 8, "float8_e5m2": 8, "float8_e5m2fnuz": 8, "float8_e8m0fnu": 8,
}

# Every dtype of the format, by its name in files.
DTYPES = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}


def tensors_of(path):
    """Reads a file with the library: {name: (dtype, shape, bytes)}."""
    found = safetensors.deserialize(pathlib.Path(path).read_bytes())
    return {name: (t["dtype"], tuple(t["shape"]), bytes(t["data"])) for name, t in found}


def metadata_of(path):
    with safetensors.safe_open(path, framework="numpy") as opened:
        return opened.metadata()


def raw_file(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def pattern(count, seed):
    return bytes((i * 7 + seed) % 251 for i in range(count))


class Interop(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.scratch.name)

    def tearDown(self):
        self.scratch.cleanup()

    def tool(self, *arguments):
        return subprocess.run([TOOL, *map(str, arguments)], capture_output=True, text=True, timeout=60)

    def rewrite(self, source):
        out = self.folder / "rewritten.safetensors"
        result = self.tool("rewrite", source, out)
        self.assertEqual(result.returncode, 0, result.stderr)
        return out

    def test_every_dtype_that_the_library_writes_comes_back_equal(self):
        buffers, specs = [], {}
        for seed, (dtype, bits) in enumerate(WRITABLE_DTYPES.items()):
            for shape in ([3, 5], [7], [], [0], [4, 0, 2]):
                count = int(numpy.prod(shape, dtype=int))
                buffer = numpy.frombuffer(pattern(max(count * bits // 8, 1), seed), dtype=numpy.uint8)
                buffers.append(buffer)
                specs[f"{dtype}{shape}"] = safetensors.TensorSpec(
                    dtype=dtype, shape=shape, data_ptr=buffer.ctypes.data, data_len=count * bits // 8)
        source = self.folder / "source.safetensors"
        safetensors.serialize_file(specs, source, {"format": "pt", "text": "\"\\\n\u00e9\U0001f600"})
        out = self.rewrite(source)
        self.assertEqual(len(tensors_of(out)), 5 * len(WRITABLE_DTYPES))
        self.assertEqual(tensors_of(out), tensors_of(source))
        self.assertEqual(metadata_of(out), metadata_of(source))

    def test_every_dtype_of_the_format_comes_back_equal(self):
        header, data = {}, b""
        for seed, (dtype, bits) in enumerate(DTYPES.items()):
            payload = pattern(8 * bits // 8, seed)
            header[dtype] = {"dtype": dtype, "shape": [2, 4], "data_offsets": [len(data), len(data) + len(payload)]}
            data += payload
        source = self.folder / "source.safetensors"
        source.write_bytes(raw_file(header, data))
        self.assertEqual(set(tensors_of(source)), set(DTYPES))
        self.assertEqual(tensors_of(self.rewrite(source)), tensors_of(source))

    def test_a_file_without_tensors_comes_back(self):
        source = self.folder / "source.safetensors"
        source.write_bytes(safetensors.serialize({}, None))
        self.assertEqual(tensors_of(self.rewrite(source)), {})

    def test_an_empty_name_comes_back(self):
        source = self.folder / "source.safetensors"
        safetensors.numpy.save_file({"": numpy.arange(3), "a": numpy.arange(2)}, source)
        self.assertEqual(tensors_of(self.rewrite(source)), tensors_of(source))
        self.assertIn("", tensors_of(source))

    def test_empty_metadata_and_no_metadata_both_come_back(self):
        for metadata in ({}, None, {"": ""}, {"__metadata__": "x"}):
            with self.subTest(metadata):
                source = self.folder / "source.safetensors"
                safetensors.numpy.save_file({"a": numpy.arange(2)}, source, metadata)
                self.assertEqual(metadata_of(source), metadata)
                self.assertEqual(metadata_of(self.rewrite(source)), metadata)

    def test_a_sharded_model_becomes_one_file_with_the_same_tensors(self):
        model, weight_map = {}, {}
        for shard in range(3):
            name = f"model-{shard + 1:05}-of-00003.safetensors"
            part = {f"layer.{shard}.{i}": numpy.arange(i * 5 + shard, dtype=dtype)
                    for i, dtype in enumerate((numpy.uint8, numpy.float32, numpy.int64, numpy.float16))}
            safetensors.numpy.save_file(part, self.folder / name, {"format": "np"})
            model.update(part)
            weight_map.update({tensor: name for tensor in part})
        (self.folder / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {"total_size": 123}, "weight_map": weight_map}, indent=2))
        # The odd sizes of one shard would put the tensors of the next shard at odd offsets. Loading arrays shows that they are aligned.
        out = self.rewrite(self.folder)
        loaded = safetensors.numpy.load_file(out)
        self.assertEqual(set(loaded), set(model))
        for name, array in model.items():
            self.assertEqual(loaded[name].dtype, array.dtype)
            self.assertTrue(numpy.array_equal(loaded[name], array), name)
        self.assertEqual(metadata_of(out), {"format": "np"})

    def test_a_published_model_comes_back_equal(self):
        roots = [pathlib.Path(path) for path in sys.path if path.endswith("site-packages")]
        found = [path for root in roots for path in root.glob("*/model/model.safetensors")]
        if not found:
            self.skipTest("no published model is installed")
        for source in found:
            out = self.rewrite(source)
            self.assertEqual(tensors_of(out), tensors_of(source))
            self.assertEqual(metadata_of(out), metadata_of(source))
            # The directory of the file is also a model.
            self.assertEqual(self.tool("check", source.parent).returncode, 0)

    def test_files_that_the_library_refuses_are_refused(self):
        tensor = {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}
        cases = {
            "empty": b"",
            "short": b"1234567",
            "length beyond the file": struct.pack("<Q", 100) + b"{}",
            "length beyond the limit": struct.pack("<Q", 2**63) + b"{}",
            "no object": raw_file(b"[]"),
            "broken JSON": raw_file(b'{"a":'),
            "broken UTF-8": raw_file(b'{"\xff":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'),
            "NUL behind the object": raw_file(b"{}\0"),
            "no dtype": raw_file({"a": {"shape": [2], "data_offsets": [0, 2]}}, b"ab"),
            "unknown dtype": raw_file({"a": {**tensor, "dtype": "U9"}}, b"ab"),
            "negative shape": raw_file({"a": {**tensor, "shape": [-2]}}, b"ab"),
            "fraction in shape": raw_file({"a": {**tensor, "shape": [2.0]}}, b"ab"),
            "size and shape differ": raw_file({"a": {**tensor, "shape": [3]}}, b"ab"),
            "shape overflows": raw_file({"a": {**tensor, "shape": [2**63, 4]}}, b"ab"),
            "shape overflows before a zero": raw_file({"a": {**tensor, "shape": [2**63, 2**63, 0],
                                                             "data_offsets": [0, 0]}}),
            "dimension beyond 64 bits": raw_file({"a": {**tensor, "shape": [2**64, 0], "data_offsets": [0, 0]}}),
            "metadata twice": raw_file(b'{"__metadata__":{"a":"b"},"__metadata__":{"a":"b"}}'),
            "empty tensor beyond the data": raw_file({"a": tensor, "b": {**tensor, "shape": [0],
                                                                         "data_offsets": [9, 9]}}, b"ab"),
            "lone surrogate": raw_file(b'{"\\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'),
            "half a byte": raw_file({"a": {"dtype": "F4", "shape": [3], "data_offsets": [0, 1]}}, b"a"),
            "offsets out of order": raw_file({"a": {**tensor, "data_offsets": [2, 0]}}, b"ab"),
            "three offsets": raw_file({"a": {**tensor, "data_offsets": [0, 1, 2]}}, b"ab"),
            "hole": raw_file({"a": tensor, "b": {**tensor, "data_offsets": [3, 5]}}, b"abcde"),
            "overlap": raw_file({"a": tensor, "b": {**tensor, "data_offsets": [1, 3]}}, b"abc"),
            "truncated": raw_file({"a": tensor}, b"a"),
            "trailing bytes": raw_file({"a": tensor}, b"abc"),
            "metadata not text": raw_file({"__metadata__": {"a": 1}}),
        }
        for case, contents in cases.items():
            with self.subTest(case):
                with self.assertRaises(Exception):
                    safetensors.deserialize(contents)
                path = self.folder / "bad.safetensors"
                path.write_bytes(contents)
                result = self.tool("check", path)
                self.assertEqual(result.returncode, 1)
                self.assertIn("INVALID_ARGUMENT", result.stderr)
                self.assertIn("bad.safetensors", result.stderr)

    def test_files_that_the_library_accepts_are_accepted(self):
        tensor = {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}
        cases = {
            "zero before what would overflow": raw_file({"a": {**tensor, "shape": [0, 2**63, 2**63],
                                                               "data_offsets": [0, 0]}}),
            "largest dimension, and zero": raw_file({"a": {**tensor, "shape": [2**64 - 1, 0], "data_offsets": [0, 0]}}),
            "empty tensors anywhere": raw_file({"a": tensor, "b": {**tensor, "shape": [0], "data_offsets": [0, 0]},
                                                "c": {**tensor, "shape": [0], "data_offsets": [2, 2]}}, b"ab"),
            "not in the order of the data": raw_file({"b": {**tensor, "data_offsets": [2, 4]}, "a": tensor}, b"abcd"),
            "data that is not aligned": raw_file({"a": {**tensor, "shape": [1], "data_offsets": [0, 1]},
                                                  "b": {"dtype": "F32", "shape": [1], "data_offsets": [1, 5]}}, b"abcde"),
            "blanks of every kind": raw_file(b'{ \n"a"\t:\r{"dtype":"U8","shape":[2],"data_offsets":[0,2]} }\t\r\n ', b"ab"),
            "NUL in a name": raw_file({"\0": tensor}, b"ab"),
            "a thousand dimensions": raw_file({"a": {**tensor, "shape": [1] * 1000 + [2]}}, b"ab"),
        }
        for case, contents in cases.items():
            with self.subTest(case):
                safetensors.deserialize(contents)
                path = self.folder / "good.safetensors"
                path.write_bytes(contents)
                result = self.tool("check", path)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual(tensors_of(self.rewrite(path)), tensors_of(path))

    def test_mistakes_that_the_library_lets_pass_are_refused(self):
        tensor = {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}
        cases = {
            "the same name twice": raw_file(b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},'
                                            b'"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'),
            "the same metadata twice": raw_file(b'{"__metadata__":{"a":"b","a":"c"}}'),
            "metadata that is null": raw_file({"__metadata__": None}),
            "an unknown field": raw_file({"a": {**tensor, "x": 1}}, b"ab"),
            "a tensor as a list": raw_file({"a": ["U8", [2], [0, 2]]}, b"ab"),
            "a blank before the header": raw_file(b" {}"),
        }
        for case, contents in cases.items():
            with self.subTest(case):
                safetensors.deserialize(contents)
                path = self.folder / "mistake.safetensors"
                path.write_bytes(contents)
                self.assertEqual(self.tool("check", path).returncode, 1)


if __name__ == "__main__":
    TOOL = sys.argv.pop(1)
    unittest.main()
