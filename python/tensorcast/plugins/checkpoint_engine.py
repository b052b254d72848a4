"""Sends weights of the store to an engine that has the protocol of checkpoint-engine.

    # in the engine, for each rank: worker.update_weights_from_ipc({uuid_of_its_gpu: handle})
    tensorcast.plugins.checkpoint_engine.send_weights("llama/step-1200", handle, device="cuda:0")

The engine's side is `update_weights_from_ipc` of the checkpoint-engine package
(https://github.com/MoonshotAI/checkpoint-engine), or its copy in vLLM and SGLang. It is a ZMQ REP socket. It receives a
buffer by CUDA IPC, then for each bucket the offsets of the tensors in the buffer. The buffer has two halves: while the
engine loads one half, the sender copies the next bucket into the other. Written against checkpoint-engine 0.4.2
(python/interfaces/checkpoint_engine.json). The sender sends pickles, as the protocol requires, and never reads a pickle.
"""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import zmq

import tensorcast
from tensorcast import default_store

_ALIGNMENT = 256

# A bucket: name, array and offset of each tensor.
_Bucket = list[tuple[str, tensorcast.Array, int]]


class EngineError(RuntimeError):
    """The engine could not load the weights. The message comes from the engine."""


def send_weights(
    key: str,
    zmq_handle: str,
    *,
    device: str = "cuda:0",
    bucket_bytes: int = 256 << 20,
    timeout_s: float = 600.0,
    store: tensorcast.Store | None = None,
) -> int:
    """Sends the weights of a key or artifact id to the engine at `zmq_handle` ("ipc://..."). Returns the bytes sent.

    device: where the engine's rank runs: "cuda:N" in this process's numbering, or "cpu" for an engine without GPUs.
    bucket_bytes: the size of a bucket. A larger tensor makes all buckets as large as itself.
    timeout_s: max seconds for each answer of the engine.

    Raises EngineError if the engine refuses the weights, and TimeoutError if it does not answer in time. Raises the errors
    of Store.get before it sends anything.
    """
    weights = (store or default_store.connect()).get(key, device="cpu", progress=False)
    arrays = list(weights.values())
    half = max([bucket_bytes, *(_aligned(array.nbytes) for array in arrays)])
    buffer, handle = _shared_buffer(2 * half, device)
    with _Engine(zmq_handle, timeout_s) as engine:
        engine.send(handle)
        for number, bucket in enumerate(_buckets(arrays, half)):
            base = number % 2 * half
            _fill(buffer, base, bucket)
            engine.await_reply()
            engine.send([_described(name, array, base + offset) for name, array, offset in bucket])
        engine.await_reply()
        engine.send(None)  # the engine releases the buffer
        engine.await_reply()
        engine.send(None)  # the engine starts to use the weights
        engine.await_reply()
    return sum(array.nbytes for array in arrays)


class _Engine:
    def __init__(self, zmq_handle: str, timeout_s: float) -> None:
        self._handle = zmq_handle
        self._timeout_s = timeout_s
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.REQ)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDTIMEO, int(timeout_s * 1000))
        self._socket.setsockopt(zmq.RCVTIMEO, int(timeout_s * 1000))
        self._socket.bind(zmq_handle)

    def __enter__(self) -> _Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, message: Any) -> None:
        self._within_time(lambda: self._socket.send(pickle.dumps(message)))

    def await_reply(self) -> None:
        reply = self._within_time(self._socket.recv)
        if reply:
            words = reply.decode(errors="replace").strip()
            self.send(RuntimeError("the sender stops: this engine failed to load the weights"))
            raise EngineError(words)

    def _within_time(self, step: Callable[[], Any]) -> Any:
        try:
            return step()
        except zmq.Again:
            raise TimeoutError(f"send weights: the engine at {self._handle} did not answer within {self._timeout_s} s; "
                               "check the engine, or raise timeout_s") from None


def _buckets(arrays: Sequence[tensorcast.Array], half: int) -> Iterator[_Bucket]:
    bucket: _Bucket = []
    end = 0
    for array in arrays:
        if bucket and end + array.nbytes > half:
            yield bucket
            bucket, end = [], 0
        bucket.append((array.name, array, end))
        end = _aligned(end + array.nbytes)
    if bucket:
        yield bucket


def _fill(buffer: torch.Tensor, base: int, bucket: _Bucket) -> None:
    for _, array, offset in bucket:
        if array.nbytes:
            source = torch.frombuffer(array.private_raw(), dtype=torch.uint8)
            buffer[base + offset : base + offset + array.nbytes].copy_(source)
    if buffer.is_cuda:
        torch.cuda.synchronize(buffer.device)


def _described(name: str, array: tensorcast.Array, offset: int) -> dict[str, Any]:
    return {"name": name, "shape": torch.Size(array.shape), "dtype": array.torch().dtype, "offset": offset}


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _shared_buffer(size: int, device: str) -> tuple[torch.Tensor, Any]:
    """Returns a buffer, and its handle: a function and the arguments with which another process of this host opens it."""
    if device != "cpu":
        from torch.multiprocessing.reductions import reduce_tensor

        buffer = torch.empty(size, dtype=torch.uint8, device=device)
        return buffer, reduce_tensor(buffer)
    descriptor = os.memfd_create("tensorcast-checkpoint-engine", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, size)
    mapping = mmap.mmap(descriptor, size)
    buffer = torch.frombuffer(mapping, dtype=torch.uint8)
    buffer.descriptor = os.fdopen(descriptor, "rb")  # stays open as long as the buffer
    # The engine replaces the seventh argument by its device's number, because CUDA IPC has the number there.
    return buffer, (open_host_buffer, (f"/proc/{os.getpid()}/fd/{descriptor}", size, None, None, None, None, None))


def open_host_buffer(path: str, size: int, *_: Any) -> torch.Tensor:
    """Opens the sender's buffer, in an engine without GPUs."""
    with open(path, "r+b") as file:
        return torch.frombuffer(mmap.mmap(file.fileno(), size), dtype=torch.uint8)
