#include "daemon/global_store_link/known_keys.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <utility>

#include "base/steady_time.h"
#include "base/testing/temp_folder.h"
#include "daemon/global_store_link/fake_global_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::daemon::known_keys_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

// Bound so many seconds after the first second; 0: the time is not told.
v1::Key KeyOf(const std::string& name, const std::string& artifact_id, uint64_t revision, int bound = 0) {
  v1::Key key;
  key.set_name(name);
  key.set_artifact_id(artifact_id);
  key.set_revision(revision);
  if (bound > 0) key.mutable_updated()->set_seconds(bound);
  return key;
}

// Its answers are under way for as long as `on_the_way` runs.
class SlowGlobalStore : public FakeGlobalStore {
 public:
  std::function<void()> on_the_way;

  absl::StatusOr<v1::Key> ResolveKey(const RequestContext& context, const std::string& key,
                                     std::string* manifest) override {
    absl::StatusOr<v1::Key> answer = FakeGlobalStore::ResolveKey(context, key, manifest);
    if (on_the_way) std::exchange(on_the_way, nullptr)();
    return answer;
  }
};

class KnownKeysTest : public ::testing::Test {
 protected:
  void SetUp() override { file_ = folder_.path() + "/known_keys"; }

  void Bind(const std::string& name, const std::string& artifact_id, uint64_t revision, int bound = 0) {
    store_.With(
        [&](FakeGlobalStore& store) { return store.keys[name] = KeyOf(name, artifact_id, revision, bound); });
  }
  void Delete(const std::string& name) {
    store_.With([&](FakeGlobalStore& store) { return store.keys.erase(name); });
  }
  void GoAway() {
    store_.With([](FakeGlobalStore& store) { store.down = absl::UnavailableError("the one at there"); });
  }
  void ComeBack() {
    store_.With([](FakeGlobalStore& store) { store.down = absl::OkStatus(); });
  }
  // "artifact", "artifact?" when it is unconfirmed, or the code of the error.
  static std::string Meaning(KnownKeys& keys, const std::string& name, bool confirmed = false) {
    const auto resolved = keys.Resolve(RequestContext::Background(absl::Seconds(20)), name, confirmed);
    if (!resolved.ok()) return absl::StatusCodeToString(resolved.status().code());
    return resolved->key().artifact_id() + (resolved->unconfirmed() ? "?" : "");
  }

  const tensorcast::testing::TempFolder folder_;
  std::string file_;
  SlowGlobalStore store_;
};

using Order = KnownKeys::Order;

TEST_F(KnownKeysTest, Resolve_FallsBackToLastAnswerWhenStoreIsAway) {
  KnownKeys keys(&store_, file_);
  Bind("k", "a1", 1);
  EXPECT_EQ(Meaning(keys, "k"), "a1");
  Bind("k", "a2", 2);
  EXPECT_EQ(Meaning(keys, "k"), "a2");
  GoAway();
  EXPECT_EQ(Meaning(keys, "k"), "a2?");
  ComeBack();
  Bind("k", "a3", 3);
  EXPECT_EQ(Meaning(keys, "k"), "a3");
}

TEST_F(KnownKeysTest, Resolve_BringsManifest) {
  KnownKeys keys(&store_, file_);
  Bind("k", "a1", 1);
  store_.With([](FakeGlobalStore& store) { store.manifests["a1"] = "manifest"; });
  std::string manifest;
  EXPECT_TRUE(keys.Resolve(RequestContext::Background(absl::Seconds(20)), "k", false, &manifest).ok());
  EXPECT_EQ(manifest, "manifest");
}

// The manifest would not be that of the artifact that is returned.
TEST_F(KnownKeysTest, Resolve_DropsManifestOfAnAnswerNotPassedOn) {
  KnownKeys keys(&store_, file_);
  Bind("k", "a1", 1);
  ASSERT_EQ(Meaning(keys, "k"), "a1");
  store_.With([](FakeGlobalStore& store) { store.manifests["a1"] = "manifest"; });
  store_.on_the_way = [&] { keys.Note(KeyOf("k", "a2", 2), SteadyNow()); };
  std::string manifest;
  const auto resolved = keys.Resolve(RequestContext::Background(absl::Seconds(20)), "k", false, &manifest);
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->key().artifact_id(), "a2");
  EXPECT_EQ(manifest, "");
}

TEST_F(KnownKeysTest, ResolveUnknownKey_FailsWithKeyAndStoreWhenStoreIsAway) {
  KnownKeys keys(&store_, file_);
  GoAway();
  const absl::Status status = keys.Resolve(RequestContext::Background(absl::Seconds(20)), "k").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("key k"), HasSubstr("the one at there")));
}

TEST_F(KnownKeysTest, KeyDeletedAtStore_IsForgotten) {
  KnownKeys keys(&store_, file_);
  Bind("k", "a1", 1);
  EXPECT_EQ(Meaning(keys, "k"), "a1");
  Delete("k");
  EXPECT_EQ(Meaning(keys, "k"), "NOT_FOUND");
  GoAway();
  EXPECT_EQ(Meaning(keys, "k"), "UNAVAILABLE");
}

TEST_F(KnownKeysTest, Resolve_RefusesUnconfirmedAnswerWhenConfirmedIsAsked) {
  KnownKeys keys(&store_, file_);
  Bind("k", "a1", 7);
  EXPECT_EQ(Meaning(keys, "k", /*confirmed=*/true), "a1");
  GoAway();
  const auto status = keys.Resolve(RequestContext::Background(absl::Seconds(20)), "k", true).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("resolve key k: "), HasSubstr("the one at there"),
                    HasSubstr("unconfirmed revision 7")));
}

TEST_F(KnownKeysTest, AnswerOvertakenByBind_IsReplacedByTheBinding) {
  KnownKeys keys(&store_, file_);
  Bind("k", "a1", 1);
  ASSERT_EQ(Meaning(keys, "k"), "a1");
  store_.on_the_way = [&] { keys.Note(KeyOf("k", "a2", 2), SteadyNow()); };
  EXPECT_EQ(Meaning(keys, "k"), "a2");
  GoAway();
  EXPECT_EQ(Meaning(keys, "k"), "a2?");
}

TEST_F(KnownKeysTest, AnswerOvertakenByPut_IsReplacedByTheBinding) {
  KnownKeys keys(&store_, file_);
  Bind("k", "a1", 1, /*bound=*/10);
  ASSERT_EQ(Meaning(keys, "k"), "a1");
  store_.on_the_way = [&] { keys.NotePut(KeyOf("k", "a2", 2), SteadyNow()); };
  EXPECT_EQ(Meaning(keys, "k"), "a2");
  GoAway();
  EXPECT_EQ(Meaning(keys, "k"), "a2?");
}

TEST_F(KnownKeysTest, AnswerOvertakenByDeletion_IsAskedForAgain) {
  KnownKeys keys(&store_, file_);
  Bind("k", "a1", 1);
  ASSERT_EQ(Meaning(keys, "k"), "a1");
  store_.on_the_way = [&] {
    Delete("k");
    keys.NoteDeleted("k", SteadyNow());
  };
  EXPECT_EQ(Meaning(keys, "k"), "NOT_FOUND");
  GoAway();
  EXPECT_EQ(Meaning(keys, "k"), "UNAVAILABLE");
}

TEST_F(KnownKeysTest, NotFoundOvertakenByBind_IsAskedForAgain) {
  KnownKeys keys(&store_, file_);
  store_.on_the_way = [&] {
    Bind("k", "a1", 1);
    keys.Note(KeyOf("k", "a1", 1), SteadyNow());
  };
  EXPECT_EQ(Meaning(keys, "k"), "a1");
}

TEST_F(KnownKeysTest, LateAnswerAfterDeletion_DoesNotBringTheKeyBack) {
  KnownKeys keys(&store_, file_);
  const SteadyTime before = SteadyNow();
  keys.NoteDeleted("deleted", before);
  EXPECT_EQ(keys.Note(KeyOf("deleted", "a1", 1), before), Order::kCrossed);
  // Of a key that was never known nothing is kept when it is found missing.
  keys.Forget("missing", before);
  keys.Note(KeyOf("missing", "a1", 1), before);
  GoAway();
  EXPECT_EQ(Meaning(keys, "deleted"), "UNAVAILABLE");
  EXPECT_EQ(Meaning(keys, "missing"), "UNAVAILABLE");
}

TEST_F(KnownKeysTest, DeletionAtTimeOfBind_MakesKeyUnknownUntilConfirmed) {
  KnownKeys keys(&store_, file_);
  Bind("k", "a2", 2);
  const SteadyTime before = SteadyNow();
  keys.Note(KeyOf("k", "a2", 2), before);
  keys.NoteDeleted("k", before);
  GoAway();
  EXPECT_EQ(Meaning(keys, "k"), "UNAVAILABLE");
  ComeBack();
  EXPECT_EQ(Meaning(keys, "k"), "a2") << "it was bound after the deletion";
}

TEST_F(KnownKeysTest, RestoredGlobalStore_DoesNotLowerKnownRevision) {
  KnownKeys keys(&store_, file_);
  Bind("k", "a7", 7, /*bound=*/70);
  ASSERT_EQ(Meaning(keys, "k"), "a7");
  Bind("k", "a5", 5, /*bound=*/50);
  EXPECT_EQ(Meaning(keys, "k"), "a7?");
  const auto status = keys.Resolve(RequestContext::Background(absl::Seconds(20)), "k", true).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("has revision 5"), HasSubstr("has seen revision 7"), HasSubstr("bind the key")));
  EXPECT_EQ(keys.NoteWatched(KeyOf("k", "a5", 5, 50), SteadyTime::InfinitePast()), Order::kOlder);
  // Bound anew, it has a revision that was used before, and a later time.
  Bind("k", "b6", 6, /*bound=*/80);
  EXPECT_EQ(Meaning(keys, "k", /*confirmed=*/true), "b6");
}

TEST_F(KnownKeysTest, RestoredGlobalStore_DoesNotBringADeletedKeyBack) {
  KnownKeys keys(&store_, file_);
  Bind("k", "a7", 7, /*bound=*/70);
  ASSERT_EQ(Meaning(keys, "k"), "a7");
  keys.NoteDeleted("k", SteadyNow());
  EXPECT_EQ(Meaning(keys, "k"), "UNAVAILABLE");
  Bind("k", "a8", 8, /*bound=*/90);
  EXPECT_EQ(Meaning(keys, "k"), "a8");
}

TEST_F(KnownKeysTest, PutToRestoredGlobalStore_IsKnownOnceConfirmed) {
  for (const int bound : {0, 70}) {  // the time of what was known before; 0: from a put, too
    KnownKeys keys(&store_, file_ + std::to_string(bound));
    keys.Note(KeyOf("k", "a7", 7, bound), SteadyNow());
    keys.NotePut(KeyOf("k", "b6", 6), SteadyNow());
    GoAway();
    EXPECT_EQ(Meaning(keys, "k"), "UNAVAILABLE") << "it may be a put that was repeated";
    ComeBack();
    Bind("k", "a5", 5, /*bound=*/50);
    EXPECT_EQ(Meaning(keys, "k"), "UNAVAILABLE");
    Bind("k", "b6", 6, /*bound=*/80);
    EXPECT_EQ(Meaning(keys, "k"), "b6");
  }
}

TEST_F(KnownKeysTest, RepeatedPut_DoesNotUndoALaterBinding) {
  KnownKeys keys(&store_, file_);
  Bind("k", "a7", 7, /*bound=*/70);
  ASSERT_EQ(Meaning(keys, "k"), "a7");
  keys.NotePut(KeyOf("k", "a6", 6), SteadyNow());
  EXPECT_EQ(Meaning(keys, "k"), "a7");
  GoAway();
  EXPECT_EQ(Meaning(keys, "k"), "a7?");
}

TEST_F(KnownKeysTest, WatchedDeletion_IsUndoneOnlyByLaterBinding) {
  KnownKeys keys(&store_, file_);
  const SteadyTime began = SteadyNow();
  EXPECT_EQ(keys.NoteWatched(KeyOf("k", "a1", 1, 10), began), Order::kCurrent);
  EXPECT_EQ(keys.NoteDeletion(KeyOf("k", "a1", 1, 11)), Order::kCurrent);
  EXPECT_EQ(keys.NoteWatched(KeyOf("k", "a1", 1, 10), began), Order::kOlder);
  GoAway();
  EXPECT_EQ(Meaning(keys, "k"), "UNAVAILABLE");
  EXPECT_EQ(keys.NoteWatched(KeyOf("k", "a2", 2, 20), began), Order::kCurrent);
  EXPECT_EQ(keys.NoteDeletion(KeyOf("k", "a1", 1, 11)), Order::kOlder);
  EXPECT_EQ(Meaning(keys, "k"), "a2?");
}

TEST_F(KnownKeysTest, ListKeys_UpdatesOnlyKnownKeys) {
  KnownKeys keys(&store_, file_);
  keys.Note(KeyOf("k", "a1", 1), SteadyNow());
  v1::ListKeysResponse listed;
  *listed.add_keys() = KeyOf("k", "a2", 2);
  *listed.add_keys() = KeyOf("other", "a3", 1);
  keys.NoteListed(listed.keys(), SteadyNow());
  GoAway();
  EXPECT_EQ(Meaning(keys, "k"), "a2?");
  EXPECT_EQ(Meaning(keys, "other"), "UNAVAILABLE");
}

// As a daemon that is killed: nothing is saved at the end.
TEST_F(KnownKeysTest, KilledDaemon_RestartsWithNewestKnownKeys) {
  {
    KnownKeys keys(&store_, file_);
    for (const char* name : {"bound", "put", "resolved", "deleted", "gone"}) {
      keys.Note(KeyOf(name, "old", 1, 10), SteadyNow());
    }
    keys.Save();
    keys.Note(KeyOf("bound", "new", 2, 20), SteadyNow());
    keys.NotePut(KeyOf("put", "new", 2), SteadyNow());
    Bind("resolved", "new", 2, 20);
    ASSERT_EQ(Meaning(keys, "resolved"), "new");
    keys.NoteDeleted("deleted", SteadyNow());
    ASSERT_EQ(Meaning(keys, "gone"), "NOT_FOUND");
  }
  GoAway();
  KnownKeys keys(&store_, file_);
  for (const char* name : {"bound", "put", "resolved"}) EXPECT_EQ(Meaning(keys, name), "new?") << name;
  for (const char* name : {"deleted", "gone"}) EXPECT_EQ(Meaning(keys, name), "UNAVAILABLE") << name;
  ComeBack();
  Bind("deleted", "old", 1, 10);
  EXPECT_EQ(Meaning(keys, "deleted"), "UNAVAILABLE") << "the global store was restored";
}

TEST_F(KnownKeysTest, KeysOfPreviousDaemon_AreSavedAgain) {
  {
    KnownKeys keys(&store_, file_);
    keys.Note(KeyOf("one", "old", 1), SteadyNow());
    keys.Note(KeyOf("two", "old", 1), SteadyNow());
    keys.Save();
  }
  {
    KnownKeys keys(&store_, file_);
    keys.Note(KeyOf("one", "new", 2), SteadyNow());
    keys.Save();
  }
  GoAway();
  KnownKeys keys(&store_, file_);
  EXPECT_EQ(Meaning(keys, "one"), "new?");
  EXPECT_EQ(Meaning(keys, "two"), "old?");
}

TEST_F(KnownKeysTest, KeyFileThatCannotBeReplaced_IsRemovedWhenOutdated) {
  KnownKeys keys(&store_, file_);
  keys.Note(KeyOf("k", "old", 1), SteadyNow());
  keys.Save();
  fs::create_directories(file_ + ".new/full");
  keys.Note(KeyOf("another", "a1", 1), SteadyNow());
  keys.Save();
  EXPECT_TRUE(fs::exists(file_)) << "what it has is right";
  keys.Note(KeyOf("k", "new", 2), SteadyNow());
  EXPECT_FALSE(fs::exists(file_));
}

TEST_F(KnownKeysTest, KnownKeys_SurviveRestartInStateFile) {
  {
    KnownKeys keys(&store_, file_);
    keys.Note(KeyOf("k", "a1", 7), SteadyNow());
    keys.Save();
  }
  GoAway();
  KnownKeys keys(&store_, file_);
  EXPECT_EQ(Meaning(keys, "k"), "a1?");
  EXPECT_EQ(fs::status(file_).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(KnownKeysTest, DamagedStateFile_IsIgnoredAndFailedSaveIsRetried) {
  std::ofstream(file_) << "no keys, but \xff\xff\xff";
  KnownKeys keys(&store_, file_);
  Bind("k", "a1", 1);
  EXPECT_EQ(Meaning(keys, "k"), "a1");
  fs::create_directory(file_ + ".new");
  keys.Save();
  fs::remove(file_ + ".new");
  keys.Save();
  GoAway();
  KnownKeys next(&store_, file_);
  EXPECT_EQ(Meaning(next, "k"), "a1?") << "what could not be written is written by the next Save";
}

TEST_F(KnownKeysTest, KnownKeys_KeepMostRecentlyUsedUpToMax) {
  KnownKeys keys(&store_, file_, /*max=*/2);
  GoAway();
  keys.Note(KeyOf("one", "a1", 1), SteadyNow());
  keys.Note(KeyOf("two", "a2", 1), SteadyNow());
  EXPECT_EQ(Meaning(keys, "one"), "a1?");
  keys.Note(KeyOf("three", "a3", 1), SteadyNow());
  EXPECT_EQ(Meaning(keys, "two"), "UNAVAILABLE");
  EXPECT_EQ(Meaning(keys, "one"), "a1?");
  keys.Save();
  KnownKeys next(&store_, file_, /*max=*/1);
  EXPECT_EQ(Meaning(next, "one"), "a1?");
  EXPECT_EQ(Meaning(next, "three"), "UNAVAILABLE");
}

}  // namespace
}  // namespace tensorcast::daemon::known_keys_test
