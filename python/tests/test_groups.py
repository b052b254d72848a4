"""Version groups, with members on three real nodes and a store that is killed."""

import threading
import time

import numpy as np
import pytest
from cluster import Cluster

import tensorcast as tc
from tensorcast.groups import Group

NODES = ("a", "b", "c")
SECONDS = 60


@pytest.fixture(scope="module")
def trio():
    with Cluster(host_pool="256MiB", nodes=NODES) as running:
        yield running


@pytest.fixture
def key(request):
    return f"policy/{request.node.name}"


def put(store, key, number):
    return store.put({"w": np.full(1 << 18, number, np.uint8), "of": np.frombuffer(key.encode(), np.uint8)}, key=key)


class Member:
    """A process's place in the tests: follows on a thread until it is stopped."""

    def __init__(self, cluster, node, key, size=3, **options):
        self.store = tc.connect(cluster.address(node))
        self.group = Group(self.store, key, "serve-1", size, member=f"rank-{node}", lost_after=options.pop("lost_after", 15.0), **options)
        self.had, self.announced, self.error = [], [], None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _prepare(self, version):
        self.store.prefetch(version.artifact_id, progress=False)
        self.had.append(version)

    def _run(self):
        while not self._stop.is_set():
            try:
                self.announced.append(self.group.agree(self._prepare, timeout=1))
            except tc.DeadlineExceededError:
                continue
            except tc.Error as error:
                self.error = error
                return

    def await_revision(self, revision):
        deadline = time.monotonic() + SECONDS
        while not self.announced or self.announced[-1].revision < revision:
            assert self.error is None and time.monotonic() < deadline, (self.error, self.announced, self.group._waits_for)
            time.sleep(0.02)
        assert self.announced[-1].revision == revision

    def await_wait_for(self, text):
        deadline = time.monotonic() + SECONDS
        while not any(text in one for one in self.group._waits_for):
            assert self.error is None and time.monotonic() < deadline, (self.error, self.group._waits_for)
            time.sleep(0.02)

    def die(self):
        """Ends without a word to the store, as a process that is killed does."""
        self._stop.set()
        self._thread.join()
        with self.group._changed:
            self.group._closed = True
            self.group._changed.notify_all()
            if self.group._background is not None:
                self.group._background.cancel()

    def stop(self):
        self._stop.set()
        self._thread.join()
        self.group.close()
        self.store.close()


@pytest.fixture
def members(trio, key):
    made = []

    def make(node, **options):
        made.append(Member(trio, node, key, **options))
        return made[-1]

    yield make
    for member in made:
        member.stop()


def test_members_on_three_nodes_change_together(trio, key, members):
    with tc.connect(trio.address("a")) as trainer:
        first = put(trainer, key, 1)
        group = [members(node) for node in NODES]
        for member in group:
            member.await_revision(1)
            assert member.announced[0].artifact_id == first.artifact_id
        for number in range(2, 6):
            put(trainer, key, number)
        for member in group:
            member.await_revision(5)
            revisions = [version.revision for version in member.announced]
            assert revisions == sorted(set(revisions)), "never backwards"
            assert set(member.announced) <= set(member.had), "each was prepared here"
        assert group[0].announced == group[1].announced == group[2].announced


def test_follow_of_group_gives_what_all_members_prepared(trio, key):
    stores = [tc.connect(trio.address(node)) for node in NODES]
    given = [[] for _ in NODES]
    tensors = [{"w": np.zeros(1 << 18, np.uint8), "of": np.zeros(len(key), np.uint8)} for _ in NODES]

    def follow(place):
        with stores[place].follow(key, group="serve-1", size=3, member=f"rank-{place}", timeout=SECONDS) as versions:
            for version in versions:
                version.apply(into=tensors[place])
                version.commit()
                given[place].append((version.revision, version.artifact_id, int(tensors[place]["w"][-1])))
                if version.revision == 4:
                    return

    threads = [threading.Thread(target=follow, args=(place,)) for place in range(3)]
    try:
        put(stores[0], key, 1)
        for thread in threads[:2]:
            thread.start()
        put(stores[0], key, 2)
        threads[0].join(0.5)
        assert given == [[], [], []], "the third member has prepared nothing"
        threads[2].start()
        put(stores[0], key, 3)
        put(stores[0], key, 4)
        for thread in threads:
            thread.join(SECONDS)
        assert given[0][-1][0] == 4 and given[0] == given[1] == given[2], "all members are given the same versions"
        assert [one[0] for one in given[0]] == sorted({one[0] for one in given[0]}), "never backwards"
        assert all(revision == number for revision, _, number in given[0])
    finally:
        for store in stores:
            store.close()


def test_follow_with_arguments_that_contradict_is_refused(trio, key):
    with tc.connect(trio.address("a")) as store:
        for wrong, remedy in (({"size": 2}, "pass group"), ({"group": "serve-1"}, "number of members"),
                              ({"group": "serve-1", "size": 0}, "number of members"),
                              ({"group": "serve-1", "size": 1, "prepare": False}, "leave out prepare")):
            with pytest.raises(tc.InvalidArgumentError, match=remedy):
                store.follow(key, **wrong)
        put(store, key, 1)
        with store.follow(key, group="serve-1", size=2, timeout=0.5) as versions, pytest.raises(tc.DeadlineExceededError, match="serve-1"):
            next(versions)


def test_deleted_version_does_not_hold_up_follow_of_group(trio, key):
    with tc.connect(trio.address("a")) as store:
        gone = put(store, key, 1)
        with store.follow(key, group="serve-1", size=1, timeout=SECONDS) as versions:
            assert versions._source.next(timeout=SECONDS).revision == 1
            newer = put(store, key, 2)
            store.rm(gone.artifact_id)
            version = next(versions)
            assert (version.revision, version.artifact_id) == (2, newer.artifact_id)


def test_failover_between_preparing_and_announcing(trio, key):
    stores = [tc.connect(trio.address(node)) for node in NODES]
    groups = [Group(store, key, "serve-1", 3, member=f"rank-{i}") for i, store in enumerate(stores)]
    try:
        put(stores[0], key, 1)
        versions = [group.next(timeout=SECONDS) for group in groups]
        for group, version, store in zip(groups, versions, stores):
            store.prefetch(version.artifact_id, progress=False)
        # Two have said so when the store is killed; the third one says so to the store that comes back.
        for group, version in zip(groups[:2], versions):
            with pytest.raises(tc.DeadlineExceededError, match="group serve-1 announced nothing in time"):
                group.prepared(version, timeout=0.5)
        trio.restart_store()
        assert groups[2].prepared(versions[2], timeout=SECONDS) == versions[0]
        # The store is killed before the others have heard of it. It announces the same, and nothing older.
        trio.restart_store()
        put(stores[0], key, 2)
        for group, version in zip(groups[:2], versions):
            assert group.prepared(version, timeout=SECONDS) == versions[0]
        second = [group.next(timeout=SECONDS) for group in groups]
        assert {version.revision for version in second} == {2}
    finally:
        for group, store in zip(groups, stores):
            group.close()
            store.close()


def test_a_lost_member_is_waited_for(trio, key, members):
    with tc.connect(trio.address("a")) as trainer:
        put(trainer, key, 1)
        group = [members(node, lost_after=2.0) for node in NODES]
        for member in group:
            member.await_revision(1)
        group[2].die()
        put(trainer, key, 2)
        group[0].await_wait_for("member rank-c, which is silent")
        assert group[0].announced[-1].revision == 1
        replacement = members("c", lost_after=2.0)
        replacement.await_revision(2)
        for member in group[:2]:
            member.await_revision(2)


def test_a_lost_member_ends_a_group_that_fails(trio, key, members):
    with tc.connect(trio.address("a")) as trainer:
        put(trainer, key, 1)
        group = [members(node, on_lost="fail", lost_after=2.0) for node in NODES]
        for member in group:
            member.await_revision(1)
        group[2].die()
        for member in group[:2]:
            member._thread.join(SECONDS)
            assert isinstance(member.error, tc.AbortedError), member.error
            assert "member rank-c" in str(member.error)


def test_a_lost_member_is_dropped_where_asked(trio, key, members):
    with tc.connect(trio.address("a")) as trainer:
        put(trainer, key, 1)
        group = [members(node, on_lost="drop", lost_after=2.0) for node in NODES]
        for member in group:
            member.await_revision(1)
        group[2].die()
        put(trainer, key, 2)
        for member in group[:2]:
            member.await_revision(2)


def test_a_member_that_only_prepares_stays_alive(trio, key, members):
    with tc.connect(trio.address("a")) as trainer:
        put(trainer, key, 1)
        fast = members("a", size=2, on_lost="fail", lost_after=4.0)
        with tc.connect(trio.address("b")) as store, Group(store, key, "serve-1", 2, member="slow", on_lost="fail", lost_after=4.0) as slow:
            version = slow.next(timeout=SECONDS)
            time.sleep(5)  # longer than lost_after, as a large model takes; the thread of the group polls meanwhile
            store.prefetch(version.artifact_id, progress=False)
            assert slow.prepared(version, timeout=SECONDS) == version
            fast.await_revision(1)


def test_wrong_arguments_are_refused(store):
    for wrong in ({"size": 0}, {"size": 2, "on_lost": "ignore"}):
        with pytest.raises(tc.InvalidArgumentError):
            Group(store, "policy", "g", **wrong)
    with Group(store, "policy", "a/b", 1) as group, pytest.raises(tc.InvalidArgumentError, match="a/b"):
        group.next(timeout=5)
    closed = Group(store, "policy", "g", 1)
    closed.close()
    with pytest.raises(tc.ClosedError):
        closed.next()


def test_followers_are_added_listed_and_removed(trio, key):
    with tc.connect(trio.address("a")) as store:
        with pytest.raises(tc.NotFoundError, match="absent"):
            store.add_followers(key, ["absent"])
        added = store.add_followers(key, ["b", "c:gpu:0"])
        assert [(one.node, one.location, one.newest_revision) for one in added] == [("b", "cpu", 0), ("c", "gpu:0", 0)]
        put(store, key, 1)
        deadline = time.monotonic() + SECONDS
        while {one.state for one in store.followers(key)} != {"there"}:
            assert time.monotonic() < deadline, store.followers(key)
            time.sleep(0.05)
        assert [one.node for one in store.remove_followers(key, "b")] == ["b"]
        assert [one.node for one in store.remove_followers(key)] == ["c"]
        assert len(store.followers(key)) == 0
