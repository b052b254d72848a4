// A device that breaks: its replicas go, it takes no new ones, and everything else goes on.
#include "base/status.h"
#include "core/engine/engine_fixture.h"
#include "gmock/gmock.h"

namespace tensorcast::testing::unhealthy_test {
namespace {

using ::testing::HasSubstr;

constexpr Location kSecondGpu{LocationKind::kGpu, 1};

class UnhealthyDevice : public EngineFixture {
 protected:
  UnhealthyDevice() { Start(); }

  bool IsAt(const TestArtifact& artifact, Location location) {
    return engine_->LeaseArtifact(artifact.manifest->id(), location).ok();
  }
  // By an ingest to it.
  void Break(Location gpu) {
    faults_->poison_copies = 1;
    const auto lease = Get(third_, gpu, GoodProvider(third_));
    EXPECT_EQ(lease.status().code(), absl::StatusCode::kInternal) << lease.status();
    EXPECT_THAT(std::string(lease.status().message()), HasSubstr(gpu.ToString()));
  }

  const TestArtifact first_ = MakeChunkedArtifact(1, 2);
  const TestArtifact second_ = MakeChunkedArtifact(2, 2);
  const TestArtifact third_ = MakeChunkedArtifact(3, 2);
};

TEST_F(UnhealthyDevice, UnhealthyDevice_LosesPinnedAndUnpinnedReplicas) {
  const std::string replica = MustGet(first_, kSecondGpu)->replica_id();
  const std::string pinned = MustGet(second_, kSecondGpu)->replica_id();
  ASSERT_TRUE(engine_->SetPinned(pinned, true).ok());
  Break(kSecondGpu);
  EXPECT_FALSE(IsAt(first_, kSecondGpu));
  EXPECT_FALSE(IsAt(second_, kSecondGpu));
  listener_->WaitForState(replica, ReplicaState::kGone);
  listener_->WaitForState(pinned, ReplicaState::kGone);
  EXPECT_EQ(engine_->device_pool_stats(1).used_bytes, 0u);
}

TEST_F(UnhealthyDevice, UnhealthyDevice_RefusesNewReplicas) {
  Break(kSecondGpu);
  const auto refused = engine_->Ingest(
      ContextFor(), {.manifest = first_.manifest, .location = kSecondGpu, .sources = GoodProvider(first_)});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("use gpu:1: the GPU is unhealthy"));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("use another GPU"));
}

TEST_F(UnhealthyDevice, UnhealthyDevice_LeavesOtherLocationsWorking) {
  MustGet(first_, kGpu);
  MustGet(first_, kSecondGpu);
  Break(kSecondGpu);
  EXPECT_TRUE(IsAt(first_, kGpu));
  EXPECT_EQ(Read(*MustGet(second_, kGpu)), second_.image);
  EXPECT_EQ(Read(*MustGet(third_, kCpu)), third_.image);
}

TEST_F(UnhealthyDevice, SourceDeviceThatBreaks_IsReplacedByOtherSource) {
  MustGet(first_, kSecondGpu);
  faults_->poison_copies = 1;
  EXPECT_EQ(Read(*MustGet(first_, kCpu)), first_.image);
  EXPECT_EQ(faults_->poison_copies.load(), 0) << "the device was not read";
  WaitUntilIdle();
  EXPECT_FALSE(IsAt(first_, kSecondGpu)) << "withdrawn though the ingest that found it succeeded";
}

TEST_F(UnhealthyDevice, LeasedReplicaOnUnhealthyDevice_DrainsUntilLeaseEnds) {
  auto lease = MustGet(first_, kSecondGpu);
  const std::string replica = lease->replica_id();
  Break(kSecondGpu);
  listener_->WaitForState(replica, ReplicaState::kDraining);
  lease.reset();
  listener_->WaitForState(replica, ReplicaState::kGone);
}

}  // namespace
}  // namespace tensorcast::testing::unhealthy_test
