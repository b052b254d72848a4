#include "global_store/rollouts/rollout_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tensorcast::global_store {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kArtifact[] = "tc2:a";

class RolloutLogTest : public ::testing::Test {
 protected:
  static RolloutNode Node(const std::string& id) { return {.id = id, .name = absl::StrCat("name-", id)}; }
  static ReplicaInfo Replica(ReplicaState state, LocationKind kind = LocationKind::kCpu) {
    ReplicaInfo replica;
    replica.id = "r";
    replica.artifact_id = kArtifact;
    replica.location = {kind};
    replica.state = state;
    return replica;
  }
  void Ask(const std::string& receiver, const std::string& artifact = kArtifact, bool first = true) {
    log_.NoteAsked(artifact, Node(receiver), first, now_);
  }
  void Complete(const std::string& receiver, const std::string& source, uint64_t bytes, bool succeeded,
                const std::string& transfer = "t") {
    log_.NoteCompleted(kArtifact, receiver, Node(source), "tcp", {.bytes = bytes, .transfer_id = transfer},
                       succeeded, now_);
  }
  RolloutHop HopTo(const std::string& receiver, const std::string& artifact = kArtifact) {
    const std::vector<RolloutHop> hops = log_.HopsOf(artifact);
    const auto found =
        std::ranges::find_if(hops, [&](const RolloutHop& hop) { return hop.receiver->id == receiver; });
    EXPECT_NE(found, hops.end()) << "no hop to " << receiver;
    return found == hops.end() ? RolloutHop{.receiver = std::make_shared<RolloutNode>()} : *found;
  }

  RolloutLog log_{8};
  SteadyTime now_ = SteadyTime() + absl::Seconds(1000);
};

TEST_F(RolloutLogTest, SourceWithMostBytes_IsNamed) {
  const SteadyTime begun = now_;
  Ask("b");
  log_.NoteGiven(kArtifact, "b", Node("a"), "ucx");
  EXPECT_EQ(HopTo("b").source->name, "name-a") << "until bytes are known";
  now_ += absl::Seconds(3);
  Ask("b", kArtifact, /*first=*/false);
  log_.NoteGiven(kArtifact, "b", Node("c"), "tcp");
  Complete("b", "a", 10, false);
  Complete("b", "c", 30, true);
  Complete("b", "d", 20, true);
  const RolloutHop hop = HopTo("b");
  EXPECT_EQ(hop.source->name, "name-c");
  EXPECT_EQ(hop.lane, "tcp");
  EXPECT_EQ(hop.bytes, 60);
  EXPECT_EQ(hop.begun, begun);
  EXPECT_EQ(hop.ended, now_);
  EXPECT_EQ(hop.transfer_id, "t");
  EXPECT_FALSE(hop.failed);
}

TEST_F(RolloutLogTest, ReadyReplica_EndsTransferWithoutGrant) {
  Ask("b");
  now_ += absl::Seconds(1);
  log_.NoteReplica("b", Replica(ReplicaState::kFilling), now_);
  log_.NoteReplica("b", Replica(ReplicaState::kReady, LocationKind::kDisk), now_);
  EXPECT_FALSE(HopTo("b").HasEnded());
  log_.NoteReplica("b", Replica(ReplicaState::kReady), now_);
  EXPECT_EQ(HopTo("b").ended, now_);
  EXPECT_EQ(HopTo("b").source, nullptr);
}

TEST_F(RolloutLogTest, FailedReplica_FailsUntilTransferGoesOn) {
  Ask("b");
  log_.NoteReplica("b", Replica(ReplicaState::kFailed), now_);
  EXPECT_TRUE(HopTo("b").failed);
  Ask("b", kArtifact, /*first=*/false);
  EXPECT_FALSE(HopTo("b").failed) << "another replica of the node had failed";
  EXPECT_FALSE(HopTo("b").HasEnded());
  log_.NoteNodeGone("b", now_);
  EXPECT_TRUE(HopTo("b").failed);
  EXPECT_TRUE(HopTo("b").HasEnded());
}

TEST_F(RolloutLogTest, InventoryWithoutReplica_FailsTransfer) {
  Ask("b");
  Ask("b", "tc2:other");
  log_.NoteInventory("b", {Replica(ReplicaState::kFilling)}, now_);
  EXPECT_FALSE(HopTo("b").HasEnded()) << "it fills";
  EXPECT_TRUE(HopTo("b", "tc2:other").failed);
  log_.NoteInventory("b", {Replica(ReplicaState::kReady, LocationKind::kDisk)}, now_);
  EXPECT_TRUE(HopTo("b").failed) << "a packed replica is not of a transfer";
  Ask("b", kArtifact, /*first=*/false);
  log_.NoteInventory("b", {Replica(ReplicaState::kReady)}, now_);
  EXPECT_FALSE(HopTo("b").failed);
  log_.NoteInventory("b", {}, now_);
  EXPECT_FALSE(HopTo("b").failed) << "it had ended well";
}

TEST_F(RolloutLogTest, ForgottenArtifact_IsNotUnderWay) {
  Ask("b");
  Ask("b", "tc2:other");
  log_.Forget(kArtifact);
  log_.NoteNodeGone("b", now_);
  EXPECT_TRUE(HopTo("b", "tc2:other").failed);
  EXPECT_THAT(log_.HopsOf(kArtifact), IsEmpty());
}

TEST_F(RolloutLogTest, NextTransfer_ReplacesEndedOne) {
  Ask("b");
  Complete("b", "a", 10, true, "first");
  now_ += absl::Minutes(1);
  Ask("b");
  EXPECT_EQ(HopTo("b").begun, now_);
  EXPECT_EQ(HopTo("b").bytes, 0);
  Complete("b", "a", 20, true, "second");
  Complete("b", "c", 99, true, "first");
  EXPECT_EQ(HopTo("b").bytes, 20) << "a late word of the first";
}

TEST_F(RolloutLogTest, WaitingReceiver_KeepsItsFirstRequest) {
  const SteadyTime begun = now_;
  Ask("b");
  now_ += absl::Seconds(5);
  Ask("b");
  EXPECT_EQ(HopTo("b").begun, begun);
}

TEST_F(RolloutLogTest, FullLog_ForgetsArtifactWithoutNewReceivers) {
  Ask("b", "old");
  Ask("c", "old");
  for (int i = 0; i < 6; ++i) Ask(absl::StrCat("n", i), "new");
  EXPECT_EQ(log_.size(), 8);
  Ask("one more", "new");
  EXPECT_THAT(log_.HopsOf("old"), IsEmpty());
  EXPECT_THAT(log_.HopsOf("new"), SizeIs(7));
  EXPECT_EQ(log_.forgotten(), 2);
  Ask("eighth", "new");
  Ask("ninth", "new");
  EXPECT_THAT(log_.HopsOf("new"), SizeIs(8)) << "no other has to go";
  EXPECT_EQ(log_.forgotten(), 3);
  Ask("b", "newest");
  EXPECT_THAT(log_.HopsOf("newest"), SizeIs(1));
  EXPECT_EQ(log_.size(), 1);
}

TEST_F(RolloutLogTest, DeletedArtifact_IsForgotten) {
  Ask("b");
  log_.Forget(kArtifact);
  EXPECT_EQ(log_.size(), 0);
  Complete("b", "a", 1, true);
  EXPECT_EQ(log_.size(), 0) << "a word of a transfer that is not known makes none";
}

// 10,000 nodes receive eight versions one after another: the bound holds, and what is kept costs little.
TEST_F(RolloutLogTest, LargeFleet_StaysWithinBounds) {
  constexpr int kNodes = 10000;
  constexpr int kVersions = 8;
  RolloutLog log;
  const size_t before = mallinfo2().uordblks;
  const SteadyTime began = SteadyNow();
  for (int version = 0; version < kVersions; ++version) {
    const std::string artifact = absl::StrCat("tc2:", std::string(60, 'a'), version);
    for (int node = 1; node <= kNodes; ++node) {
      const RolloutNode receiver = Node(absl::StrCat("00000000-0000-4000-8000-", 100000000000 + node));
      const RolloutNode source = Node(absl::StrCat("00000000-0000-4000-8000-", 100000000000 + node / 4));
      log.NoteAsked(artifact, receiver, true, now_);
      log.NoteGiven(artifact, receiver.id, source, "tcp");
      log.NoteCompleted(artifact, receiver.id, source, "tcp",
                        {.bytes = 1 << 30, .transfer_id = "11aa22bb-0000-4000-8000-000000000001"}, true,
                        now_);
    }
  }
  const absl::Duration took = SteadyNow() - began;
  const size_t bytes = mallinfo2().uordblks - before;
  EXPECT_LE(log.size(), RolloutLog::kMaxHops);
  EXPECT_EQ(log.size(), 60000u) << "six versions fit whole";
  EXPECT_EQ(log.forgotten(), 20000u);
  RecordProperty("bytes", std::to_string(bytes));
  RecordProperty("microseconds", std::to_string(absl::ToInt64Microseconds(took)));
  EXPECT_LT(bytes, 64u << 20) << log.size() << " hops";
}

}  // namespace
}  // namespace tensorcast::global_store
