// Gets that come before the bytes do: they wait for a node that is about to have them, and end without one.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/steady_time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/test_cluster.h"

namespace tensorcast::testing {
namespace {

using ::testing::HasSubstr;

// A has the artifact; b, on another host, pulls it to its disk, where no node reads what fills, and is held
// in the middle; c shares b's host and may use the local lane only, so it can have the bytes from b alone.
class Waiting : public ::testing::Test {
 protected:
  void SetUp() override {
    auto put = a_.client().Import(Soon(), cluster_.WriteModel("model", artifact_), {});
    ASSERT_TRUE(put.ok()) << put.status();
    id_ = put->artifact_id;
    b_.gate().Hold(/*pass=*/2);
    filling_ = b_.client().StartGet(Soon(), id_, {.location = "disk", .attach = false});
    b_.gate().AwaitHeld(1);
  }

  // Of c, from b; told_ has what its progress said it waits for.
  std::unique_ptr<client::PendingGet> StartWaiting(const RequestContext& context) {
    client::GetOptions options{.lane = "local"};
    options.on_progress = [this](const TransferProgress& progress) {
      absl::MutexLock lock(&mutex_);
      if (!progress.waiting_for.empty()) told_ = progress.waiting_for;
    };
    return c_.client().StartGet(context, id_, options);
  }
  std::string Told() {
    absl::MutexLock lock(&mutex_);
    return told_;
  }

  static void OnOneHost(daemon::DaemonOptions& options) { options.host_id = "the host of b and c"; }

  TestCluster cluster_;
  TestNode& a_ = cluster_.AddNode("a", OnItsOwnHost);
  TestNode& b_ = cluster_.AddNode("b", OnOneHost);
  TestNode& c_ = cluster_.AddNode("c", OnOneHost);
  const TestArtifact artifact_ = MakeChunkedArtifact(1, 9, kTestChunkBytes);
  std::string id_;
  std::unique_ptr<client::PendingGet> filling_;

 private:
  absl::Mutex mutex_;
  std::string told_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(Waiting, GetDuringFillingOfOnlyReplica_WaitsAndReportsIt) {
  auto get = StartWaiting(Soon());
  ASSERT_TRUE(Eventually([&] { return !Told().empty(); }));
  EXPECT_THAT(Told(), HasSubstr("fill"));
  EXPECT_THAT(Told(), HasSubstr(" on node b"));
  b_.gate().Release();
  auto replica = get->Wait(SteadyNow() + absl::Seconds(30));
  ASSERT_TRUE(replica.ok()) << replica.status();
  EXPECT_TRUE(std::ranges::equal((*replica)->image(), artifact_.image));
}

TEST_F(Waiting, AwaitedTransferFails_WaitingGetFailsBeforeItsDeadline) {
  auto get = StartWaiting(Soon());
  ASSERT_TRUE(Eventually([&] { return !Told().empty(); }));
  filling_->Cancel();
  const absl::Status status = get->Wait(SteadyNow() + absl::Seconds(30)).status();
  EXPECT_FALSE(status.ok());
  EXPECT_FALSE(absl::IsDeadlineExceeded(status)) << status;
}

TEST_F(Waiting, ArtifactDeletedDuringWait_GetIsNotFound) {
  auto get = StartWaiting(Soon());
  ASSERT_TRUE(Eventually([&] { return !Told().empty(); }));
  ASSERT_TRUE(a_.admin().DeleteArtifact(Soon(), id_).ok());
  const absl::Status status = get->Wait(SteadyNow() + absl::Seconds(30)).status();
  EXPECT_TRUE(absl::IsNotFound(status) || absl::IsCancelled(status)) << status;
  b_.gate().Release();
}

TEST_F(Waiting, WaitingGet_DoesNotOccupyIngestSlot) {
  TestNode& d = cluster_.AddNode("d", [](daemon::DaemonOptions& options) {
    OnOneHost(options);
    options.engine.max_concurrent_ingests = 1;
  });
  auto get = d.client().StartGet(Soon(), id_, {.lane = "local", .attach = false});
  ASSERT_TRUE(Eventually([&] { return d.admin().GetStatus(Soon())->active_transfers() == 1; }));
  const TestArtifact other = MakeChunkedArtifact(2, 3, kTestChunkBytes);
  auto put = d.client().Import(Soon(), cluster_.WriteModel("other", other), {});
  EXPECT_TRUE(put.ok()) << put.status();
  b_.gate().Release();
  EXPECT_TRUE(get->Wait(SteadyNow() + absl::Seconds(30)).ok());
}

TEST(Restarted, GetAfterGlobalStoreRestart_WaitsForNodesToRegister) {
  TestCluster cluster;
  TestNode& a = cluster.AddNode("a", OnItsOwnHost);
  TestNode& b = cluster.AddNode("b", OnItsOwnHost);
  const TestArtifact artifact = MakeChunkedArtifact(3, 3, kTestChunkBytes);
  auto put = a.client().Import(Soon(), cluster.WriteModel("model", artifact), {});
  ASSERT_TRUE(put.ok()) << put.status();
  // Often, since which node is back first is chance.
  for (int i = 0; i < 5; ++i) {
    cluster.RestartGlobalStore();
    auto replica = b.client().Get(Soon(), put->artifact_id, {});
    ASSERT_TRUE(replica.ok()) << replica.status();
    const std::string made = (*replica)->replica_id();
    replica->reset();
    ASSERT_TRUE(Eventually([&] { return b.admin().EvictReplica(Soon(), made, /*force=*/true).ok(); }));
  }
}

}  // namespace
}  // namespace tensorcast::testing
