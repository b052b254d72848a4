"""Following a key: Store.follow, Version.apply and Version.commit."""

import asyncio
import time

import numpy as np
import pytest
from test_changes import after, equal, first

import tensorcast as tc


def lanes(weights):
    return {source["lane"] for source in weights.transfer["sources"]} if weights.transfer else set()


def test_each_version_is_ready_before_it_is_given(store, other, key):
    state = first(100)
    puts = [store.put(state, key=key, base="auto")]
    mine = {name: np.zeros_like(array) for name, array in state.items()}
    with other.follow(key) as versions:
        for seed in range(101, 105):
            version = next(versions)
            assert (version.artifact_id, version.revision) == (puts[-1].artifact_id, len(puts))
            assert equal(version.weights.numpy(), state)
            assert lanes(version.weights) == ({"difference"} if len(puts) > 1 else {"local", "tcp", "ucx"} & lanes(version.weights))
            written = version.apply(mine)
            assert written.source == ("differences" if len(puts) > 1 else "whole")
            assert equal(mine, state)
            assert 0 < version.commit() == version.pause_seconds < 10
            state = after(state, seed)
            puts.append(store.put(state, key=key, base="auto"))


def test_follow_in_asyncio(store, other, key):
    async def follow():
        states = {1: first(110)}
        store.put(states[1], key=key, base="auto")
        mine = {name: np.zeros_like(array) for name, array in states[1].items()}
        seen = []
        async with other.follow(key) as versions:
            async for version in versions:
                seen.append(version.revision)
                await version.apply_async(mine)
                version.commit()
                assert equal(mine, states[version.revision])
                if len(seen) == 3:
                    return seen
                states[version.revision + 1] = after(states[version.revision], len(seen))
                await store.put_async(states[version.revision + 1], key=key, base="auto")

    assert asyncio.run(follow()) == [1, 2, 3]


def test_versions_that_were_overtaken_are_left_out(store, other, key):
    state = first(120)
    store.put(state, key=key, base="auto")
    mine = {name: np.zeros_like(array) for name, array in state.items()}
    with other.follow(key) as versions:
        next(versions).apply(mine)
        for seed in range(121, 125):
            state = after(state, seed, 0.01)
            store.put(state, key=key, base="auto", keep=2)
        with other.watch(key) as changes:  # this node has heard of the last revision
            while next(changes).revision < 5:
                pass
        revisions = [next(versions).revision]
        while revisions[-1] < 5:
            revisions.append(next(versions).revision)
        assert revisions == sorted(set(revisions))
        versions._given.apply(mine)  # over all versions between, which were never written
        assert equal(mine, state)


def test_rollback_is_a_version_like_others(store, other, key):
    state = first(130)
    ids = [store.put(state, key=key, base="auto", keep=3).artifact_id, store.put(after(state, 131), key=key, base="auto").artifact_id]
    mine = {name: np.zeros_like(array) for name, array in state.items()}
    with other.follow(key) as versions:
        version = next(versions)
        version.apply(mine)
        version.commit()
        store.bind(key, ids[0])
        back = next(versions)
        assert (back.revision, back.artifact_id) == (3, ids[0])
        assert back.apply(mine).source == "differences"
        assert equal(mine, state)


def test_commit_ends_the_lease_of_the_version_before(store, other, key):
    state = first(140)
    store.put(state, key=key)
    before = other.status().leases
    with other.follow(key) as versions:
        one = next(versions)
        one.commit()
        store.put(after(state, 141), key=key)
        two = next(versions)
        assert not one.weights.closed and not two.weights.closed
        two.commit()
        assert one.weights.closed and not two.weights.closed
        store.put(after(state, 142), key=key)
        next(versions)  # and is not committed
        store.put(after(state, 143), key=key)
        four = next(versions)
        assert not two.weights.closed and not four.weights.closed
        deadline = time.monotonic() + 10  # the daemon hears of the end of a lease a moment later
        while other.status().leases > before + 2:
            assert time.monotonic() < deadline, "versions that were given up are still leased"
    assert two.weights.closed and four.weights.closed


def test_version_that_is_not_prepared_comes_with_apply(store, other, key):
    state = first(150)
    put = store.put(state, key=key)
    mine = {name: np.zeros_like(array) for name, array in state.items()}
    with other.follow(key, prepare=False) as versions:
        version = next(versions)
        assert not [replica for replica in other.replicas() if replica.artifact_id == put.artifact_id]
        with pytest.raises(tc.ClosedError, match="not prepared"):
            version.weights
        version.apply(mine)
        assert equal(mine, state) and version.weights.artifact_id == put.artifact_id


def test_apply_after_a_failed_apply_finishes_the_update(store, other, key):
    states = [first(160)]
    states += [after(states[0], 161), after(states[0], 162)]
    store.put(states[0], key=key, base="auto")
    mine = {name: np.zeros_like(array) for name, array in states[0].items()}
    with other.follow(key) as versions:
        next(versions).apply(mine)
        store.put(states[1], key=key, base="auto")
        with pytest.raises(tc.DeadlineExceededError):
            next(versions).apply(mine, timeout=0)
        # The tensors may hold any mixture of both versions now.
        for name in mine:
            mine[name].reshape(-1)[::3] = states[1][name].reshape(-1)[::3]
        store.put(states[2], key=key, base="auto")
        version = next(versions)
        assert version.apply(mine).source == "differences"
        assert equal(mine, states[2])


def test_other_tensors_are_written_whole(store, other, key):
    state = first(170)
    base = store.put(state, key=key, base="auto")
    with other.follow(key) as versions:
        next(versions).apply({name: np.zeros_like(array) for name, array in state.items()})
        now = after(state, 171)
        store.put(now, key=key, base="auto")
        version = next(versions)
        mine = {name: np.zeros_like(array) for name, array in state.items()}
        assert version.apply(mine).source == "whole"
        assert equal(mine, now)
        mine = {name: array.copy() for name, array in state.items()}
        assert version.apply(mine, from_=base).source == "differences"
        assert equal(mine, now)


def test_only_the_key_is_followed(store, other, key):
    store.put(first(180), key=f"{key}/longer")
    store.put(first(181), key=key)
    with other.follow(key) as versions:
        assert next(versions).key == key
        store.put(first(182), key=f"{key}/longer")
        last = store.put(first(183), key=key)
        assert next(versions).artifact_id == last.artifact_id
    store.unbind(f"{key}/longer")


def test_close_ends_the_iteration(store, key):
    store.put(first(190), key=key)
    with store.follow(key) as versions:
        next(versions)
    assert list(versions) == []
