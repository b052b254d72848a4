#include "daemon/serving/possession.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/device/fake_device.h"
#include "core/testing/scripted_source.h"
#include "core/testing/test_artifact.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::daemon::possession_test {
namespace {

// A node with one artifact, or with an image that only looks like it.
class Node {
 public:
  explicit Node(const testing::TestArtifact& artifact)
      : pool_(*HostPool::Create({.bytes = 32 << 20, .use_huge_pages = false, .prefault_threads = 0})),
        devices_(*CreateFakeRuntime({.device_count = 1, .device_bytes = 16 << 20})),
        engine_(*StoreEngine::Create({.node_id = "me",
                                      .host_pool = pool_.get(),
                                      .devices = devices_.get(),
                                      .staging_buffers = 2,
                                      .staging_buffer_bytes = 2 << 20})),
        possession_({.engine = engine_.get(),
                     .pool = pool_.get(),
                     .devices = devices_.get(),
                     .staging = *StagingBuffers::Create(pool_.get(), 1)}),
        artifact_(artifact) {}

  ReplicaInfo Make(Location location) {
    const RequestContext context = RequestContext::Background(absl::Seconds(20));
    auto pending = engine_->Ingest(
        context, {.manifest = artifact_.manifest,
                  .location = location,
                  .sources = std::make_shared<testing::ScriptedProvider>(
                      std::vector{testing::MakeControl(artifact_.image, testing::SourceScript{})})});
    EXPECT_TRUE(pending.ok()) << pending.status();
    EXPECT_TRUE((*pending)->Wait(context).ok());
    for (const ReplicaInfo& replica : engine_->ListReplicas()) {
      if (replica.location == location) return replica;
    }
    return {};
  }
  // As a node does that let its bytes go.
  void Overwrite(const ReplicaInfo& replica) { Overwrite(replica, 0, replica.image_bytes); }
  void Overwrite(const ReplicaInfo& replica, uint64_t offset, uint64_t bytes) {
    const auto lease = engine_->LeaseToServe(replica.id);
    ASSERT_TRUE(lease.ok()) << lease.status();
    for (const ConstHostSpan span : (*lease)->HostSpans(offset, bytes)) {
      std::fill_n(const_cast<std::byte*>(span.data()), span.size(), std::byte{7});
    }
  }
  absl::StatusOr<std::string> Prove(v1::ProveRequest question, const std::string& replica_id) {
    question.set_replica_id(replica_id);
    return possession_.Prove(question);
  }
  Possession& possession() { return possession_; }
  absl::StatusOr<bool> DigestAgain(const std::string& replica_id) {
    return possession_.DigestAgain(RequestContext::Background(absl::Seconds(20)), replica_id);
  }
  StoreEngine& engine() { return *engine_; }

 private:
  std::unique_ptr<HostPool> pool_;
  std::unique_ptr<DeviceRuntime> devices_;
  std::unique_ptr<StoreEngine> engine_;
  Possession possession_;
  const testing::TestArtifact& artifact_;
};

class PossessionTest : public ::testing::Test {
 protected:
  // As the global store asks: of the first bytes, the last ones, and some across two chunks.
  v1::ProveRequest Ask(const std::string& nonce) const {
    v1::ProveRequest question;
    question.set_artifact_id(artifact_.manifest->id());
    question.set_nonce(nonce);
    for (const uint64_t offset : {uint64_t{0}, kMinChunkBytes - 7, artifact_.image.size() - 4096}) {
      question.add_ranges()->set_offset(offset);
      question.mutable_ranges(question.ranges_size() - 1)->set_bytes(4096);
    }
    return question;
  }

  const testing::TestArtifact artifact_ =
      testing::MakeTestArtifact(1, {kMinChunkBytes, kMinChunkBytes, kMinChunkBytes});
  Node evicts_{artifact_};
  Node holds_{artifact_};
};

TEST_F(PossessionTest, ReplicasWithEqualBytes_GiveEqualProofsAtAnyLocation) {
  const ReplicaInfo own = evicts_.Make({LocationKind::kCpu});
  for (const Location& place : {Location{LocationKind::kCpu}, Location{LocationKind::kGpu, 0}}) {
    const ReplicaInfo copy = holds_.Make(place);
    const auto expected = evicts_.Prove(Ask("nonce"), own.id);
    const auto answer = holds_.Prove(Ask("nonce"), copy.id);
    ASSERT_TRUE(expected.ok() && answer.ok()) << expected.status() << answer.status();
    EXPECT_EQ(*answer, *expected);
    EXPECT_NE(*answer, *holds_.Prove(Ask("another"), copy.id));
  }
}

TEST_F(PossessionTest, ReplicaWithOtherBytes_GivesOtherProof) {
  const ReplicaInfo own = evicts_.Make({LocationKind::kCpu});
  const ReplicaInfo copy = holds_.Make({LocationKind::kCpu});
  holds_.Overwrite(copy);
  EXPECT_NE(*holds_.Prove(Ask("nonce"), copy.id), *evicts_.Prove(Ask("nonce"), own.id));
}

TEST_F(PossessionTest, Prove_RefusesOversizedAndMismatchedQuestions) {
  const ReplicaInfo own = evicts_.Make({LocationKind::kCpu});
  const auto code = [&](const v1::ProveRequest& question) {
    return evicts_.Prove(question, own.id).status().code();
  };
  v1::ProveRequest question = Ask("nonce");
  question.add_ranges()->set_offset(own.image_bytes + 1);
  EXPECT_EQ(code(question), absl::StatusCode::kInvalidArgument);
  question = Ask("nonce");
  question.mutable_ranges(0)->set_bytes(1 << 20);
  EXPECT_EQ(code(question), absl::StatusCode::kInvalidArgument);
  question = Ask("nonce");
  for (int i = 0; i < 100; ++i) question.add_ranges()->set_bytes(0);
  EXPECT_EQ(code(question), absl::StatusCode::kInvalidArgument);
  question = Ask("nonce");
  question.set_artifact_id("another");
  EXPECT_EQ(code(question), absl::StatusCode::kFailedPrecondition);
  question = Ask("nonce");
  question.mutable_origin()->set_node_id("me");
  EXPECT_EQ(code(question), absl::StatusCode::kFailedPrecondition) << "it has no files";
  EXPECT_EQ(evicts_.Prove(Ask("nonce"), "gone").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(PossessionTest, AccusedReplicaThatMatches_IsKept) {
  for (const Location& place : {Location{LocationKind::kCpu}, Location{LocationKind::kGpu, 0}}) {
    const ReplicaInfo replica = holds_.Make(place);
    const auto matches = holds_.DigestAgain(replica.id);
    ASSERT_TRUE(matches.ok()) << matches.status();
    EXPECT_TRUE(*matches);
  }
  EXPECT_EQ(holds_.engine().ListReplicas().size(), 2u);
  EXPECT_EQ(holds_.DigestAgain("gone").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(PossessionTest, AccusedReplicaThatDiffers_IsReportedWithFirstBadChunk) {
  std::vector<v1::DamagedReplica> told;
  holds_.possession().SetOnDamage([&](const v1::DamagedReplica& damaged) { told.push_back(damaged); });
  const ReplicaInfo replica = holds_.Make({LocationKind::kCpu});
  holds_.Overwrite(replica, kMinChunkBytes + 5, 1);
  const auto matches = holds_.DigestAgain(replica.id);
  ASSERT_TRUE(matches.ok()) << matches.status();
  EXPECT_FALSE(*matches);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].replica_id(), replica.id);
  EXPECT_EQ(told[0].artifact_id(), artifact_.manifest->id());
  EXPECT_EQ(told[0].location().kind(), v1::LOCATION_KIND_CPU);
  EXPECT_EQ(told[0].offset(), kMinChunkBytes);
  EXPECT_EQ(told[0].bytes(), kMinChunkBytes);
  EXPECT_TRUE(told[0].has_found());
  // In the pool behind buffers, so where the chunk lies there is the pool's affair.
  EXPECT_THAT(told[0].memory(), ::testing::StartsWith(absl::StrCat("host pool, segment 0, ", kMinChunkBytes,
                                                                   " bytes at offset ")));
}

}  // namespace
}  // namespace tensorcast::daemon::possession_test
