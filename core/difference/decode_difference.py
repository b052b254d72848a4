#!/usr/bin/env python3
"""Decodes a difference as FORMAT.md describes it: a second reading of the format, which shares no code with the first.

usage: decode_difference.py FOLDER, where difference_interop_tool wrote target.manifest, difference.manifest,
difference.image, base.image and target.image.
"""

import ctypes
import pathlib
import struct
import sys

# From core/tensor/tensor.h; all others have one byte or less.
WIDTHS = {10: 2, 11: 2, 12: 2, 13: 2, 14: 4, 15: 4, 16: 4, 17: 4, 18: 8, 19: 8, 20: 8}
MODES = ("same", "sparse", "bitmap", "dense", "whole")

ZSTD = ctypes.CDLL("libzstd.so.1")
ZSTD.ZSTD_decompress.restype = ctypes.c_size_t
ZSTD.ZSTD_decompress.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)


class Reader:
    def __init__(self, data: bytes):
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        assert self.at + count <= len(self.data), "a field past the end"
        self.at += count
        return self.data[self.at - count:self.at]

    def get(self, layout: str):
        values = struct.unpack("<" + layout, self.take(struct.calcsize("<" + layout)))
        return values[0] if len(values) == 1 else values

    def text(self) -> str:
        return self.take(self.get("I")).decode()

    def stream(self) -> bytes:
        content_bytes, stored_bytes = self.get("II")
        stored = self.take(stored_bytes)
        if stored_bytes == content_bytes:
            return stored
        content = ctypes.create_string_buffer(content_bytes)
        assert ZSTD.ZSTD_decompress(content, content_bytes, stored, stored_bytes) == content_bytes, "a damaged frame"
        return content.raw


def read_manifest(data: bytes):
    """(kind, chunk_bytes, image_bytes, [(name, dtype, offset, nbytes)], metadata)"""
    reader = Reader(data)
    assert reader.take(4) == b"TCMF"
    _, _, kind, chunk_bytes, image_bytes, tensor_count, metadata_count = reader.get("HBBQQII")
    tensors = []
    for _ in range(tensor_count):
        name, dtype = reader.text(), reader.get("B")
        reader.take(8 * reader.get("I"))
        tensors.append((name, dtype, *reader.get("QQ")))
    metadata = {reader.text(): reader.text() for _ in range(metadata_count)}
    return kind, chunk_bytes, image_bytes, tensors, metadata


def elements_of(tensors, begin: int, end: int) -> list[tuple[int, int]]:
    """(offset in the chunk, width) of each element of image bytes [begin, end)."""
    filled = [tensor for tensor in tensors if tensor[3] > 0]
    ends = [tensor[2] for tensor in filled[1:]] + [end]
    found = []
    for (_, dtype, offset, _), stop in zip(filled, ends):
        width = WIDTHS.get(dtype, 1)
        found += [(at - begin, width) for at in range(max(offset, begin), min(stop, end), width)]
    return found


def positions_of(mode: str, positions: bytes, steps: bytes):
    if mode == "sparse":
        element = 0
        for gap in positions:
            element += gap
            if gap != 255:
                yield element
                element += 1
    elif mode == "bitmap":
        yield from (i for i in range(8 * len(positions)) if positions[i // 8] >> i % 8 & 1)
    else:
        yield from (i for i, step in enumerate(steps) if step)


def take_step(value: int, step: int, width: int) -> int:
    ones, sign = (1 << 8 * width) - 1, 1 << 8 * width - 1
    order = value ^ ones if value & sign else value | sign
    order = (order + (step // 2 if step % 2 == 0 else -(step + 1) // 2)) & ones
    return order ^ sign if order & sign else order ^ ones


def apply_record(mode: str, record: bytes, chunk: bytearray, elements: list[tuple[int, int]]) -> None:
    reader = Reader(record)
    changed = reader.get("I")
    positions, steps, values = reader.stream(), reader.stream(), Reader(reader.stream())
    assert reader.at == len(record), "bytes follow the last stream"
    places = list(positions_of(mode, positions, steps))
    assert len(places) == changed, "another number of elements"
    for place, step in zip(places, steps if mode != "dense" else [step for step in steps if step]):
        offset, width = elements[place]
        if step == 255:
            chunk[offset:offset + width] = values.take(width)
        else:
            before = int.from_bytes(chunk[offset:offset + width], "little")
            chunk[offset:offset + width] = take_step(before, step, width).to_bytes(width, "little")
    assert values.at == len(values.data), "values are left"


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    read = {path.name: path.read_bytes() for path in folder.iterdir()}
    _, chunk_bytes, image_bytes, tensors, _ = read_manifest(read["target.manifest"])
    kind, _, _, parts, metadata = read_manifest(read["difference.manifest"])
    assert kind == 2 and [part[0] for part in parts] == ["index", "records"] and set(metadata) == {"base", "target"}
    index, records = (Reader(read["difference.image"][offset:offset + nbytes]) for _, _, offset, nbytes in parts)
    assert (index.take(4), *index.get("HQQ")) == (b"TCDF", 1, image_bytes, chunk_bytes)
    seen = set()
    for begin in range(0, image_bytes, chunk_bytes):
        end = min(begin + chunk_bytes, image_bytes)
        mode, record_bytes = index.get("BI")
        seen.add(MODES[mode])
        if MODES[mode] == "whole":
            continue
        chunk = bytearray(read["base.image"][begin:end])
        if MODES[mode] != "same":
            apply_record(MODES[mode], records.take(record_bytes), chunk, elements_of(tensors, begin, end))
        assert chunk == read["target.image"][begin:end], f"the chunk at {begin} ({MODES[mode]}) differs"
    assert index.at == len(index.data) and records.at == len(records.data)
    assert seen == set(MODES), f"only {seen} were there"


if __name__ == "__main__":
    main()
