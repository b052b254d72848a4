"""Versions of a key: how many are kept, when the others are deleted, and what frees a full pool."""

import itertools

import numpy as np
import pytest

import cluster as clusters
import tensorcast as tc

IMAGE_BYTES = 16 << 20
STEPS = 50  # twelve times as many versions as fit into the pool beside its buffers


@pytest.fixture(scope="module")
def small():
    with clusters.Cluster(host_pool="216MiB") as cluster, tc.connect(cluster.address("a")) as store:
        yield store


def weights(step):
    return {"weights": np.full(IMAGE_BYTES, step, np.uint8)}


def is_step(store, artifact, step):
    with store.get(artifact, progress=False) as got:
        return np.array_equal(got["weights"].numpy(), weights(step)["weights"])


@pytest.mark.parametrize("keep", [None, 1, 3])
def test_training_loop_never_fills_the_pool(small, keep):
    key = f"policy/{keep}"
    ids = [small.put(weights(step), key, keep=keep, progress=False).artifact_id for step in range(STEPS)]
    kept = keep or 2
    now = small.resolve(key)
    assert (now.artifact_id, now.keep) == (ids[-1], kept)
    assert now.earlier == tuple(ids[-2 : -kept - 1 : -1])
    for back in range(kept):
        assert is_step(small, ids[-1 - back], STEPS - 1 - back)
    with pytest.raises(tc.NotFoundError):
        small.get(ids[0])
    assert len(small.ls()) <= 8, "manifests go with the last replica"
    small.rm(key)


def test_bind_gives_keep_too(small):
    first, second, third = (small.put(weights(100 + step), progress=False).artifact_id for step in range(3))
    small.bind("bound", first, keep=3)
    small.bind("bound", second)
    assert small.bind("bound", third).earlier == (second, first)
    assert small.bind("bound", third, keep=1).earlier == ()
    small.rm("bound")
    small.gc(older_than=0)


@pytest.mark.parametrize("keep", [0, -1, 1001, 2**40, "two", 1.5, True])
def test_bad_keep_is_refused(small, keep):
    with pytest.raises((tc.InvalidArgumentError, tc.InvalidTypeError), match="keep"):
        small.put({"x": np.zeros(4)}, "bad", keep=keep)
    with pytest.raises(tc.InvalidArgumentError, match="keep"):
        small.put({"x": np.zeros(4)}, keep=2)


def test_gc_deletes_what_no_key_names_or_keeps(small):
    small.gc(older_than=0)
    nameless = small.put(weights(200), progress=False).artifact_id
    kept = small.put(weights(201), "named", progress=False).artifact_id
    small.put(weights(202), "named", progress=False)
    assert len(small.gc(older_than=3600.0)) == 0
    assert [artifact.artifact_id for artifact in small.gc(older_than=0, dry_run=True)] == [nameless]
    assert [artifact.artifact_id for artifact in small.gc(older_than=0)] == [nameless]
    assert kept in [artifact.artifact_id for artifact in small.ls()]
    assert next(artifact for artifact in small.ls() if artifact.artifact_id == kept).kept_by == ("named",)
    small.rm("named")
    small.rm(kept)


def test_full_pool_error_says_what_frees_it(small):
    with pytest.raises(tc.ResourceExhaustedError, match="tensorcast gc --older-than 0s"):
        for step in itertools.count(210):
            small.put(weights(step), progress=False)
    small.gc(older_than=0)
    small.put(weights(250), "fits/again", progress=False)
    small.rm("fits/again")
