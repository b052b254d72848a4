#include "global_store/coordinator/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/ids.h"
#include "base/steady_time.h"
#include "global_store/directory/listings.h"
#include "global_store/metadata/metadata_store.h"

namespace tensorcast::global_store::coordinator_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A memory store with commits that can be made to fail.
class FragileStore final : public MetadataStore {
 public:
  std::string_view name() const override { return "fragile"; }
  absl::Status Check() const override { return absl::OkStatus(); }
  absl::Status Commit(const WriteBatch& batch) override {
    ++commits;
    if (on_commit != nullptr) on_commit(batch);
    return commit_error.ok() ? store_->Commit(batch) : commit_error;
  }
  absl::StatusOr<DurableFacts> Load() override { return store_->Load(); }
  absl::StatusOr<std::string> ReadManifest(std::string_view id) override { return store_->ReadManifest(id); }
  absl::StatusOr<std::optional<std::string>> FindResponse(std::string_view request) override {
    return store_->FindResponse(request);
  }
  absl::Status Purge(const PurgeTimes& before) override {
    ++purges;
    return store_->Purge(before);
  }

  absl::Status commit_error;
  std::function<void(const WriteBatch&)> on_commit;  // may be empty
  std::atomic<int> commits = 0;
  int purges = 0;

 private:
  std::unique_ptr<MetadataStore> store_ = MakeMemoryStore();
};

class CoordinatorTest : public ::testing::Test {
 protected:
  void SetUp() override { Restart(); }

  void Restart() {
    coordinator_.reset();
    auto created = Coordinator::Create({.directory = {},
                                        .clock = [this] { return now_; },
                                        .wall_clock = [this] { return UnsetWallClock() + clock_set_by_; }},
                                       &store_, &secrets_);
    ASSERT_TRUE(created.ok()) << created.status();
    coordinator_ = *std::move(created);
  }
  void Publish(const std::string& artifact_id) {
    auto published =
        coordinator_->Mutate("", [&](const Directory&, absl::Time now) -> absl::StatusOr<Change> {
          return Change{.facts = {.artifacts = {{.artifact_id = artifact_id, .created = now, .updated = now}},
                                  .keys = {}}};
        });
    ASSERT_TRUE(published.ok()) << published.status();
  }
  // The key's revision, as the response.
  absl::StatusOr<std::string> Bind(const std::string& request, const std::string& key,
                                   const std::string& artifact) {
    return coordinator_->Mutate(
        request, [&](const Directory& directory, absl::Time now) -> absl::StatusOr<Change> {
          auto plan = directory.catalog().PrepareBindKey({.key = key, .artifact_id = artifact}, now);
          if (!plan.ok()) return plan.status();
          return Change{.facts = plan->facts, .response = absl::StrCat(plan->key.revision)};
        });
  }
  uint64_t Revision(const std::string& key) {
    return coordinator_->WithDirectory([&](Directory& directory, SteadyTime) {
      auto record = directory.catalog().ResolveKey(key);
      return record.ok() ? record->revision : 0;
    });
  }
  void Register(const std::string& id) {
    const absl::Status status = coordinator_->WithDirectory([&](Directory& directory, SteadyTime now) {
      return directory.RegisterNode({.node_id = id, .name = id, .incarnation = 1, .lanes = {"ucx"}}, {}, now)
          .status();
    });
    ASSERT_TRUE(status.ok()) << status;
  }
  size_t Nodes() {
    return coordinator_->WithDirectory(
        [](Directory& directory, SteadyTime) { return directory.counts().nodes; });
  }
  std::shared_ptr<KeyWatcher> Collector(std::vector<std::string>* into, const std::string& prefix) {
    auto watcher = std::make_shared<KeyWatcher>();
    watcher->prefix = prefix;
    watcher->on_change = [into](const KeyRecord& key) {
      into->push_back(absl::StrCat(key.name, "@", key.revision, key.deleted ? " deleted" : ""));
    };
    watcher->on_close = [into](const absl::Status& status) {
      into->push_back(std::string(status.message()));
    };
    return watcher;
  }

  absl::Time UnsetWallClock() const { return absl::UnixEpoch() + (now_ - SteadyTime()); }

  SteadyTime now_ = SteadyTime() + absl::Seconds(1'700'000'000);
  absl::Duration clock_set_by_;
  FragileStore store_;
  RandomSecrets secrets_;
  std::unique_ptr<Coordinator> coordinator_;
};

TEST_F(CoordinatorTest, ClusterId_IsThatOfTheMetadata) {
  const std::string id = coordinator_->cluster_id();
  EXPECT_TRUE(IsUuid(id)) << id;
  const int commits = store_.commits;
  Restart();
  EXPECT_EQ(coordinator_->cluster_id(), id);
  EXPECT_EQ(store_.commits, commits);
  FragileStore full;
  full.commit_error = absl::ResourceExhaustedError("disk full");
  const auto on_full_disk = Coordinator::Create({}, &full, &secrets_);
  ASSERT_TRUE(on_full_disk.ok()) << on_full_disk.status();
  EXPECT_EQ((*on_full_disk)->cluster_id(), "");
}

TEST_F(CoordinatorTest, EndedTask_IsStoredByNextTickThatCanWrite) {
  Publish("x");
  Register("n");
  const auto requested =
      coordinator_->Mutate("", [](const Directory& directory, absl::Time now) -> absl::StatusOr<Change> {
        auto plan = directory.tasks().Prepare(
            {.request_id = "w", .artifact_id = "x", .targets = {{.node = "n"}}}, now);
        if (!plan.ok()) return plan.status();
        return Change{.facts = plan->facts};
      });
  ASSERT_TRUE(requested.ok()) << requested.status();
  const auto take = [&] {
    return coordinator_->WithDirectory([](Directory& directory, SteadyTime now) {
      const auto taken = directory.tasks().Take({"n", 1}, now);
      return taken.ok() ? taken->size() : 99;
    });
  };
  const auto stored = [&] {
    const absl::StatusOr<DurableFacts> facts = store_.Load();
    return facts.ok() && facts->tasks.size() == 1 ? facts->tasks[0].state : TaskState::kFailed;
  };
  EXPECT_EQ(take(), 1u);
  const absl::Status noted = coordinator_->WithDirectory([](Directory& directory, SteadyTime) {
    return directory.tasks().Note({"n", 1}, {{.task_id = "w-0", .ended = absl::OkStatus()}});
  });
  ASSERT_TRUE(noted.ok()) << noted;
  store_.commit_error = absl::ResourceExhaustedError("disk full");
  coordinator_->Tick();
  EXPECT_EQ(stored(), TaskState::kOpen);
  store_.commit_error = absl::OkStatus();
  coordinator_->Tick();
  EXPECT_EQ(stored(), TaskState::kDone);
  const int commits = store_.commits;
  coordinator_->Tick();
  EXPECT_EQ(store_.commits, commits) << "once";
  Restart();
  Register("n");
  EXPECT_EQ(take(), 0u);
}

TEST_F(CoordinatorTest, RepeatedRequest_GetsRecordedAnswer) {
  Publish("x");
  EXPECT_EQ(Bind("r1", "k", "x").value(), "1");
  EXPECT_EQ(Bind("r1", "k", "x").value(), "1");
  EXPECT_EQ(Revision("k"), 1u);
  EXPECT_EQ(Bind("r2", "k", "x").value(), "2");
  EXPECT_EQ(Bind("", "k", "x").value(), "3");
  EXPECT_EQ(Bind("", "k", "x").value(), "4");
}

TEST_F(CoordinatorTest, RepeatedRequest_IsRecognisedAfterRestart) {
  Publish("x");
  EXPECT_EQ(Bind("r1", "k", "x").value(), "1");
  const uint64_t epoch = coordinator_->epoch();
  Restart();
  EXPECT_NE(coordinator_->epoch(), epoch);
  EXPECT_EQ(Bind("r1", "k", "x").value(), "1");
  EXPECT_EQ(Revision("k"), 1u);
}

TEST_F(CoordinatorTest, Request_IsForgottenAfterOneHour) {
  Publish("x");
  EXPECT_EQ(Bind("r1", "k", "x").value(), "1");
  now_ += kRequestAge + absl::Seconds(1);
  coordinator_->Tick();
  EXPECT_EQ(Bind("r1", "k", "x").value(), "2");
}

TEST_F(CoordinatorTest, FailedRequest_MayBeRetriedUnderItsId) {
  EXPECT_TRUE(absl::IsNotFound(Bind("r1", "k", "x").status()));
  Publish("x");
  EXPECT_EQ(Bind("r1", "k", "x").value(), "1");
}

TEST_F(CoordinatorTest, FailedCommit_IsNeitherAppliedNorAnnounced) {
  Publish("x");
  std::vector<std::string> seen;
  coordinator_->Watch(Collector(&seen, ""));
  store_.commit_error = absl::ResourceExhaustedError("disk full");
  EXPECT_EQ(Bind("r1", "k", "x").status(), store_.commit_error);
  EXPECT_EQ(Revision("k"), 0u);
  EXPECT_THAT(seen, IsEmpty());

  store_.commit_error = absl::OkStatus();
  EXPECT_EQ(Bind("r1", "k", "x").value(), "1");
  EXPECT_THAT(seen, ElementsAre("k@1"));
}

TEST_F(CoordinatorTest, IndependentChanges_AreCommittedConcurrently) {
  Publish("x");
  // The first binding makes it a version of keys; those after it only refer to it.
  ASSERT_TRUE(Bind("r0", "k0", "x").ok());
  absl::Notification first, second;
  store_.on_commit = [&](const WriteBatch& batch) {
    const bool is_first = batch.facts.keys.front().name == "k1";
    (is_first ? first : second).Notify();
    // Each goes on once the other has begun.
    EXPECT_TRUE((is_first ? second : first).WaitForNotificationWithTimeout(absl::Seconds(30)));
  };
  std::thread one([&] { EXPECT_EQ(Bind("r1", "k1", "x").value(), "1"); });
  std::thread two([&] { EXPECT_EQ(Bind("r2", "k2", "x").value(), "1"); });
  one.join();
  two.join();
}

TEST_F(CoordinatorTest, ChangesOfOneKey_AreCommittedAndAnnouncedInOrder) {
  Publish("x");
  constexpr int kThreads = 6, kBinds = 50;
  std::atomic<int> committing = 0;
  store_.on_commit = [&](const WriteBatch&) {
    EXPECT_EQ(committing.fetch_add(1), 0);
    std::this_thread::yield();
    --committing;
  };
  std::vector<std::string> seen;
  coordinator_->Watch(Collector(&seen, ""));
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kBinds; ++i) EXPECT_TRUE(Bind(absl::StrCat(t, "/", i), "k", "x").ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_THAT(seen, SizeIs(kThreads * kBinds));
  for (int i = 0; i < kThreads * kBinds; ++i) EXPECT_EQ(seen[i], absl::StrCat("k@", i + 1));
}

// Where both were planned beside each other, a key of a deleted artifact would be left.
TEST_F(CoordinatorTest, ConcurrentBindAndDelete_LeaveNoKeyWithoutArtifact) {
  for (int round = 0; round < 50; ++round) {
    const std::string artifact = absl::StrCat("a", round);
    Publish(artifact);
    std::thread deletes([&] {
      (void)coordinator_->Mutate("",
                                 [&](const Directory& directory, absl::Time now) -> absl::StatusOr<Change> {
                                   auto facts = directory.catalog().PrepareDeleteArtifact(artifact, now);
                                   if (!facts.ok()) return facts.status();
                                   return Change{.facts = *std::move(facts)};
                                 });
    });
    const bool bound = Bind("", artifact, artifact).ok();
    deletes.join();
    const bool there = coordinator_->WithDirectory(
        [&](Directory& directory, SteadyTime) { return DescribeArtifact(directory, artifact).ok(); });
    EXPECT_EQ(bound, there) << artifact;
  }
}

// An artifact that loses its last key by a deletion stays until it is deleted itself.
TEST_F(CoordinatorTest, ConcurrentDeletionsOfBothKeys_LeaveTheArtifact) {
  Publish("x");
  for (const char* const key : {"k1", "k2"}) ASSERT_TRUE(Bind("", key, "x").ok());
  absl::Notification first_commits, second_planned;
  store_.on_commit = [&](const WriteBatch&) {
    if (first_commits.HasBeenNotified()) return;
    first_commits.Notify();
    EXPECT_TRUE(second_planned.WaitForNotificationWithTimeout(absl::Seconds(30)));
  };
  const auto unbind = [&](const char* key, const std::function<void()>& on_planned) {
    const auto deleted =
        coordinator_->Mutate("", [&](const Directory& directory, absl::Time now) -> absl::StatusOr<Change> {
          auto plan = directory.catalog().PrepareDeleteKey(key, std::nullopt, now);
          if (!plan.ok()) return plan.status();
          on_planned();
          return Change{.facts = plan->facts};
        });
    EXPECT_TRUE(deleted.ok()) << deleted.status();
  };
  std::thread first([&] { unbind("k1", [] {}); });
  EXPECT_TRUE(first_commits.WaitForNotificationWithTimeout(absl::Seconds(30)));
  unbind("k2", [&] {
    if (!second_planned.HasBeenNotified()) second_planned.Notify();
  });
  first.join();
  EXPECT_FALSE(coordinator_->WithDirectory(
      [](Directory& directory, SteadyTime) { return directory.catalog().IsReleased("x"); }));
}

// The publication relies on a difference that exists, and which no key kept before.
TEST_F(CoordinatorTest, DifferenceOfRunningPublication_IsNotDeleted) {
  Publish("base");
  ASSERT_TRUE(Bind("", "policy", "base").ok());
  const ArtifactRecord difference{.artifact_id = "d",
                                  .kind = ArtifactKind::kDifference,
                                  .versioned = true,
                                  .base_id = "base",
                                  .target_id = "target"};
  ASSERT_TRUE(
      coordinator_
          ->Mutate("",
                   [&](const Directory&, absl::Time) -> absl::StatusOr<Change> {
                     return Change{
                         .facts = {.artifacts = {{.artifact_id = "target", .versioned = true}, difference}}};
                   })
          .ok());
  absl::Notification publishing, deleting;
  store_.on_commit = [&](const WriteBatch& batch) {
    if (batch.facts.keys.empty()) return;
    publishing.Notify();
    EXPECT_TRUE(deleting.WaitForNotificationWithTimeout(absl::Seconds(30)));
  };
  std::thread publishes([&] {
    const auto published =
        coordinator_->Mutate("", [&](const Directory& directory, absl::Time now) -> absl::StatusOr<Change> {
          const BindRequest bind{.key = "policy", .artifact_id = "target"};
          auto plan = directory.catalog().PreparePublish({.artifact_id = "target"}, bind, now, difference);
          if (!plan.ok()) return plan.status();
          return Change{.facts = plan->facts, .artifacts = plan->artifacts};
        });
    EXPECT_TRUE(published.ok()) << published.status();
  });
  EXPECT_TRUE(publishing.WaitForNotificationWithTimeout(absl::Seconds(30)));
  const auto released =
      coordinator_->Mutate("", [&](const Directory& directory, absl::Time now) -> absl::StatusOr<Change> {
        Change change{.facts = directory.PrepareReleases(now_, now)};
        EXPECT_NE(change.facts.artifacts.empty(), !deleting.HasBeenNotified());
        if (!deleting.HasBeenNotified()) deleting.Notify();
        return change;
      });
  publishes.join();
  EXPECT_TRUE(released.ok()) << released.status();
  EXPECT_TRUE(coordinator_->WithDirectory(
      [](Directory& directory, SteadyTime) { return DescribeArtifact(directory, "d").ok(); }));
}

TEST_F(CoordinatorTest, RepeatedRequest_WaitsForTheFirst) {
  Publish("x");
  absl::Notification committing;
  store_.on_commit = [&](const WriteBatch&) {
    if (committing.HasBeenNotified()) return ADD_FAILURE() << "made twice";
    committing.Notify();
  };
  std::thread first([&] { EXPECT_EQ(Bind("r", "k", "x").value(), "1"); });
  EXPECT_TRUE(committing.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_EQ(Bind("r", "k", "x").value(), "1");
  first.join();
  EXPECT_EQ(Revision("k"), 1u);
}

TEST_F(CoordinatorTest, KeyWatcher_GetsListThenChanges) {
  Publish("x");
  ASSERT_TRUE(Bind("", "m/1", "x").ok());
  ASSERT_TRUE(Bind("", "other", "x").ok());
  std::vector<std::string> seen;
  const uint64_t id = coordinator_->Watch(Collector(&seen, "m/"));
  EXPECT_THAT(seen, ElementsAre("m/1@1"));
  ASSERT_TRUE(Bind("", "m/2", "x").ok());
  ASSERT_TRUE(Bind("", "other", "x").ok());
  ASSERT_TRUE(coordinator_
                  ->Mutate("",
                           [](const Directory& directory, absl::Time now) -> absl::StatusOr<Change> {
                             auto plan = directory.catalog().PrepareDeleteKey("m/1", std::nullopt, now);
                             return Change{.facts = plan->facts};
                           })
                  .ok());
  EXPECT_THAT(seen, ElementsAre("m/1@1", "m/2@1", "m/1@1 deleted"));
  coordinator_->Unwatch(id);
  ASSERT_TRUE(Bind("", "m/2", "x").ok());
  EXPECT_THAT(seen, SizeIs(3));
}

TEST_F(CoordinatorTest, WatcherOfOneKey_GetsOnlyItsChanges) {
  Publish("x");
  std::vector<std::string> seen;
  auto watcher = Collector(&seen, "");
  watcher->key = "k";
  coordinator_->Watch(watcher);
  ASSERT_TRUE(Bind("", "k", "x").ok());
  ASSERT_TRUE(Bind("", "k2", "x").ok());
  EXPECT_THAT(seen, ElementsAre("k@1"));
}

TEST_F(CoordinatorTest, CloseWatches_EndsPresentAndLaterWatches) {
  std::vector<std::string> seen;
  coordinator_->Watch(Collector(&seen, ""));
  coordinator_->CloseWatches(absl::UnavailableError("bye"));
  EXPECT_THAT(seen, ElementsAre("bye"));
  coordinator_->Watch(Collector(&seen, ""));
  EXPECT_THAT(seen, ElementsAre("bye", "bye"));
}

TEST_F(CoordinatorTest, ConcurrentWatchers_GetEveryRevisionInOrder) {
  Publish("x");
  ASSERT_TRUE(Bind("", "k", "x").ok());
  std::thread binder([&] {
    for (int i = 0; i < 200; ++i) EXPECT_TRUE(Bind("", "k", "x").ok());
  });
  std::vector<std::vector<uint64_t>> seen(20);
  for (auto& revisions : seen) {
    auto watcher = std::make_shared<KeyWatcher>();
    watcher->on_change = [&revisions](const KeyRecord& key) { revisions.push_back(key.revision); };
    coordinator_->Watch(watcher);
  }
  binder.join();
  for (const auto& revisions : seen) {
    ASSERT_THAT(revisions, ::testing::Not(IsEmpty()));
    for (size_t i = 0; i < revisions.size(); ++i) EXPECT_EQ(revisions[i], revisions[0] + i);
    EXPECT_EQ(revisions.back(), 201u);
  }
}

TEST_F(CoordinatorTest, Publish_ReturnsWhileAnotherKeysWatcherIsBeingTold) {
  Publish("x");
  absl::Notification telling;
  absl::Notification go_on;
  auto slow = std::make_shared<KeyWatcher>();
  slow->key = "watched";
  slow->on_change = [&](const KeyRecord&) {
    telling.Notify();
    EXPECT_TRUE(go_on.WaitForNotificationWithTimeout(absl::Seconds(30)));
  };
  coordinator_->Watch(slow);
  std::vector<std::string> seen;
  coordinator_->Watch(Collector(&seen, "other"));
  std::thread binder([&] { EXPECT_TRUE(Bind("", "watched", "x").ok()); });
  EXPECT_TRUE(telling.WaitForNotificationWithTimeout(absl::Seconds(30)));
  absl::Notification published;
  std::thread publisher([&] {
    EXPECT_TRUE(Bind("", "other", "x").ok());
    published.Notify();
  });
  EXPECT_TRUE(published.WaitForNotificationWithTimeout(absl::Seconds(10)));
  go_on.Notify();
  binder.join();
  publisher.join();
  // The binder told the change that the publisher had left to it.
  EXPECT_THAT(seen, ElementsAre("other@1"));
}

TEST_F(CoordinatorTest, RepeatedGrantRequest_GetsSameGrantWhileItLives) {
  Publish("x");
  Register("a");
  Register("b");
  coordinator_
      ->WithDirectory([](Directory& directory, SteadyTime now) {
        return directory.UpdateReplicas(
            {"a", 1}, 1, {{.id = "r", .artifact_id = "x", .state = ReplicaState::kReady}}, now);
      })
      .IgnoreError();
  const GrantRequest request{.receiver = {"b", 1}, .artifact_id = "x", .destination = {}};
  const auto grant = [&](const std::string& id) {
    auto offer = coordinator_->RequestGrant(id, request);
    EXPECT_TRUE(offer.ok() && !offer->granted.empty()) << offer.status();
    return offer->granted.front().grant.grant_id;
  };
  const std::string first = grant("q");
  EXPECT_EQ(grant("q"), first);
  EXPECT_NE(grant("another"), first);
  EXPECT_NE(grant(""), first);
  ASSERT_TRUE(coordinator_
                  ->WithDirectory([&](Directory& directory, SteadyTime now) {
                    return directory.transfers().CompleteGrant({"b", 1}, first, GrantEnd::kFailed, false,
                                                               now);
                  })
                  .ok());
  EXPECT_NE(grant("q"), first);
}

TEST_F(CoordinatorTest, RepeatedGrantRequest_GetsOnlyLivingGrants) {
  Publish("x");
  for (const char* node : {"a", "b", "c"}) Register(node);
  coordinator_->WithDirectory([](Directory& directory, SteadyTime now) {
    for (const char* node : {"a", "b"}) {
      const ReplicaInfo replica{
          .id = absl::StrCat("of ", node), .artifact_id = "x", .state = ReplicaState::kReady};
      EXPECT_TRUE(directory.UpdateReplicas({node, 1}, 1, {replica}, now).ok());
    }
    return true;
  });
  const GrantRequest request{.receiver = {"c", 1}, .artifact_id = "x", .destination = {}, .sources = 2};
  const auto grants = [&](const std::string& id) {
    std::vector<std::string> ids;
    auto offer = coordinator_->RequestGrant(id, request);
    EXPECT_TRUE(offer.ok()) << offer.status();
    if (!offer.ok()) return ids;
    for (const OfferedGrant& granted : offer->granted) ids.push_back(granted.grant.grant_id);
    return ids;
  };
  const std::vector<std::string> both = grants("q");
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(grants("q"), both);
  coordinator_->WithDirectory([&](Directory& directory, SteadyTime now) {
    EXPECT_TRUE(
        directory.transfers().CompleteGrant({"c", 1}, both.front(), GrantEnd::kFailed, false, now).ok());
    return true;
  });
  coordinator_->Tick();  // notes what ended
  EXPECT_EQ(grants("q"), std::vector<std::string>{both.back()});
}

TEST_F(CoordinatorTest, Tick_ExpiresSilentNodes) {
  Register("a");
  for (int i = 0; i < 12; ++i) {
    now_ += absl::Seconds(1);
    coordinator_->Tick();
  }
  EXPECT_EQ(Nodes(), 0u);
}

TEST_F(CoordinatorTest, StoreWasStopped_TimeDoesNotCountAgainstNodes) {
  Register("a");
  now_ += absl::Hours(1);
  coordinator_->Tick();
  EXPECT_EQ(Nodes(), 1u);
  for (int i = 0; i < 12; ++i) {
    now_ += absl::Seconds(1);
    coordinator_->Tick();
  }
  EXPECT_EQ(Nodes(), 0u);
}

TEST_F(CoordinatorTest, SetWallClock_ChangesOnlyDurableTimes) {
  Register("a");
  for (const absl::Duration set_by : {absl::Hours(5), -absl::Hours(5)}) {
    clock_set_by_ = set_by;
    now_ += absl::Seconds(1);
    coordinator_->Tick();
    EXPECT_EQ(Nodes(), 1u);
    ASSERT_TRUE(coordinator_
                    ->Mutate("",
                             [&](const Directory&, absl::Time wall_now) -> absl::StatusOr<Change> {
                               EXPECT_EQ(wall_now, UnsetWallClock() + set_by);
                               return Change{};
                             })
                    .ok());
  }
  for (int i = 0; i < 12; ++i) {
    now_ += absl::Seconds(1);
    coordinator_->Tick();
  }
  EXPECT_EQ(Nodes(), 0u);
}

TEST_F(CoordinatorTest, Tick_PurgesPeriodically) {
  const int at_start = store_.purges;
  for (int i = 0; i < 15 * 60; ++i) {
    now_ += absl::Seconds(1);
    coordinator_->Tick();
  }
  EXPECT_EQ(store_.purges, at_start + 1);
}

TEST_F(CoordinatorTest, SilentNode_IsKeptWhileStoreIsBehind) {
  coordinator_
      ->WithDirectory([](Directory& directory, SteadyTime now) {
        return directory
            .RegisterNode({.node_id = "a", .name = "a", .incarnation = 1, .grpc_address = "a:1"}, {}, now)
            .status();
      })
      .IgnoreError();
  const auto nodes = [this] {
    return coordinator_->WithDirectory(
        [](Directory& directory, SteadyTime) { return directory.counts().nodes; });
  };
  const auto pass = [this](int seconds, bool behind) {
    for (int i = 0; i < seconds; ++i) {
      now_ += absl::Seconds(1);
      coordinator_->Tick(behind);
    }
  };
  pass(60, /*behind=*/true);
  EXPECT_EQ(nodes(), 1u) << "its heartbeats may wait in the queue";
  pass(10, /*behind=*/false);
  EXPECT_EQ(nodes(), 1u);
  pass(1, /*behind=*/false);
  EXPECT_EQ(nodes(), 0u) << "it was silent for its time to live while the store kept up";
}

}  // namespace
}  // namespace tensorcast::global_store::coordinator_test
