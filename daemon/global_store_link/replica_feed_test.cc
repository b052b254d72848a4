#include "daemon/global_store_link/replica_feed.h"

#include "core/artifact/test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "otel/api/span.h"
#include "otel/api/testing/recorded_telemetry.h"

namespace tensorcast::daemon::replica_feed_test {
namespace {

ReplicaInfo Info(const std::string& id, ReplicaState state) {
  return {.id = id, .artifact_id = "tc2:a", .state = state};
}

TEST(ReplicaFeed, SeveralChangesOfReplica_AreReportedAsLatestState) {
  ReplicaFeed feed(nullptr);
  feed.OnReplicaChanged(Info("one", ReplicaState::kFilling), nullptr);
  feed.OnReplicaChanged(Info("two", ReplicaState::kFilling), nullptr);
  feed.OnReplicaChanged(Info("one", ReplicaState::kReady), nullptr);
  const std::vector<ReplicaChange> taken = feed.Take(10);
  ASSERT_EQ(taken.size(), 2);
  EXPECT_EQ(taken[0].replica.id, "one");
  EXPECT_EQ(taken[0].replica.state, ReplicaState::kReady);
  EXPECT_EQ(taken[1].replica.id, "two");
  EXPECT_TRUE(feed.empty());
}

TEST(ReplicaFeed, Take_ReturnsOldestChangesFirst) {
  ReplicaFeed feed(nullptr);
  for (const char* id : {"a", "b", "c"}) feed.Touch(Info(id, ReplicaState::kReady));
  EXPECT_EQ(feed.Take(2).size(), 2);
  const std::vector<ReplicaChange> rest = feed.Take(2);
  ASSERT_EQ(rest.size(), 1);
  EXPECT_EQ(rest[0].replica.id, "c");
}

TEST(ReplicaFeed, ChangeInSpan_NamesItsCause) {
  ReplicaFeed feed(nullptr);
  const TraceContext request = TraceContext::NewRoot();
  otel::testing::RecordedTelemetry recorded;
  {
    const otel::Scope scope(request);
    feed.Touch(Info("a", ReplicaState::kReady));
  }
  feed.Touch(Info("b", ReplicaState::kReady));
  const std::vector<ReplicaChange> taken = feed.Take(2);
  ASSERT_EQ(taken.size(), 2);
  EXPECT_EQ(taken[0].cause.span_id, request.span_id);
  EXPECT_FALSE(taken[1].cause.IsValid());
}

TEST(ReplicaFeed, BeginOfFilling_GoesWithTheNextChange) {
  int woken = 0;
  ReplicaFeed feed(nullptr);
  feed.SetWake([&] { ++woken; });
  ReplicaInfo replica = Info("a", ReplicaState::kAllocating);
  replica.chunks_total = 2;
  feed.OnReplicaChanged(replica, nullptr);
  replica.state = ReplicaState::kFilling;  // the request for sources names it
  feed.OnReplicaChanged(replica, nullptr);
  EXPECT_EQ(woken, 0);
  EXPECT_FALSE(feed.empty());
  replica.chunks_present = 1;  // it was partial
  feed.OnReplicaChanged(replica, nullptr);
  EXPECT_EQ(woken, 1);
  replica.state = ReplicaState::kReady;
  feed.OnReplicaChanged(replica, nullptr);
  EXPECT_EQ(woken, 2);
}

TEST(ReplicaFeed, ReadyDifference_GoesWithTheNextChange) {
  int woken = 0;
  ReplicaFeed feed(nullptr);
  feed.SetWake([&] { ++woken; });
  ImageLayout layout;
  for (const char* const name : {"index", "records"}) {
    layout.tensors.push_back({.name = name, .dtype = DType::kU8, .shape = {16}, .nbytes = 16});
  }
  ASSERT_TRUE(AssignOffsets(layout).ok());
  const auto version = [&layout](const char* name) {
    return Manifest::Create(layout, tensorcast::testing::NoDigests(layout), {{"version", name}},
                            ArtifactKind::kTensors)
        .value()
        ->id();
  };
  const auto difference =
      Manifest::Create(layout, tensorcast::testing::NoDigests(layout),
                       {{"base", version("1")}, {"target", version("2")}}, ArtifactKind::kDifference);
  ASSERT_TRUE(difference.ok()) << difference.status();
  feed.OnReplicaChanged(Info("d", ReplicaState::kReady), *difference);
  EXPECT_EQ(woken, 0);
  EXPECT_FALSE(feed.empty());
  feed.OnReplicaChanged(Info("d", ReplicaState::kGone), *difference);
  EXPECT_EQ(woken, 1);
}

TEST(ReplicaFeed, ReplicaWithoutArtifactId_IsNotReported) {
  ReplicaFeed feed(nullptr);
  feed.OnReplicaChanged({.id = "first-ingest"}, nullptr);
  EXPECT_TRUE(feed.empty());
}

TEST(ReplicaFeed, FeedOverflow_IsReportedOnce) {
  ReplicaFeed feed(nullptr, 2);
  for (const char* id : {"a", "b", "c"}) feed.Touch(Info(id, ReplicaState::kReady));
  EXPECT_TRUE(feed.empty());
  EXPECT_TRUE(feed.TakeOverflow());
  EXPECT_FALSE(feed.TakeOverflow());
}

TEST(ReplicaFeed, ReplicaFeed_WakesLinkAndPassesTransfersOn) {
  int woken = 0;
  std::string transfer;
  ReplicaFeed feed([&](const TransferReport& report) { transfer = report.transfer_id; });
  feed.Touch(Info("before the link listens", ReplicaState::kReady));
  feed.SetWake([&] { ++woken; });
  feed.Touch(Info("a", ReplicaState::kReady));
  feed.OnTransferEnded({.transfer_id = "t"});
  EXPECT_EQ(woken, 1);
  EXPECT_EQ(transfer, "t");
}

}  // namespace
}  // namespace tensorcast::daemon::replica_feed_test
