"""Live weights: the tensors of several processes become the next version in their place, when all of them commit."""

import asyncio
import concurrent.futures
import contextlib
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from test_changes import after, equal, first

import tensorcast as tc

PROCESS = pathlib.Path(__file__).with_name("live_process.py")


def state_of(seed):
    return {"large": first(seed)["large"].view(np.uint16).copy(), "small": np.arange(seed, seed + 999, dtype=np.uint16)}


def next_of(state, seed):
    made = {name: array.copy() for name, array in state.items()}
    random = np.random.default_rng(seed)
    made["large"][random.random(made["large"].shape) < 0.014] += 1
    return made


def total(state):
    return sum(int(array.astype("u8").sum()) for array in state.values())


class Holder:
    """A process with live weights of a key."""

    def __init__(self, daemon, key):
        self.process = subprocess.Popen([sys.executable, "-B", str(PROCESS), daemon, key], text=True, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)
        assert self.answer() == "holds"

    def tell(self, *what):
        self.process.stdin.write(" ".join(map(str, what)) + "\n")
        self.process.stdin.flush()

    def answer(self):
        return self.process.stdout.readline().strip()

    def shows(self):
        self.tell("show")
        artifact_id, sums, address = self.answer().split()
        return artifact_id, int(sums), address

    def commits(self, artifact_id, seconds=60):
        self.tell("commit", artifact_id, seconds)
        return self.answer()


@pytest.fixture
def holders(cluster):
    """Starts a process with live weights of a key on node "b"."""
    with contextlib.ExitStack() as ends:
        def start(key):
            holder = Holder(cluster.address("b"), key)
            ends.callback(holder.process.wait, 30)
            ends.callback(holder.process.stdin.close)
            return holder

        yield start


def test_two_processes_that_commit_show_version_in_place(store, other, key, holders):
    states = [state_of(1)]
    puts = [store.put(states[0], key=key, base="auto")]
    ranks = [holders(key), holders(key)]
    before = [rank.shows() for rank in ranks]
    assert [shown[:2] for shown in before] == [(puts[0].artifact_id, total(states[0]))] * 2
    for seed in (2, 3):  # the second time the replica is one that was committed to
        states.append(next_of(states[-1], seed))
        puts.append(store.put(states[-1], key=key, base="auto"))
        for rank in ranks:
            rank.tell("commit", puts[-1].artifact_id, 60)
        assert [rank.answer().split()[0] for rank in ranks] == ["committed"] * 2
        shown = [rank.shows() for rank in ranks]
        assert [one[:2] for one in shown] == [(puts[-1].artifact_id, total(states[-1]))] * 2
        assert [one[2] for one in shown] == [one[2] for one in before], "tensors have other addresses"
    with other.get(puts[-1].artifact_id) as weights:
        assert equal(weights.numpy(), states[-1])
    kept = {replica.artifact_id for replica in other.replicas()}
    assert puts[-1].artifact_id in kept and not {put.artifact_id for put in puts[:-1]} & kept


def test_process_that_does_not_commit_keeps_version_and_is_named(store, key, holders):
    state = state_of(10)
    put = store.put(state, key=key, base="auto")
    ranks = [holders(key), holders(key)]
    target = store.put(next_of(state, 11), key=key, base="auto")
    error = ranks[0].commits(target.artifact_id, seconds=1)
    assert error.startswith("DeadlineExceededError") and f"process {ranks[1].process.pid} did not commit" in error, error
    assert str(ranks[0].process.pid) not in error
    assert [rank.shows()[:2] for rank in ranks] == [(put.artifact_id, total(state))] * 2
    for rank in ranks:
        rank.tell("commit", target.artifact_id, 60)
    assert [rank.answer().split()[0] for rank in ranks] == ["committed"] * 2, "a commit can be repeated"
    assert [rank.shows()[:2] for rank in ranks] == [(target.artifact_id, total(next_of(state, 11)))] * 2


def test_a_process_that_is_killed_counts_no_more(store, key, holders):
    state = state_of(20)
    store.put(state, key=key, base="auto")
    ranks = [holders(key), holders(key)]
    target = store.put(next_of(state, 21), key=key, base="auto")
    ranks[0].tell("commit", target.artifact_id, 60)
    ranks[1].shows()  # it answers, and does not commit
    ranks[1].process.kill()
    assert ranks[0].answer().startswith("committed")
    assert ranks[0].shows()[:2] == (target.artifact_id, total(next_of(state, 21)))


def test_an_ordinary_reader_keeps_the_version(store, other, key):
    state = first(30)
    put = store.put(state, key=key, base="auto")
    target = store.put(after(state, 31), key=key, base="auto")
    with other.get(put.artifact_id, live=True) as weights:
        assert weights.live
        with other.get(put.artifact_id):
            with pytest.raises(tc.DeadlineExceededError, match="did not commit; nothing was written"):
                weights.commit(target, timeout=1)
            assert equal(weights.numpy(), state)
        assert 0 < weights.commit(target, timeout=60) < 60
        assert equal(weights.numpy(), after(state, 31)) and weights.artifact_id == target.artifact_id


def test_follow_changes_live_weights_when_they_commit(store, other, key):
    state = first(40)
    puts = [store.put(state, key=key, base="auto")]
    with other.get(key, live=True) as weights:
        arrays = weights.numpy()
        with other.follow(key, live=weights) as versions:
            assert next(versions).commit() < 10, "the weights are of this version already"
            for seed in (41, 42):
                before, state = state, after(state, seed)
                puts.append(store.put(state, key=key, base="auto"))
                version = next(versions)
                assert version.artifact_id == puts[-1].artifact_id and version.weights is weights
                assert weights.artifact_id == puts[-2].artifact_id and equal(arrays, before), "it is only prepared"
                with pytest.raises(tc.InvalidArgumentError, match="commit"):
                    version.apply(into={})
                assert 0 < version.commit(timeout=60) == version.pause_seconds < 60
                assert weights.artifact_id == puts[-1].artifact_id and equal(arrays, state)


def test_members_of_a_group_change_their_live_weights_together(store, key, cluster):
    states = [first(70), after(first(70), 71)]
    store.put(states[0], key=key, base="auto")
    with contextlib.ExitStack() as ends:
        # Both on one replica, as the ranks of an engine are.
        members = [ends.enter_context(tc.connect(cluster.address("b"))) for _ in range(2)]
        weights = [ends.enter_context(member.get(key, live=True)) for member in members]
        follows = [ends.enter_context(member.follow(key, live=held, group="serve", size=2, timeout=120))
                   for member, held in zip(members, weights)]
        threads = ends.enter_context(concurrent.futures.ThreadPoolExecutor(2))
        for version in threads.map(next, follows):
            version.commit()  # the weights are of this version already
        put = store.put(states[1], key=key, base="auto")
        versions = list(threads.map(next, follows))
        assert all(version.artifact_id == put.artifact_id for version in versions)
        assert all(version.weights is held for version, held in zip(versions, weights))
        with pytest.raises(tc.DeadlineExceededError, match="did not commit"):
            versions[0].commit(timeout=0.5)
        assert all(equal(held.numpy(), states[0]) for held in weights)
        assert all(pause < 60 for pause in threads.map(lambda version: version.commit(timeout=60), versions))
        assert all(equal(held.numpy(), states[1]) and held.artifact_id == put.artifact_id for held in weights)


def test_commit_in_asyncio(store, other, key):
    state = first(50)
    store.put(state, key=key, base="auto")

    async def run():
        async with await other.get_async(key, live=True) as weights:
            target = await store.put_async(after(state, 51), key=key, base="auto")
            await weights.prepare_async(target)
            await weights.commit_async(target, timeout=60)
            assert equal(weights.numpy(), after(state, 51))

    asyncio.run(run())


def test_what_cannot_change_is_refused_by_name(store, other, key):
    state = first(60)
    put = store.put(state, key=key, base="auto")
    with other.get(put.artifact_id) as weights, pytest.raises(tc.FailedPreconditionError, match="live=True"):
        weights.commit(put)
    for wrong, remedy in (({"tensors": "half"}, "leave tensors out"), ({"pin": True}, "leave pin out")):
        with pytest.raises(tc.InvalidArgumentError, match=remedy):
            other.get(put.artifact_id, live=True, **wrong)
    with other.get(put.artifact_id, live=True) as weights:
        shorter = store.put({**state, "half": state["half"][:-1]})
        with pytest.raises(tc.FailedPreconditionError, match="the new version has other tensors than"):
            weights.prepare(shorter)
        assert equal(weights.numpy(), state) and weights.artifact_id == put.artifact_id


def test_live_weights_on_disk_or_on_another_device_are_refused(store, other, key):
    put = store.put(first(65), key=key)
    with pytest.raises(tc.InvalidArgumentError, match="not on disk"):
        other.get(put.artifact_id, live=True, device="disk")
    with other.get(put.artifact_id, live=True) as weights, pytest.raises(tc.InvalidArgumentError, match="on their own device"):
        other.follow(key, live=weights, device="gpu:0")


def test_version_in_other_memory_of_the_node_is_scattered(store, key):
    states = [first(80), after(first(80), 81)]
    puts = [store.put(states[0], key=key, keep=1)]
    with store.get(key, live=True) as weights:  # on the trainer's own node, where each put leaves a replica
        puts.append(store.put(states[1], key=key, keep=1))
        with store.get(key) as reader:
            weights.commit(puts[1], timeout=60)
            assert equal(weights.numpy(), states[1]) and equal(reader.numpy(), states[1])
            assert weights.replica_id != reader.replica_id
        assert weights.artifact_id == puts[1].artifact_id
    assert puts[0].artifact_id not in {replica.artifact_id for replica in store.replicas()}
