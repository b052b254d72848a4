"""The core of the package: get, put, keys, watches, and their ends."""

import array
import asyncio
import ctypes
import gc
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import tensorcast as tc
from processes import HOLDER, run_python
from tensorcast import arrays

NUMPY_DTYPES = [arrays.numpy_dtype(name) for name in {**arrays._NUMPY, **arrays._ML_DTYPES}]


def leases(store):
    return store.status().leases


def test_a_file_is_put_and_got_as_it_is(store, tmp_path):
    tensors = {"a": np.arange(7, dtype=np.int32), "b": np.ones((2, 3), np.float16)}
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "np"})
    put = store.put(tmp_path / "model.safetensors", key="core/file")
    assert not put.existed and put.key_revision == 1
    with store.get("core/file") as weights:
        assert set(weights) == {"a", "b"} and len(weights) == 2 and weights.metadata == {"format": "np"}
        assert weights.artifact_id == put.artifact_id and weights.key_revision == 1 and not weights.lost
        for name, array in weights.numpy().items():
            np.testing.assert_array_equal(array, tensors[name])
    with store.get(put.artifact_id) as weights:
        assert weights.key_revision == 0


@pytest.mark.parametrize("uri", ["s3://bucket/model", "hf://org/name", "https://host/model.safetensors"])
def test_put_of_an_unlisted_uri_names_daemon_origins(store, uri):
    with pytest.raises(tc.PermissionDeniedError, match=rf"{uri}: .*daemon\.origins"):
        store.put(uri)


@pytest.mark.parametrize("dtype", NUMPY_DTYPES, ids=str)
def test_every_dtype_of_numpy_comes_back(store, dtype):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    store.put({"x": array, "scalar": array[0, 0, 1], "empty": array[:0]}, key="core/dtype")
    with store.get("core/dtype") as weights:
        for name, expected in {"x": array, "scalar": array[0, 0, 1], "empty": array[:0]}.items():
            got = weights[name].numpy()
            assert got.dtype == dtype and got.shape == expected.shape
            assert got.tobytes() == expected.tobytes()
        assert np.asarray(weights["x"]).dtype == dtype


def test_what_fills_no_bytes_is_shown_raw(store):
    store.put({"x": np.frombuffer(b"\x12\x34", np.uint8)}, key="core/raw")
    with store.get("core/raw") as weights:
        assert bytes(weights["x"].raw) == b"\x12\x34" and len(weights["x"].raw) == 2
    with pytest.raises(TypeError, match="F4"):
        arrays.numpy_dtype("F4")


def test_arrays_are_seen_by_every_protocol_without_a_copy(store):
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    store.put({"x": x}, key="core/protocols")
    with store.get("core/protocols") as weights:
        tensor = weights["x"]
        seen = [tensor.numpy(), np.asarray(tensor), np.from_dlpack(tensor), np.asarray(memoryview(tensor))]
        for array in seen:
            np.testing.assert_array_equal(array, x)
            assert not array.flags.writeable
            assert array.__array_interface__["data"][0] == seen[0].__array_interface__["data"][0]
        np.testing.assert_array_equal(weights.slice("x", np.s_[1:, ::2]), x[1:, ::2])
        assert weights.slice("x", 0).base is not None
        with pytest.raises(BufferError):
            memoryview(store.get(store.put({"b": x.astype(ml_dtypes.bfloat16)}).artifact_id)["b"])


def test_whatever_has_a_buffer_can_be_put(store):
    tensors = {"ctypes": (ctypes.c_int32 * 2 * 3)(), "array": array.array("d", [1, 2]), "bytes": b"abc", "view": memoryview(b"abcdef")[2:4]}
    tensors["ctypes"][2][1] = 7
    store.put(tensors, key="core/buffers")
    with store.get("core/buffers") as weights:
        assert weights["ctypes"].numpy().tolist() == [[0, 0], [0, 0], [0, 7]]
        assert weights["array"].numpy().tolist() == [1, 2]
        assert bytes(weights["bytes"]) == b"abc" and bytes(weights["view"]) == b"cd"


class Released:
    def __dlpack__(self, **_):
        return None

    def __dlpack_device__(self):
        return 1, 0


@pytest.mark.parametrize("wrong", [[1, 2], memoryview(b"abcdef")[::2], ctypes.pointer(ctypes.c_int(1)), Released(),
                                   np.array(["text"]), np.ones(1, ">i4"), np.ones(1, "i4,i4"), np.ones(1, np.longdouble)], ids=repr)
def test_a_put_of_something_not_an_array_is_refused_by_name(store, wrong):
    with pytest.raises(tc.InvalidArgumentError, match='tensor "x"'):
        store.put({"x": wrong})


def test_jax_takes_them_without_a_copy(store):
    jax = pytest.importorskip("jax")
    tensors = {"f": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, ml_dtypes.bfloat16)}
    store.put(tensors, key="core/jax")
    with store.get("core/jax") as weights:
        got = weights.jax()
        assert got["b"].dtype == jax.numpy.bfloat16
        np.testing.assert_array_equal(np.asarray(got["f"]), tensors["f"])
        assert got["f"].unsafe_buffer_pointer() == weights["f"].numpy().__array_interface__["data"][0]
    store.put(got, key="core/jax2")
    with store.get("core/jax2") as weights:
        np.testing.assert_array_equal(weights["f"].numpy(), tensors["f"])
        assert weights["b"].dtype == "BF16"


def test_a_write_by_torch_stays_private(store):
    torch = pytest.importorskip("torch")
    store.put({"x": torch.arange(4, dtype=torch.bfloat16), "t": torch.ones(2, 3).t()}, key="core/torch")
    with store.get("core/torch") as mine, store.get("core/torch") as other:
        tensor = mine.torch()["x"]
        assert tensor.dtype == torch.bfloat16
        tensor.fill_(9)
        assert mine["x"].torch().tolist() == [9, 9, 9, 9], "of the same get"
        assert other["x"].torch().tolist() == [0, 1, 2, 3]
        assert other.torch()["t"].shape == (3, 2)
    with store.get("core/torch") as again:
        assert again["x"].torch().tolist() == [0, 1, 2, 3]


def test_an_array_keeps_the_lease_and_nothing_else_does(store):
    store.put({"x": np.arange(5)}, key="core/lease")
    before = leases(store)
    with store.get("core/lease") as weights:
        kept = weights["x"].numpy()[1:3]
        assert leases(store) == before + 1
    with pytest.raises(tc.ClosedError):
        weights["x"]
    del weights
    assert leases(store) == before + 1 and kept.tolist() == [1, 2]
    del kept
    gc.collect()
    deadline = time.monotonic() + 10
    while leases(store) > before:
        assert time.monotonic() < deadline


def test_get_of_some_tensors_gives_only_these(store):
    store.put({"a.0": np.ones(3), "a.1": np.zeros(3), "b": np.ones(1)}, key="core/part")
    with store.get("core/part", tensors=["a.*"]) as weights:
        assert set(weights) == {"a.0", "a.1"}
        with pytest.raises(tc.NotFoundError, match="that the get chose"):
            weights["b"]
    with pytest.raises(tc.InvalidArgumentError):
        store.get("core/part", tensors=["c*"])


@pytest.mark.parametrize("call, what", [
    (lambda store: store.put({1: np.ones(1)}), "must be a str, not 1"),
    (lambda store: store.put({"__metadata__": np.ones(1)}), "__metadata__"),
    (lambda store: store.put({"x": np.ones(1)}, metadata={"step": 1}), "not 'step' to 1"),
    (lambda store: store.put({"x": np.ones(1, complex), "y": np.array(["text"])}), "no name for the dtype"),
    (lambda store: store.put({"x": np.ones(1)}, timeout=-1), "timeout must be .* not -1"),
    (lambda store: store.get("core/none", timeout=float("nan")), "timeout must be .* not nan"),
    (lambda store: store.get("core/none", tensors=[]), "tensors is empty"),
    (lambda store: store.get("core/\ud800"), "UTF-8"),
    (lambda store: store.put(""), "source is an empty path"),
    (lambda store: store.put({}, key="core/none", expected_revision=-1), "expected_revision must be .* is -1"),
    (lambda store: store.put({"\ud800": np.ones(1)}), "the name of a tensor cannot be written in UTF-8"),
    (lambda store: store.find_imported(""), "path is an empty path"),
    (lambda store: store.replicas("a" * 100_000 + "\ud800"), r"'a+\.\.\. \(str\)"),
])
def test_an_invalid_argument_is_refused_with_its_value(store, call, what):
    with pytest.raises(tc.InvalidArgumentError, match=what):
        call(store)


@pytest.mark.parametrize("wrong", [None, 3, b"k", [3], float("nan"), object(), np.arange(3)], ids=lambda wrong: type(wrong).__name__)
@pytest.mark.parametrize("call, what", [
    (lambda store, wrong: store.get(wrong), "artifact must be a str"),
    (lambda store, wrong: store.get("core/none", device=wrong), "device must be a str"),
    (lambda store, wrong: store.get("core/none", lane=wrong), "lane must be a str"),
    (lambda store, wrong: store.get("core/none", tensors=[wrong]), "each of tensors must be a str"),
    (lambda store, wrong: store.get_at("core/none", [wrong]), "each of devices must be a str"),
    (lambda store, wrong: store.prefetch(wrong), "artifact must be a str"),
    (lambda store, wrong: store.put({"x": np.ones(1)}, key=wrong or 1), "key must be a str"),
    (lambda store, wrong: store.put({"x": np.ones(1)}, metadata={"x": wrong}), "metadata must map str to str"),
    (lambda store, wrong: store.put({"x": np.ones(1)}, device=wrong), "device must be a str"),
    (lambda store, wrong: store.resolve(wrong), "key must be a str"),
    (lambda store, wrong: store.bind("core/none", wrong), "artifact_id must be a str"),
    (lambda store, wrong: store.unbind(wrong), "key must be a str"),
    (lambda store, wrong: store.keys(wrong), "prefix must be a str"),
    (lambda store, wrong: store.watch(wrong), "prefix must be a str"),
    (lambda store, wrong: store.rm(wrong), "artifact must be a str"),
    (lambda store, wrong: store.evict(wrong), "replica_id must be a str"),
    (lambda store, wrong: store.pin(wrong), "artifact must be a str"),
    (lambda store, wrong: store.replicas(wrong), "artifact must be a str"),
    (lambda store, wrong: store.replicate("core/none", [wrong]), "each of to must be a str"),
    (lambda store, wrong: tc.connect(store.daemon, ca=wrong), "ca must be a str"),
])
def test_an_argument_of_the_wrong_type_is_named(store, call, what, wrong):
    if isinstance(wrong, np.ndarray) and "key must" in what:
        wrong = 3  # arrays have no truth value
    with pytest.raises(tc.InvalidTypeError, match=what) as raised:
        call(store, wrong)
    assert isinstance(raised.value, TypeError) and len(str(raised.value)) < 200


@pytest.mark.parametrize("call, what", [
    (lambda store: store.get("core/none", timeout="5"), "timeout must be a number of seconds, not '5'"),
    (lambda store: tc.connect(store.daemon, timeout=None), "timeout must be a number"),
    (lambda store: store.put([np.ones(1)]), "source must be a path, or a mapping"),
    (lambda store: store.put({"x": np.ones(1)}, metadata=["x"]), "metadata must be a mapping"),
    (lambda store: store.put({"x": np.ones(1)}, key="core/none", expected_revision="1"), "expected_revision must be an int"),
    (lambda store: store.get("core/none", tensors=b"x"), "tensors must be a list of str"),
    (lambda store: store.replicate("core/none", None), "to must be a list of str"),
    (lambda store: store.find_imported(None), "path must be a path"),
    (lambda store: store.explain(3), "transfer must be a str"),
    (lambda store: tc.connect(3), "daemon must be a str"),
])
def test_a_value_of_the_wrong_type_is_named(store, call, what):
    with pytest.raises(tc.InvalidTypeError, match=what):
        call(store)


def test_one_name_is_a_list_of_one(store):
    store.put({"layers.0": np.ones(1), "x": np.ones(1)}, key="core/one")
    with store.get("core/one", tensors="layers.*") as weights:
        assert list(weights) == ["layers.0"]


def test_an_error_names_its_subject_once(store):
    with pytest.raises(tc.DeadlineExceededError) as raised:
        store.get("core/once", timeout=0)
    assert str(raised.value).startswith("get core/once: ") and str(raised.value).count("core/once") == 1


def test_get_at_gives_weights_on_each_device(store):
    store.put({"x": np.arange(3)}, key="core/places")
    with store.get_at("core/places", ["cpu"])["cpu"] as weights:
        assert weights["x"].numpy().tolist() == [0, 1, 2] and weights.key_revision == 1
    assert list(asyncio.run(store.get_at_async("core/places", "cpu", tensors=["x"]))) == ["cpu"]
    with pytest.raises(tc.InvalidArgumentError, match="attic"):
        store.get_at("core/places", ["attic"])
    with pytest.raises(tc.InvalidArgumentError):
        store.get_at("core/places", [])
    with pytest.raises(tc.Error):
        store.get_at("core/places", "gpu:all")  # other processes cannot open the memory of fake GPUs


def test_pins_are_set_and_removed(store):
    def pinned(artifact_id):
        return [replica.pinned for replica in store.replicas() if replica.artifact_id == artifact_id]

    put = store.put({"x": np.arange(6)}, key="core/pinned", pin=True)
    assert pinned(put.artifact_id) == [True]
    store.unpin("core/pinned")
    with store.get("core/pinned"):
        assert pinned(put.artifact_id) == [False]
    with store.get("core/pinned", pin=True):
        assert pinned(put.artifact_id) == [True]
    assert pinned(put.artifact_id) == [True]
    store.unpin("core/pinned")


def private_dirty_kib(address):
    """The private dirty KiB of the mapping that contains the address."""
    inside = False
    with open("/proc/self/smaps") as smaps:
        for line in smaps:
            words = line.split()
            if "-" in words[0] and not words[0].endswith(":"):
                begin, end = (int(word, 16) for word in words[0].split("-"))
                inside = begin <= address < end
            elif inside and words[0] == "Private_Dirty:":
                return int(words[1])
    raise AssertionError("nothing is mapped there")


def test_a_slice_takes_no_memory_and_a_write_takes_its_pages(store):
    torch = pytest.importorskip("torch")
    store.put({"x": np.ones((256, 4096), np.float32)}, key="core/pages")
    with store.get("core/pages") as weights:
        shown = weights.slice("x", np.s_[64:128])
        address = shown.__array_interface__["data"][0]
        assert shown.sum() == 64 * 4096 and private_dirty_kib(address) == 0
        weights["x"].torch()[64:66].fill_(2)
        assert private_dirty_kib(address) == 2 * 4096 * 4 // 1024
        assert torch.equal(weights["x"].torch()[66], torch.ones(4096))


def free_huge_pages():
    counts = {}
    for name in ("free", "resv"):
        counts[name] = int(pathlib.Path(f"/sys/kernel/mm/hugepages/hugepages-2048kB/{name}_hugepages").read_text())
    return counts["free"] - counts["resv"]


def test_a_write_without_a_free_huge_page_goes_to_a_copy():
    from cluster import Cluster

    torch = pytest.importorskip("torch")
    pool_pages = 100  # per daemon; there are two
    spare = free_huge_pages() - 2 * pool_pages
    if spare < 0:
        pytest.skip(f"this host does not have {2 * pool_pages} free huge pages (vm.nr_hugepages)")
    bytes_of_all = (spare + 1) << 21  # one page more than is free
    if bytes_of_all > 64 << 20:
        pytest.skip("this host has more free huge pages than a model in that pool can use")
    with Cluster(host_pool=f"{pool_pages * 2}MiB") as own, tc.connect(own.address("a")) as store:
        store.put({"x": np.ones(bytes_of_all, np.uint8)}, key="huge/all")
        with store.get("huge/all") as weights:
            assert not weights.writable and weights["x"].numpy()[-1] == 1
            with pytest.warns(RuntimeWarning, match="nr_hugepages"):
                tensor = weights.torch()["x"]
            tensor.fill_(9)
            assert weights["x"].torch()[0] == 9 and torch.utils.dlpack.from_dlpack(weights["x"].__dlpack__())[-1] == 9
            with pytest.raises(BufferError, match="copy"):
                weights["x"].__dlpack__(copy=False)
        if spare > 0:
            store.put({"x": np.ones(spare << 21, np.uint8)}, key="huge/part")
            with store.get("huge/part") as weights:
                assert weights.writable
                weights["x"].torch().fill_(9)
        assert store.get("huge/all")["x"].numpy().min() == 1


def test_get_transfers_from_another_node(store, cluster):
    x = np.random.default_rng(1).integers(0, 255, 1 << 20, dtype=np.uint8)
    store.put({"x": x}, key="core/other")
    with tc.connect(cluster.address("b")) as b, b.get("core/other") as weights:
        assert weights.transfer["bytes"] == 1 << 20
        np.testing.assert_array_equal(weights["x"].numpy(), x)


def test_ten_thousand_tensors(store):
    tensors = {f"layers.{i}": np.full(3, i, np.int32) for i in range(10_000)}
    store.put(tensors, key="core/many")
    with store.get("core/many") as weights:
        assert len(weights) == 10_000
        for name, array in weights.numpy().items():
            assert array.tolist() == tensors[name].tolist()


def test_a_crowd_of_threads_shares_a_store(store):
    store.put({"x": np.arange(100)}, key="core/crowd")
    failures = []

    def work():
        try:
            for _ in range(5):
                with store.get("core/crowd") as weights:
                    assert weights["x"].numpy()[99] == 99
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_errors_are_builtin_kinds_with_the_daemons_text(store):
    with pytest.raises(KeyError, match="core/nothing") as raised:
        store.get("core/nothing")
    assert isinstance(raised.value, tc.NotFoundError) and raised.value.code == "NOT_FOUND"
    with pytest.raises(TimeoutError):
        store.get("core/nothing", timeout=0.0)
    with pytest.raises(ValueError, match='"x"'):
        store.put({"x": np.array(["text"])})
    with pytest.raises(tc.InvalidArgumentError, match='"x"'):
        store.put({"x": object()})
    with pytest.raises(tc.InvalidArgumentError):
        store.get("core/nothing", device="attic")
    with pytest.raises(ConnectionError, match="nobody.sock"):
        tc.connect("unix:/nowhere/nobody.sock", timeout=0.2)
    store.put({"x": np.ones(1)}, key="core/cas")
    with pytest.raises(tc.FailedPreconditionError, match="revision 1"):
        store.put({"x": np.zeros(1)}, key="core/cas", expected_revision=0)
    own = tc.connect(store.daemon)
    own.close()
    with pytest.raises(tc.ClosedError):
        own.get("core/cas")


def test_keys_are_bound_listed_and_watched(store):
    put = store.put({"x": np.arange(3)}, key="core/keys/a")
    store.bind("core/keys/b", put.artifact_id)
    assert [key.name for key in store.keys("core/keys/")] == ["core/keys/a", "core/keys/b"]
    assert store.resolve("core/keys/b").artifact_id == put.artifact_id
    with store.watch("core/keys/") as watch:
        assert {next(watch).name, next(watch).name} == {"core/keys/a", "core/keys/b"}
        store.unbind("core/keys/b")
        change = next(watch)
        assert change.name == "core/keys/b" and change.deleted
    assert list(watch) == []
    with pytest.raises(tc.DeadlineExceededError):
        for _ in store.watch("core/keys/none", timeout=0.1):
            pass


def test_a_cancelled_task_cancels_its_call(store):
    async def work():
        watch = store.watch("core/cancelled/")
        waiting = asyncio.ensure_future(watch.__anext__())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(tc.CancelledError):
            watch._call.wait(10)
            watch._call.result()

    asyncio.run(work())


CALLS = {
    "get": lambda store: store.get("core/silent"),
    "put": lambda store: store.put({"x": np.zeros(3)}),
    "watch": lambda store: list(store.watch("core/silent/")),
    "replicate": lambda store: store.replicate("tc2:" + "a" * 52, ["a"]),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_ctrl_c_ends_an_unanswered_call(silent, call):
    main = threading.main_thread().ident
    threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        call(silent)


@pytest.mark.parametrize("call", [lambda store: store.get_async("core/silent"),
                                  lambda store: store.put_async({"x": np.zeros(3)}),
                                  lambda store: store.watch("core/silent/").__anext__()],
                         ids=["get", "put", "watch"])
def test_a_cancelled_task_ends_an_unanswered_call(silent, call):
    async def work():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(call(silent), 0.2)

    asyncio.run(work())


def test_ctrl_c_ends_a_wait(store):
    store.watch("core/none/").close()
    watch = store.watch("core/none/")
    main = threading.main_thread().ident
    threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        next(watch)
    watch.close()


def test_other_threads_run_while_one_waits(store):
    counted = 0
    watch = store.watch("core/none/")
    waiting = threading.Thread(target=lambda: list(watch))
    waiting.start()
    for _ in range(100_000):
        counted += 1
    watch.close()
    waiting.join(10)
    assert not waiting.is_alive() and counted == 100_000


def test_a_lost_daemon_leaves_arrays_readable():
    from cluster import Cluster

    with Cluster(host_pool="256MiB") as own:
        store = tc.connect(own.address("a"))
        store.put({"x": np.arange(1000)}, key="core/lost")
        weights = store.get("core/lost")
        shown = weights["x"].numpy()
        process = own.processes["a"]
        process.kill()
        process.wait()
        deadline = time.monotonic() + 10
        while not weights.lost:
            assert time.monotonic() < deadline
        assert shown.sum() == 999 * 500
        with pytest.raises(tc.UnavailableError, match="the daemon that held the lease ended"):
            weights.check()
        with pytest.raises((tc.UnavailableError, tc.DeadlineExceededError)):
            store.get("core/lost", timeout=1)


def test_a_killed_process_gives_its_lease_back(store, cluster):
    store.put({"x": np.arange(10)}, key="core/killed")
    before = leases(store)
    with run_python(HOLDER, "time.sleep(600)", cluster.address("a"), "core/killed", pieces=2) as holder:
        assert holder.stdout.readline() == "holds\n"
        assert leases(store) == before + 1
        holder.kill()
    deadline = time.monotonic() + 10
    while leases(store) > before:
        assert time.monotonic() < deadline


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "os._exit(3)"])
def test_an_interpreter_exits_without_waiting_for_calls(store, cluster, end):
    store.put({"x": np.arange(10)}, key="core/exits")
    before = leases(store)
    waiting = """
    import threading
    threading.Thread(target=lambda: list(store.watch("core/")), daemon=True).start()
    watch = store.watch("core/")
    """
    with run_python(HOLDER, waiting, end, cluster.address("a"), "core/exits", pieces=3) as holder:
        assert holder.wait(30) == (3 if end else 0)
    deadline = time.monotonic() + 10
    while leases(store) > before:
        assert time.monotonic() < deadline


@pytest.mark.parametrize("others", [("grpc", "opentelemetry.trace", "torch"), ("torch", "grpc")])
@pytest.mark.parametrize("first", [True, False])
def test_import_works_beside_other_libraries_in_any_order(cluster, others, first):
    for name in others:
        pytest.importorskip(name)
    modules = ["tensorcast", *others] if first else [*others, "tensorcast"]
    code = "".join(f"import {name}\n" for name in modules)
    code += "import sys, tensorcast as tc\nassert tc.connect(sys.argv[1]).keys('none') == []\n"
    code += "import ssl, hashlib; ssl.create_default_context(); hashlib.sha256(b'x')\n"
    code += "import grpc; channel = grpc.insecure_channel(sys.argv[1])\n"
    code += "grpc.channel_ready_future(channel).result(30); channel.close()\n"
    subprocess.run([sys.executable, "-B", "-c", code, cluster.address("a")], check=True, timeout=120)


@pytest.mark.parametrize("kind", ["isolated", "legacy"])
def test_a_subinterpreter_is_refused(kind):
    code = """
    import sys
    try:
        import _interpreters as interpreters
    except ImportError:
        import _xxsubinterpreters as interpreters
    import tensorcast
    kind = sys.argv[1]
    if hasattr(interpreters, "new_config"):
        interpreter = interpreters.create(kind)
    else:
        interpreter = interpreters.create(isolated=kind == "isolated")
    try:
        print(interpreters.run_string(interpreter, "import tensorcast"))  # since 3.13 it returns the exception
    except Exception as error:
        print(error)
    """
    with run_python(code, kind, stderr=subprocess.PIPE) as program:
        told = program.stdout.read()
        assert program.wait(60) == 0, program.stderr.read()
        assert "subinterpreter" in told, told


def test_the_type_annotations_hold(tmp_path):
    pytest.importorskip("mypy")
    package = pathlib.Path(tc.__file__).parent
    if not (package / "_native.pyi").exists():
        pytest.skip("the build made the stubs for another interpreter")
    sample = tmp_path / "sample.py"
    sample.write_text(textwrap.dedent("""
        import tensorcast as tc

        def load(key: str) -> dict[str, int]:
            with tc.connect() as store, store.get(key, timeout=3.0) as weights:
                return {name: tensor.nbytes for name, tensor in weights.items()}

        def follow(store: tc.Store) -> str:
            for change in store.watch("llama/"):
                return change.artifact_id
            return ""
        """))
    settings = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "pyproject.toml")
    files = [path.relative_to(package.parent).with_suffix("") for path in package.rglob("*.py")]
    modules = ["sample", *(".".join(path.parts).removesuffix(".__init__") for path in files)]
    checked = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--config-file", settings,
                              "--follow-imports=silent", f"--cache-dir={tmp_path}/cache",
                              *(word for module in modules for word in ("-m", module))],
                             env={**os.environ, "MYPYPATH": f"{package.parent}:{tmp_path}"},
                             capture_output=True, text=True, timeout=300)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_buffer_at_a_null_pointer_is_refused_by_name(store):
    nothing = (ctypes.c_uint8 * 8).from_address(0)
    with pytest.raises(tc.InvalidArgumentError, match='tensor "mine": .*address is null'):
        store.put({"mine": nothing}, key="core/none")
