"""Keys without a global store: answers are marked as unconfirmed, and refused where the caller needs a confirmed one."""

import signal

import numpy as np
import pytest
from cluster import Cluster

import tensorcast as tc


@pytest.fixture(scope="module")
def orphaned():
    """A store after its global store was killed; key "m" has revision 2."""
    with Cluster() as cluster, tc.connect(cluster.address("a")) as store:
        for value in (1, 2):
            store.put({"x": np.full(10, value)}, key="m")
        assert not store.resolve("m", confirmed=True).unconfirmed
        with store.get("m", confirmed=True) as weights:
            assert not weights.key_unconfirmed
        cluster.processes["store"].send_signal(signal.SIGKILL)
        cluster.processes["store"].wait(30)
        yield store


def test_unconfirmed_answers_are_marked_and_not_older(orphaned):
    key = orphaned.resolve("m")
    assert (key.unconfirmed, key.revision) == (True, 2)
    with orphaned.get("m") as weights:
        assert weights.key_unconfirmed
        assert weights["x"].numpy()[0] == 2


def test_confirmed_reads_fail_and_say_what_to_do(orphaned):
    calls = (
        lambda: orphaned.resolve("m", confirmed=True),
        lambda: orphaned.get("m", confirmed=True),
        lambda: orphaned.get_at("m", ["cpu"], confirmed=True),
        lambda: orphaned.prefetch("m", confirmed=True),
    )
    for call in calls:
        with pytest.raises(tc.UnavailableError, match="resolve key m: .*start the global store.*unconfirmed revision 2"):
            call()


def test_actions_are_not_done_under_an_unconfirmed_name(orphaned):
    artifact_id = orphaned.resolve("m").artifact_id
    with pytest.raises(tc.UnavailableError, match="start the global store"):
        orphaned.pin("m")
    orphaned.pin(artifact_id)
    orphaned.unpin(artifact_id)
