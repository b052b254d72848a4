"""Processes that share a store: forked ones have the parent's arrays, spawned ones make a connection of their own."""

import pickle
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from processes import HOLDER, run_python

import tensorcast as tc


def leases(store):
    return store.status().leases


def run_program(tmp_path, code, *arguments):
    """Runs a program from a file, which spawned processes import."""
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(code))
    done = subprocess.run([sys.executable, "-B", str(program), *arguments], capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_forked_child_keeps_the_memory_and_has_no_connection(store, cluster):
    store.put({"x": np.arange(10)}, key="core/forked")
    before = leases(store)
    child = """
    pid = os.fork()
    if pid == 0:
        try:
            store.get(sys.argv[2])
        except tc.ForkedError as error:
            assert "spawn" in str(error) and "connect again" not in str(error)
            try:
                tc.connect(sys.argv[1])
            except tc.ForkedError:
                assert sum(array) == 45
                del array
                weights.close()
                print("child", flush=True)
                sys.exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert sum(array) == 45 and store.get(sys.argv[2]).artifact_id == weights.artifact_id
    print("parent", flush=True)
    sys.stdin.readline()
    """
    with run_python(HOLDER, child, cluster.address("a"), "core/forked", pieces=2,
                    stdin=subprocess.PIPE) as holder:
        told = [holder.stdout.readline() for _ in range(3)]
        assert told == ["holds\n", "child\n", "parent\n"]
        deadline = time.monotonic() + 10
        while leases(store) > before + 1:  # the lease of the second get ends shortly after its weights are gone
            assert time.monotonic() < deadline
        assert leases(store) == before + 1, "the end of the child must not end the parent's lease"
        holder.stdin.write("\n")
        holder.stdin.flush()
        assert holder.wait(30) == 0


def test_a_forked_child_outlives_its_parent_with_its_pages(store, cluster):
    store.put({"x": np.arange(10)}, key="core/orphan")
    before = leases(store)
    child = """
    if os.fork() == 0:
        sys.stdin.readline()
        assert sum(array) == 45
        print("still", flush=True)
    os._exit(0)
    """
    with run_python(HOLDER, child, cluster.address("a"), "core/orphan", pieces=2,
                    stdin=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == "holds\n"
        assert holder.wait(30) == 0
        assert leases(store) == before + 1
        holder.stdin.write("\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == "still\n"
    deadline = time.monotonic() + 10
    while leases(store) > before:
        assert time.monotonic() < deadline


def test_children_of_an_unconnected_parent_connect(store, cluster, tmp_path):
    store.put({"x": np.arange(10)}, key="core/children")
    run_program(tmp_path, """
        import multiprocessing, sys
        import tensorcast as tc

        def total(address):
            with tc.connect(address) as store, store.get("core/children") as weights:
                return sum(memoryview(weights["x"]))

        if __name__ == "__main__":
            with multiprocessing.get_context("fork").Pool(2) as pool:
                assert pool.map(total, [sys.argv[1]] * 4) == [45] * 4
        """, cluster.address("a"))


def test_processes_share_by_key(store, cluster, tmp_path):
    store.put({"x": np.arange(10)}, key="core/spawned")
    run_program(tmp_path, """
        import multiprocessing, sys
        import tensorcast as tc

        def total(address):
            with tc.connect(address) as store, store.get("core/spawned") as weights:
                return sum(memoryview(weights["x"]))

        if __name__ == "__main__":
            tc.connect(sys.argv[1])
            for method in ("spawn", "forkserver"):
                with multiprocessing.get_context(method).Pool(2) as pool:
                    assert pool.map(total, [sys.argv[1]] * 4) == [45] * 4
        """, cluster.address("a"))


def test_stores_and_weights_are_handed_to_spawned_processes(store, cluster, tmp_path):
    store.put({"a[0]": np.arange(10), "b*": np.ones(3)}, key="core/handed")
    run_program(tmp_path, """
        import multiprocessing, sys
        import tensorcast as tc

        def total(given):
            store, weights = given
            assert store.resolve("core/handed").artifact_id == weights.artifact_id
            return sum(memoryview(weights["a[0]"])), list(weights)

        if __name__ == "__main__":
            with tc.connect(sys.argv[1]) as store:
                some, all_of_them = store.get("core/handed", tensors=["a[[]0]"]), store.get("core/handed")
                for method in ("spawn", "forkserver"):
                    with multiprocessing.get_context(method).Pool(1) as pool:
                        assert pool.map(total, [(store, some), (store, all_of_them)]) == [(45, ["a[0]"]), (45, ["a[0]", "b*"])]
        """, cluster.address("a"))


def test_unpickled_weights_have_a_lease_of_their_own(store):
    store.put({"x": np.arange(10)}, key="core/pickled")
    before = leases(store)
    weights = store.get("core/pickled")
    other = pickle.loads(pickle.dumps(weights))
    assert leases(store) == before + 2 and other.artifact_id == weights.artifact_id
    weights.close()
    assert other["x"].numpy().sum() == 45
    with pytest.raises(tc.ClosedError):
        pickle.dumps(weights)


# The DataLoader example of docs/python.md, with a Dataset that holds weights.
DATASET = """
    import sys
    import torch
    import tensorcast as tc

    class Rows(torch.utils.data.Dataset):
        def __init__(self, store, weights):
            self.store, self.weights = store, weights
        def __len__(self):
            return 8
        def __getitem__(self, index):
            return self.weights["x"].torch()[index]

    class Asking(Rows):
        def __getitem__(self, index):
            return self.store.get("core/loader")["x"].torch()[index].clone()

    def totals(dataset, method):
        loader = torch.utils.data.DataLoader(dataset, batch_size=2, num_workers=2, multiprocessing_context=method)
        return [batch.sum().item() for batch in loader]

    if __name__ == "__main__":
        store = tc.connect(sys.argv[1])
        weights = store.get("core/loader")
        expected = [rows.sum().item() for rows in weights["x"].torch().view(4, -1)]
    """


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_dataloader_workers_read_weights_of_their_parent(store, cluster, tmp_path, method):
    torch = pytest.importorskip("torch")
    store.put({"x": torch.arange(32.0).view(8, 4)}, key="core/loader")
    run_program(tmp_path, textwrap.dedent(DATASET) + "    assert totals(Rows(store, weights), sys.argv[2]) == expected\n",
                cluster.address("a"), method)


def test_spawned_dataloader_workers_call_the_store(store, cluster, tmp_path):
    torch = pytest.importorskip("torch")
    store.put({"x": torch.arange(32.0).view(8, 4)}, key="core/loader")
    ending = """
        try:
            totals(Asking(store, weights), "fork")
        except tc.ForkedError as error:
            assert "multiprocessing_context" in str(error)
            assert totals(Asking(store, weights), "spawn") == expected
            print("as the error says")
        """
    said = run_program(tmp_path, textwrap.dedent(DATASET) + textwrap.indent(textwrap.dedent(ending), "    "), cluster.address("a"))
    assert said == "as the error says\n"
