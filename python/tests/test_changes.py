"""What differs between two versions, and writes into tensors that the program owns: Store.changes, get(into=)."""

import asyncio

import numpy as np
import pytest

import tensorcast as tc

ROWS, COLUMNS = 1200, 512  # in F32 more than two chunks


def first(seed=0):
    random = np.random.default_rng(seed)
    return {
        "large": random.standard_normal((ROWS, COLUMNS)).astype(np.float32),
        "half": random.standard_normal(3000).astype(np.float16),
        "still": np.arange(100, dtype=np.int64),
        "empty": np.empty((0, 4), np.float32),
    }


def after(state, seed, changed=0.02):
    """The next version: a part of the elements moves by one representable value."""
    random = np.random.default_rng(seed)
    made = {name: array.copy() for name, array in state.items()}
    for name, kind in (("large", np.uint32), ("half", np.uint16)):
        bits = made[name].reshape(-1).view(kind)
        bits[random.random(bits.size) < changed] += 1
    return made


def expect(found, before, target):
    """Compares what was found with what numpy says of both versions."""
    given = {name: (indices.numpy(), values.numpy()) for name, indices, values in found}
    assert given.keys() == {"large", "half"}
    for name, (indices, values) in given.items():
        old, new = before[name].reshape(-1), target[name].reshape(-1)
        assert np.array_equal(indices, np.flatnonzero(old != new)) and len(indices)
        assert np.array_equal(values, new[indices]) and values.dtype == new.dtype


def equal(arrays, state):
    return all(np.array_equal(arrays[name], state[name]) for name in state)


@pytest.fixture
def versions(store):
    """Two versions of a key with the difference between them, and their Put values."""
    states = [first(), after(first(), 1)]
    puts = [store.put(state, key="changes/policy", base="auto") for state in states]
    assert puts[1].difference is not None
    yield list(zip(states, puts))
    store.unbind("changes/policy")


def test_changed_elements_come_from_the_difference(cluster, store, versions):
    (before, base), (now, target) = versions
    with tc.connect(cluster.address("b")) as other:
        for one in (store, other):
            with one.changes(base, "changes/policy") as found:
                assert (found.source, found.base_id, found.target_id) == ("differences", base.artifact_id, target.artifact_id)
                expect(found, before, now)


def test_rollback_reads_the_same_difference(store, versions):
    (before, base), (now, target) = versions
    with store.changes(target.artifact_id, base.artifact_id) as found:
        assert found.source == "differences"
        expect(found, now, before)


def test_without_a_difference_both_images_are_compared(store):
    before, now = first(7), after(first(7), 8)
    base, target = (store.put(state).artifact_id for state in (before, now))
    with store.changes(base, target) as found:
        assert found.source == "comparison"
        expect(found, before, now)
    with store.changes(target, target) as found:
        assert found.source == "same" and list(found) == []


def test_three_versions_back_is_one_iteration(store):
    states = [first(20)]
    puts = [store.put(states[0], key="changes/chain", base="auto")]
    for seed in range(21, 24):
        states.append(after(states[-1], seed, 0.01))
        puts.append(store.put(states[-1], key="changes/chain", base="auto"))
    with store.changes(puts[0], "changes/chain") as found:
        assert found.source == "differences"
        # Elements that went away and came back are among them, with the value that they have now.
        patched = {name: array.copy() for name, array in states[0].items()}
        for name, indices, values in found:
            assert set(np.flatnonzero(states[0][name] != states[-1][name])) <= set(indices.numpy())
            patched[name].reshape(-1)[indices.numpy()] = values.numpy()
        assert equal(patched, states[-1])
    store.unbind("changes/chain")


def test_tensors_that_changed_densely_or_are_new_come_whole(store):
    base = {"dense": np.arange(4000, dtype=np.float32), "shaped": np.zeros((2, 3)), "sparse": np.zeros(1000, np.float32)}
    now = {"dense": np.arange(4000, dtype=np.float32) + 1, "shaped": np.zeros(6), "sparse": np.zeros(1000, np.float32),
           "new": np.ones(3)}
    now["sparse"][17] = 1
    ids = [store.put(state).artifact_id for state in (base, now)]
    with store.changes(*ids) as found:
        given = {name: (indices, values) for name, indices, values in found}
    assert {name for name, (indices, _) in given.items() if indices is None} == {"dense", "shaped", "new"}
    assert np.array_equal(given["dense"][1].numpy(), now["dense"])
    assert given["sparse"][0].numpy().tolist() == [17] and given["sparse"][1].numpy().tolist() == [1]
    assert len(given["sparse"][0]) == 1 and given["sparse"][1].nbytes == 4


def test_torch_takes_indices_and_values(store):
    torch = pytest.importorskip("torch")
    before = {"w": torch.randn(3000).to(torch.bfloat16)}
    now = {"w": before["w"].clone()}
    now["w"][::500] += 1
    ids = [store.put(state).artifact_id for state in (before, now)]
    with store.changes(*ids) as found:
        ((_, indices, values),) = found
    patched = before["w"].clone()
    patched[indices.torch()] = values.torch()
    assert indices.torch().tolist() == list(range(0, 3000, 500)) and torch.equal(patched, now["w"])


def test_changes_in_asyncio(store, versions):
    (before, base), (now, _) = versions

    async def read():
        async with await store.changes_async(base, "changes/policy") as found:
            expect(found, before, now)

    asyncio.run(read())


def test_unknown_base_is_not_found(store, versions):
    with pytest.raises(tc.NotFoundError):
        store.changes("changes/nothing", "changes/policy")


def test_get_writes_into_arrays_of_the_program(store, versions):
    (before, base), (now, target) = versions
    mine = {name: np.zeros_like(array) for name, array in now.items()}
    with store.get("changes/policy", into=mine) as weights:
        assert weights.written.source == "whole" and weights.written.whole_bytes == sum(array.nbytes for array in mine.values())
    assert equal(mine, now)
    mine = {name: array.copy() for name, array in before.items()}
    with store.get("changes/policy", into=mine, from_=base) as weights:
        written = weights.written
    assert (written.source, written.whole_bytes, written.artifact_id) == ("differences", 0, target.artifact_id)
    assert written.elements == sum(np.count_nonzero(before[name] != now[name]) for name in now)
    assert equal(mine, now)


def test_get_finishes_what_another_began(store, versions):
    (before, base), (now, target) = versions
    random = np.random.default_rng(3)
    for again in range(5):
        # Any part of the elements was written already.
        mine = {name: np.where(random.random(array.shape) < again / 4, now[name], array) for name, array in before.items()}
        for _ in range(2):
            assert store.get("changes/policy", into=mine, from_=base.artifact_id).written.source == "differences"
            assert equal(mine, now)
    # Or elements of either version, in any mixture.
    mine = {name: np.where(random.random(array.shape) < 0.5, now[name], array) for name, array in before.items()}
    store.get(base.artifact_id, into=mine, from_=[base, target])
    assert equal(mine, before)


def test_get_writes_some_tensors(store, versions):
    (before, base), (now, _) = versions
    mine = {"half": before["half"].copy()}
    store.get("changes/policy", tensors=["half"], into=mine, from_=base)
    assert np.array_equal(mine["half"], now["half"])


def test_versions_without_a_difference_are_written_whole(store):
    before, now = first(40), after(first(40), 41)
    base, target = (store.put(state).artifact_id for state in (before, now))
    mine = {name: array.copy() for name, array in before.items()}
    assert store.get(target, into=mine, from_=base).written.source == "whole"
    assert equal(mine, now)


@pytest.mark.parametrize(
    "spoil, named",
    [
        (lambda mine: mine.pop("half"), "no tensor for ..half"),
        (lambda mine: mine.update(other=np.zeros(1)), "other.*not in the artifact"),
        (lambda mine: mine.update(half=mine["half"].astype(np.float32)), '"half".*float32.*F16'),
        (lambda mine: mine.update(half=mine["half"][:-1].copy()), '"half".*2999.*3000'),
        (lambda mine: mine.update(half=np.zeros(6000, np.float16)[::2]), '"half".*contiguous'),
        (lambda mine: mine["half"].setflags(write=False), '"half".*read-only'),
        (lambda mine: mine.update(half=list(mine["half"])), '"half" *: the target must be'),
    ],
)
def test_tensors_that_cannot_be_written_are_named(store, versions, spoil, named):
    before = versions[0][0]
    mine = {name: array.copy() for name, array in before.items()}
    spoil(mine)
    with pytest.raises(tc.InvalidArgumentError, match=named):
        store.get("changes/policy", into=mine)
    assert np.array_equal(mine["large"], before["large"])


def test_keys_and_gpus_are_refused(store, versions):
    mine = {name: array.copy() for name, array in versions[0][0].items()}
    with pytest.raises(tc.InvalidArgumentError, match="not the key"):
        store.get("changes/policy", into=mine, from_="changes/policy")
    with pytest.raises(tc.InvalidArgumentError, match="gpu:0"):
        store.get("changes/policy", into=mine, device="gpu:0")
    with pytest.raises(tc.InvalidArgumentError, match="pass into="):
        store.get("changes/policy", from_=versions[0][1])
