#include "daemon/global_store_link/known_keys.h"

#include <filesystem>
#include <fstream>

#include "base/steady_time.h"
#include "base/testing/temp_folder.h"
#include "daemon/global_store_link/fake_global_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::daemon {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

v1::Key KeyOf(const std::string& name, const std::string& artifact_id, uint64_t revision) {
  v1::Key key;
  key.set_name(name);
  key.set_artifact_id(artifact_id);
  key.set_revision(revision);
  return key;
}

class KnownKeysTest : public ::testing::Test {
 protected:
  void SetUp() override { file_ = folder_.path() + "/known_keys"; }

  void Bind(const std::string& name, const std::string& artifact_id, uint64_t revision) {
    store_.With(
        [&](FakeGlobalStore& store) { return store.keys[name] = KeyOf(name, artifact_id, revision); });
  }
  void GoAway() {
    store_.With([](FakeGlobalStore& store) { store.down = absl::UnavailableError("the one at there"); });
  }
  void ComeBack() {
    store_.With([](FakeGlobalStore& store) { store.down = absl::OkStatus(); });
  }
  // "artifact", "artifact?" when it is unconfirmed, or the code of the error.
  static std::string Meaning(KnownKeys& keys, const std::string& name) {
    const auto resolved = keys.Resolve(RequestContext::Background(absl::Seconds(20)), name);
    if (!resolved.ok()) return absl::StatusCodeToString(resolved.status().code());
    return resolved->key.artifact_id() + (resolved->unconfirmed ? "?" : "");
  }

  const tensorcast::testing::TempFolder folder_;
  std::string file_;
  FakeGlobalStore store_;
};

TEST_F(KnownKeysTest, AreTheGlobalStoresWordWhileItAnswersAndItsLastWordWhileItDoesNot) {
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

TEST_F(KnownKeysTest, ThatThisNodeNeverSawFailWithTheirNameAndTheGlobalStores) {
  KnownKeys keys(&store_, file_);
  GoAway();
  const absl::Status status = keys.Resolve(RequestContext::Background(absl::Seconds(20)), "k").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("key k"), HasSubstr("the one at there")));
}

TEST_F(KnownKeysTest, ThatTheGlobalStoreSaysAreGoneAreForgotten) {
  KnownKeys keys(&store_, file_);
  Bind("k", "a1", 1);
  EXPECT_EQ(Meaning(keys, "k"), "a1");
  store_.With([](FakeGlobalStore& store) { return store.keys.erase("k"); });
  EXPECT_EQ(Meaning(keys, "k"), "NOT_FOUND");
  GoAway();
  EXPECT_EQ(Meaning(keys, "k"), "UNAVAILABLE");
}

TEST_F(KnownKeysTest, AnAnswerThatWasOvertakenDoesNotUndoTheNewerOne) {
  KnownKeys keys(&store_, file_);
  const SteadyTime before = SteadyNow();
  keys.Note(KeyOf("k", "a2", 2), before);
  keys.Note(KeyOf("k", "a1", 1), before);
  keys.Forget("k", before);
  GoAway();
  EXPECT_EQ(Meaning(keys, "k"), "a2?");
  // Asked after that was noted: the global store lost its database and counts from one again.
  keys.Note(KeyOf("k", "a9", 1), SteadyNow());
  EXPECT_EQ(Meaning(keys, "k"), "a9?");
}

TEST_F(KnownKeysTest, OutliveTheDaemonInItsStateDirectory) {
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

TEST_F(KnownKeysTest, AFileThatIsDamagedOrCannotBeWrittenCostsNothingElse) {
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

TEST_F(KnownKeysTest, AreBoundedAndTheLastUsedStay) {
  KnownKeys keys(&store_, file_, /*most=*/2);
  GoAway();
  keys.Note(KeyOf("one", "a1", 1), SteadyNow());
  keys.Note(KeyOf("two", "a2", 1), SteadyNow());
  EXPECT_EQ(Meaning(keys, "one"), "a1?");
  keys.Note(KeyOf("three", "a3", 1), SteadyNow());
  EXPECT_EQ(Meaning(keys, "two"), "UNAVAILABLE");
  EXPECT_EQ(Meaning(keys, "one"), "a1?");
  keys.Save();
  KnownKeys next(&store_, file_, /*most=*/1);
  EXPECT_EQ(Meaning(next, "one"), "a1?");
  EXPECT_EQ(Meaning(next, "three"), "UNAVAILABLE");
}

}  // namespace
}  // namespace tensorcast::daemon
