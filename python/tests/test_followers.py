"""Followers, with real daemons: kept at a key's newest version through restarts of the store and absences of a node."""

import json
import subprocess
import time

import numpy as np
import pytest
from cluster import BINARY, Cluster

import tensorcast as tc

SECONDS = 60


@pytest.fixture
def trio():
    with Cluster(host_pool="256MiB", nodes=("a", "b", "c")) as running:
        yield running


def put(store, number):
    return store.put({"w": np.full(1 << 18, number, np.uint8)}, key="policy")


def command(cluster, *arguments):
    done = subprocess.run([BINARY, *arguments, "--daemon", cluster.address("a")], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def revisions(cluster):
    """The revision that each follower has, by its node."""
    done = subprocess.run([BINARY, "follower", "ls", "--json", "--daemon", cluster.address("a")], capture_output=True, text=True, check=True)
    return {one["node_name"]: int(one.get("revision", 0)) for one in json.loads(done.stdout).get("followers", [])}


def await_revisions(cluster, **wanted):
    deadline = time.monotonic() + SECONDS
    while (found := revisions(cluster)) != wanted:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_followers_are_kept_at_the_newest_version(trio):
    with tc.connect(trio.address("a")) as store:
        code, text = command(trio, "replicate", "policy", "--follow", "--to", "b,c")
        assert code == 0 and "b:cpu" in text and "the key is not bound yet" in text
        first = put(store, 1)
        await_revisions(trio, b=1, c=1)
        with tc.connect(trio.address("c")) as other:
            assert [one.artifact_id for one in other.replicas()] == [first.artifact_id]

        # A node that is away while two versions come, and the store that is killed and comes back meanwhile.
        trio.kill("c")
        second = put(store, 2)
        trio.restart_store()
        third = put(store, 3)
        await_revisions(trio, b=3, c=0)
        trio.start_again("c")
        await_revisions(trio, b=3, c=3)
        with tc.connect(trio.address("c")) as other, other.get(third.artifact_id) as weights:
            assert weights.transfer is None, "it was there before"
            assert weights["w"].numpy()[0] == 3

        # A rollback is a new version.
        store.bind("policy", second.artifact_id)
        await_revisions(trio, b=4, c=4)
        code, text = command(trio, "follower", "ls")
        assert code == 0 and "at revision 4" in text

        code, text = command(trio, "follower", "rm", "policy", "--to", "c")
        assert code == 0 and "c:cpu no longer follows policy" in text
        put(store, 5)
        await_revisions(trio, b=5)
        code, text = command(trio, "follower", "rm", "policy")
        assert code == 0 and "b:cpu no longer follows policy" in text
        code, text = command(trio, "follower", "rm", "policy")
        assert code == 1 and "follows the key; `tensorcast follower ls` lists" in text


def test_every_registered_node_follows(trio):
    with tc.connect(trio.address("a")) as store:
        put(store, 1)
        code, text = command(trio, "replicate", "policy", "--follow", "--all")
        assert code == 0, text
        await_revisions(trio, a=1, b=1, c=1)
        put(store, 2)
        await_revisions(trio, a=2, b=2, c=2)


def test_places_that_cannot_follow_are_named(trio):
    with tc.connect(trio.address("a")) as store:
        code, text = command(trio, "replicate", "policy", "--follow", "--to", "b,absent")
        assert code == 1 and "1 of 2 places cannot follow the key" in text
        artifact = put(store, 1)
        code, text = command(trio, "replicate", artifact.artifact_id, "--follow", "--to", "b")
        assert code == 1 and "give a key" in text
