// From GPU to GPU: without the host, several chunks at once, verified where they arrive.
#include <algorithm>

#include "base/testing/eventually.h"
#include "core/device/direct_copies.h"
#include "core/engine/engine_fixture.h"
#include "gmock/gmock.h"

namespace tensorcast::testing::direct_test {
namespace {

using ::testing::HasSubstr;

constexpr Location kSecondGpu{LocationKind::kGpu, 1};
constexpr uint32_t kChunks = 12;

class EngineDirect : public EngineFixture {
 protected:
  EngineDirect() { Start(); }

  // Copies are held up from here on, until LetGo.
  void Hold() { faults_->copy_delay_ns = absl::ToInt64Nanoseconds(absl::Hours(1)); }
  void LetGo() { faults_->copy_delay_ns = 0; }
  void AwaitHeldCopies(int copies) {
    ASSERT_TRUE(Eventually([&] { return faults_->delayed_copies == copies; }));
  }
  void ExpectRight(const absl::StatusOr<std::unique_ptr<ReplicaLease>>& lease) {
    ASSERT_TRUE(lease.ok()) << lease.status();
    EXPECT_EQ(Read(**lease), artifact_.image);
  }
  // As it is on the GPU, one bit is another.
  void Flip(const ReplicaLease& lease, uint64_t byte) {
    const std::byte flipped = artifact_.image[byte] ^ std::byte{1};
    const auto stream = devices_->CreateStream(lease.location().device).value();
    ASSERT_TRUE(stream->CopyToDevice(lease.memory().device + byte, &flipped, 1).ok());
    ASSERT_TRUE(stream->Synchronize().ok());
  }
  static uint64_t BytesOf(Stage stage, const TransferReport& report) {
    uint64_t bytes = 0;
    for (const StageReport& one : report.stages) bytes += one.stage == stage ? one.bytes : 0;
    return bytes;
  }

  const TestArtifact artifact_ = MakeChunkedArtifact(7, kChunks);
};

TEST_F(EngineDirect, DirectCopies_RunConcurrentlyWithoutStagingBuffers) {
  (void)MustGet(artifact_, kGpu);
  // All staging buffers are another's.
  const TestArtifact other = MakeChunkedArtifact(4, kChunks);
  const auto held = MakeControl(other.image, {.held = true});
  const auto pending_other = Materialize(other, {LocationKind::kGpu, 2}, ProviderOf({held}));
  held->WaitForHeldFetches(setup_.staging_buffers);
  Hold();
  const auto pending = Materialize(artifact_, kSecondGpu, nullptr);
  AwaitHeldCopies(kChunks);
  LetGo();
  ExpectRight(pending->Wait(ContextFor()));
  EXPECT_EQ(BytesOf(Stage::kFetch, *pending->report()), artifact_.image.size());
  EXPECT_EQ(BytesOf(Stage::kVerify, *pending->report()), 0u) << "digested where they arrived";
  EXPECT_EQ(BytesOf(Stage::kPlace, *pending->report()), 0u) << "they were in their place";
  EXPECT_EQ(pending->report()->verified_chunks, kChunks);
  held->Release();
  EXPECT_TRUE(pending_other->Wait(ContextFor()).ok());
}

TEST_F(EngineDirect, WrongByte_IsFoundAndItsReplicaWithdrawn) {
  const std::string wrong = [this] {
    const auto lease = MustGet(artifact_, kGpu);
    Flip(*lease, 5 * 4096 + 17);
    return lease->replica_id();
  }();
  const auto pending = Materialize(artifact_, kSecondGpu, GoodProvider(artifact_));
  ExpectRight(pending->Wait(ContextFor()));
  const TransferReport report = *pending->report();
  ASSERT_FALSE(report.changes.empty());
  EXPECT_EQ(report.changes[0].why, SourceLoss::kBadDigest);
  EXPECT_EQ(report.changes[0].from.replica_id, wrong);
  EXPECT_THAT(std::string(report.changes[0].status.message()), HasSubstr("chunk 5 of"));
  EXPECT_THAT(std::string(report.changes[0].status.message()),
              HasSubstr("from device gpu:0: the chunk has digest"));
  listener_->WaitForState(wrong, ReplicaState::kGone);
}

TEST_F(EngineDirect, FailedDirectCopy_FallsBackToHost) {
  (void)MustGet(artifact_, kGpu);
  faults_->fail_copies = 1;
  const auto pending = Materialize(artifact_, kSecondGpu, nullptr);
  ExpectRight(pending->Wait(ContextFor()));
  EXPECT_GT(BytesOf(Stage::kPlace, *pending->report()), 0u);
  EXPECT_TRUE(pending->report()->changes.empty()) << "that is not a fault of the source";
}

TEST_F(EngineDirect, DeviceFault_FailsIngestAndKeepsSourceReplica) {
  (void)MustGet(artifact_, kGpu);
  faults_->poison_copies = 1;
  const auto lease = Get(artifact_, kSecondGpu);
  EXPECT_EQ(lease.status().code(), absl::StatusCode::kInternal) << lease.status();
  EXPECT_THAT(std::string(lease.status().message()), HasSubstr("to gpu:1: fake device"));
  EXPECT_TRUE(engine_->LeaseArtifact(artifact_.manifest->id(), kGpu).ok());
}

TEST_F(EngineDirect, CancelledIngest_AwaitsDirectCopies) {
  const TestArtifact artifact = MakeChunkedArtifact(8, DirectCopies::kAtOnce + 8);
  (void)MustGet(artifact, kGpu);
  Hold();
  const RequestContext context = ContextFor();
  auto pending = Materialize(artifact, kSecondGpu, nullptr, context);
  AwaitHeldCopies(DirectCopies::kAtOnce);
  context.cancellation.Cancel();
  EXPECT_EQ(engine_->active_ingests(), 1) << "its memory is still written to";
  LetGo();
  EXPECT_EQ(pending->Wait(ContextFor()).status().code(), absl::StatusCode::kCancelled);
  WaitUntilIdle();
  EXPECT_EQ(engine_->device_pool_stats(1).used_bytes, 0u);
  EXPECT_TRUE(Get(artifact, kSecondGpu).ok()) << "the next one works";
}

TEST_F(EngineDirect, FillingDeviceReplica_ServesDirectCopiesWhileItFills) {
  const auto held = MakeControl(artifact_.image, {.held = true});
  const auto first = Materialize(artifact_, kGpu, ProviderOf({held}));
  held->WaitForHeldFetches(1);
  const auto second = Materialize(artifact_, kSecondGpu, nullptr);
  held->Release();
  ExpectRight(first->Wait(ContextFor()));
  ExpectRight(second->Wait(ContextFor()));
  EXPECT_EQ(held->total_fetches(), static_cast<int>(kChunks));
  EXPECT_EQ(BytesOf(Stage::kPlace, *second->report()), 0u);
}

class EngineDeviceVerification : public EngineDirect {
 protected:
  // The artifact is on gpu:0, and comes from there to gpu:1.
  void CopyWith(DeviceVerification policy, const TestArtifact& artifact) {
    setup_.device_verification = policy;
    Restart();
    first_ = MustGet(artifact, kGpu)->replica_id();
    const auto pending = Materialize(artifact, kSecondGpu, nullptr);
    const auto lease = pending->Wait(ContextFor());
    ASSERT_TRUE(lease.ok()) << lease.status();
    EXPECT_EQ(Read(**lease), artifact.image);
    second_ = (*lease)->replica_id();
    verified_ = pending->report()->verified_chunks;
  }
  ReplicaInfo Info(const std::string& id) {
    const std::vector<ReplicaInfo> all = engine_->ListReplicas();
    return *std::ranges::find(all, id, &ReplicaInfo::id);
  }

  const TestArtifact long_ = MakeChunkedArtifact(9, 40);
  std::string first_;  // replica ids
  std::string second_;
  uint32_t verified_ = 0;
};

TEST_F(EngineDeviceVerification, SampledReplica_ServesOnlyClientsOfItsNode) {
  CopyWith(DeviceVerification::kSampled, long_);
  EXPECT_GE(verified_, 2u);
  EXPECT_LE(verified_, 3u) << "each sixteenth of 40";
  EXPECT_EQ(Info(first_).chunks_unverified, 0u);
  EXPECT_EQ(Info(second_).chunks_unverified, 40 - verified_);
  EXPECT_TRUE(engine_->LeaseArtifact(long_.manifest->id(), kSecondGpu).ok());
  EXPECT_EQ(engine_->LeaseToServe(second_).status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(engine_->Evict(first_, /*force=*/true).ok());
  EXPECT_EQ(Get(long_, kCpu).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Get(long_, kCpu, GoodProvider(long_)).ok());
}

TEST_F(EngineDeviceVerification, VerificationOff_ComparesNothingCopiedFromDevice) {
  CopyWith(DeviceVerification::kOff, artifact_);
  EXPECT_EQ(verified_, 0u);
  EXPECT_EQ(Info(second_).chunks_unverified, kChunks);
  const auto pending = Materialize(artifact_, kCpu, nullptr);
  EXPECT_TRUE(pending->Wait(ContextFor()).ok());
  EXPECT_EQ(pending->report()->verified_chunks, kChunks) << "what comes to the host is verified";
}

TEST_F(EngineDeviceVerification, VerifiedReplica_ReplacesUnverifiedOne) {
  const TestArtifact today = MakeTestArtifact(3, {3 << 20});  // a first ingest makes no other chunks
  CopyWith(DeviceVerification::kOff, today);
  const auto put = IngestFirst(today, kSecondGpu, GoodProvider(today));
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_NE((*put)->replica_id(), second_);
  EXPECT_EQ(Info((*put)->replica_id()).chunks_unverified, 0u);
  listener_->WaitForState(second_, ReplicaState::kGone);
}

TEST_F(EngineDeviceVerification, FullVerification_MakesReplicaASource) {
  CopyWith(DeviceVerification::kFull, long_);
  EXPECT_EQ(verified_, 40u);
  ASSERT_TRUE(engine_->Evict(first_, /*force=*/true).ok());
  EXPECT_TRUE(Get(long_, kCpu).ok());
}

TEST(DeviceVerificationPolicy, SampledVerification_ComparesEachSixteenthChunkAndMinOne) {
  for (const uint32_t chunks : {1u, 5u, 16u, 33u, 400u}) {
    for (const uint64_t seed : {0u, 7u, 12345u}) {
      uint32_t compared = 0;
      for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
        compared += IsCompared(DeviceVerification::kSampled, seed, chunk, chunks) ? 1 : 0;
      }
      EXPECT_GE(compared, std::max(1u, chunks / 16)) << chunks;
      EXPECT_LE(compared, chunks / 16 + 1) << chunks;
    }
  }
}

}  // namespace
}  // namespace tensorcast::testing::direct_test
