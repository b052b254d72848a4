"""The administrative calls: their values, and how a notebook shows them."""

import dataclasses
import subprocess
import time

import numpy as np
import pytest
from cluster import BINARY

import tensorcast as tc


@pytest.fixture
def stored(store, request):
    marked = np.frombuffer(request.node.name.encode().ljust(1 << 18), np.uint8)  # different bytes in each test
    put = store.put({"x": marked}, key="admin/one")
    yield put.artifact_id
    try:
        store.rm(put.artifact_id, force=True)
    except tc.NotFoundError:
        pass


def test_status_is_a_plain_value(store, stored):
    status = store.status()
    assert status.name == "a" and status.global_store_reachable and status.replicas >= 1
    assert {pool.location for pool in status.pools} == {"cpu", "gpu:0"}
    assert status.recent[0].artifact_id == stored and status.recent[0].error == ""
    with pytest.raises(dataclasses.FrozenInstanceError):
        status.name = "other"
    assert "<table>" in status._repr_html_() and "admin" not in status._repr_html_()


def test_artifacts_and_replicas_are_listed(store, stored):
    listed = next(artifact for artifact in store.ls() if artifact.artifact_id == stored)
    assert (listed.keys, listed.tensor_count, listed.replicas, listed.files) == (("admin/one",), 1, 1, ())
    assert stored in store.ls()._repr_html_()
    assert listed.listed == ()
    with_replicas = next(artifact for artifact in store.ls(replicas=True) if artifact.artifact_id == stored)
    assert with_replicas.replicas == 1
    assert [(replica.location, replica.state) for replica in with_replicas.listed] == [("cpu", "ready")]
    (replica,) = store.replicas("admin/one")
    assert (replica.location, replica.state, replica.pinned) == ("cpu", "ready", False)


def test_a_replica_is_pinned_by_its_key(store, stored):
    store.pin("admin/one")
    assert store.replicas(stored)[0].pinned
    store.unpin(store.replicas(stored)[0].replica_id)
    assert not store.replicas(stored)[0].pinned
    with pytest.raises(tc.NotFoundError):
        store.pin("admin/nothing")


def test_rm_refuses_an_artifact_with_other_keys(store, stored):
    store.bind("admin/two", stored)
    with pytest.raises(tc.FailedPreconditionError, match="admin/two"):
        store.rm("admin/one")
    store.rm("admin/one", force=True)
    assert stored not in [artifact.artifact_id for artifact in store.ls()]
    with pytest.raises(tc.NotFoundError):
        store.rm("admin/one")


def test_replicate_makes_tasks_that_end_done(store, stored, cluster):
    (task,) = store.replicate("admin/one", ["b"])
    assert (task.node, task.location) == ("b", "cpu")
    deadline = time.monotonic() + 60
    while (state := store.replication_tasks("admin/one")[0].state) != "done":
        assert state != "failed" and time.monotonic() < deadline
    # The task is done before the global store has the daemon's report of the replica.
    while store.replicate("admin/one", ["b:cpu"])[0].state != "there":
        assert time.monotonic() < deadline
    with pytest.raises(tc.NotFoundError, match="nobody"):
        store.replicate("admin/one", ["nobody"])
    with pytest.raises(tc.InvalidArgumentError, match="no gpu:63"):
        store.replicate("admin/one", ["b:gpu:63"])


def test_an_unfinished_task_is_cancelled(store, stored, cluster):
    def node(verb):
        subprocess.run([BINARY, "node", verb, "b", "--daemon", cluster.address("a")], check=True, stdout=subprocess.DEVNULL)

    node("drain")  # so that the task waits
    try:
        store.replicate("admin/one", "b:gpu:0")
        with pytest.raises(tc.InvalidArgumentError):
            store.cancel_replication("admin/one", [])
        assert not store.cancel_replication("admin/one", "a")
        (cancelled,) = store.cancel_replication("admin/one")
        assert (cancelled.node, cancelled.location) == ("b", "gpu:0")
        assert not store.cancel_replication("admin/one", "b:gpu:0")
    finally:
        node("undrain")


def test_a_transfer_is_explained(store, stored, cluster):
    with tc.connect(cluster.address("b")) as other:
        weights = other.get("admin/one")
        explanation = other.explain(weights.transfer)
        weights.close()
        assert [hop.node for hop in explanation.hops] == ["b", "a"]
        transfer = explanation.hops[0].transfer
        assert transfer.bytes == 1 << 18 and transfer.verified_chunks >= 1
        assert {stage.stage for stage in transfer.stages} >= {"fetch"}
        assert all(transfer.queued <= stage.start <= stage.end <= transfer.end for stage in transfer.stages)
        shown = explanation._repr_html_()
        assert "<svg" in shown and "fetch from a" in shown
        assert other.explain("last") == explanation
        with pytest.raises(tc.NotFoundError):
            other.explain("no-such-transfer")
