// Replicas that are advanced while processes are attached to them (core/replicas/commit_gate.h).
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/log/check.h"
#include "absl/synchronization/notification.h"
#include "base/testing/eventually.h"
#include "core/artifact/test_util.h"
#include "core/engine/engine_fixture.h"
#include "core/ingest/advance.h"
#include "core/replicas/commit_gate.h"
#include "gmock/gmock.h"

namespace tensorcast::testing::live_advance_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr uint32_t kChunks = 6;
constexpr uint64_t kChunkBytes = kGranuleBytes;

class LiveAdvance : public EngineFixture {
 protected:
  // Room for one image, one buffer and the changed values: there is none for a second image.
  explicit LiveAdvance(int host_granules = kChunks + 2)
      : LiveAdvance({.host_granules = host_granules, .staging_buffers = 0, .disk = false, .guard = true},
                    kCpu, kChunkBytes) {}
  LiveAdvance(const Setup& setup, Location location, uint64_t chunk_bytes)
      : location_(location), base_(MakeChunkedArtifact(1, kChunks, chunk_bytes)) {
    Start(setup);
    Place(base_);
    held_replica_ = ReplicaOf(base_);
  }

  static TestArtifact Next(TestArtifact artifact) {
    const uint64_t bytes = artifact.layout.chunk_bytes;
    for (const uint32_t chunk : {1, 4}) {
      for (uint64_t i = 0; i < bytes; i += 512) artifact.image[chunk * bytes + i] ^= std::byte{1};
    }
    return WithDigests(std::move(artifact));
  }
  static TestArtifact WithDigests(TestArtifact artifact) {
    auto manifest =
        Manifest::Create(artifact.layout, DigestsOf(artifact.layout, artifact.image), {{"version", "2"}});
    CHECK_OK(manifest.status());
    artifact.manifest = *std::move(manifest);
    return artifact;
  }
  void Place(const TestArtifact& artifact) {
    MustGet(artifact, location_);
    WaitUntilIdle();
  }
  std::unique_ptr<ReplicaLease> Lease(const TestArtifact& artifact) const {
    auto lease = engine_->LeaseArtifact(artifact.manifest->id(), location_);
    CHECK_OK(lease.status());
    return *std::move(lease);
  }
  std::string ReplicaOf(const TestArtifact& artifact) const { return Lease(artifact)->replica_id(); }
  std::shared_ptr<LiveLease> Hold() const { return std::make_shared<LiveLease>(Lease(base_)); }
  std::unique_ptr<PendingReplica> Begin(const std::shared_ptr<SourceProvider>& sources) {
    return Begin(base_, target_, sources);
  }
  std::unique_ptr<PendingReplica> Begin(const TestArtifact& from, const TestArtifact& to,
                                        const std::shared_ptr<SourceProvider>& sources) {
    auto pending = engine_->Ingest(
        ContextFor(), {.manifest = to.manifest,
                       .location = location_,
                       .sources = sources,
                       .advance = std::make_shared<Advance>(from.manifest->id(), held_replica_, gate_)});
    CHECK_OK(pending.status());
    return *std::move(pending);
  }
  // What a process that has the memory mapped sees.
  std::vector<std::byte> Mapped() const {
    std::vector<std::byte> bytes;
    for (const ConstHostSpan& span : mapped_) bytes.insert(bytes.end(), span.begin(), span.end());
    return bytes;
  }
  void Map(const LiveLease& holder) { mapped_ = holder.lease()->HostSpans(0, base_.layout.image_bytes); }
  bool Has(const TestArtifact& artifact) const {
    return engine_->LeaseArtifact(artifact.manifest->id(), location_).ok();
  }
  bool HasTarget() const { return Has(target_); }
  bool AwaitRefusal() {
    return Eventually([&] { return !gate_->refusal().ok(); });
  }

  const Location location_;
  const TestArtifact base_;
  const TestArtifact target_ = Next(base_);
  absl::Notification staged_;
  const std::shared_ptr<CommitGate> gate_ = std::make_shared<CommitGate>([this] { staged_.Notify(); });
  std::vector<ConstHostSpan> mapped_;
  std::string held_replica_;  // the replica that is advanced
};

// A node that has the wanted version, too: a trainer's own, for example.
class LiveAdvanceBesideTarget : public LiveAdvance {
 protected:
  LiveAdvanceBesideTarget() : LiveAdvance(2 * kChunks + 2) { Place(target_); }
};

TEST_F(LiveAdvance, TwoHoldersThatEnter_SeeTargetInSameMemory) {
  const auto one = Hold();
  const auto other = Hold();
  Map(*one);
  const auto pending = Begin(GoodProvider(target_));
  staged_.WaitForNotification();
  EXPECT_TRUE(Mapped() == base_.image) << "nothing is written before the commit";
  gate_->Enter(one);
  ASSERT_TRUE(AwaitRefusal());
  EXPECT_TRUE(Mapped() == base_.image);
  EXPECT_FALSE(HasTarget());
  EXPECT_THAT(guard_.asked(), IsEmpty()) << "the consent is asked for when all have entered";
  gate_->Enter(other);
  const auto lease = pending->Wait(ContextFor());
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(Mapped() == target_.image);
  EXPECT_EQ((*lease)->HostSpans(0, 1).front().data(), mapped_.front().data());
  EXPECT_EQ(one->lease(), nullptr);
  EXPECT_FALSE(gate_->Leave(one.get())) << "it is too late";
  EXPECT_FALSE(engine_->LeaseArtifact(base_.manifest->id(), kCpu).ok());
  EXPECT_THAT(guard_.asked(), ElementsAre(base_.manifest->id()));
}

TEST_F(LiveAdvance, HolderThatGoes_CountsNoMore) {
  const auto one = Hold();
  auto other = Hold();
  Map(*one);
  const auto pending = Begin(GoodProvider(target_));
  gate_->Enter(one);
  ASSERT_TRUE(AwaitRefusal());
  other.reset();
  ASSERT_TRUE(pending->Wait(ContextFor()).ok());
  EXPECT_TRUE(Mapped() == target_.image);
}

TEST_F(LiveAdvance, HolderThatLeaves_IsWaitedForAgain) {
  const auto one = Hold();
  const auto other = Hold();
  Map(*one);
  const auto pending = Begin(GoodProvider(target_));
  gate_->Enter(one);
  ASSERT_TRUE(AwaitRefusal());
  EXPECT_TRUE(gate_->Leave(one.get()));
  gate_->Enter(other);
  EXPECT_TRUE(Mapped() == base_.image);
  EXPECT_FALSE(HasTarget());
  gate_->Enter(one);
  ASSERT_TRUE(pending->Wait(ContextFor()).ok());
  EXPECT_TRUE(Mapped() == target_.image);
}

TEST_F(LiveAdvance, OrdinaryReader_KeepsReplicaAsItIs) {
  const auto one = Hold();
  Map(*one);
  auto reader = engine_->LeaseArtifact(base_.manifest->id(), kCpu);
  ASSERT_TRUE(reader.ok());
  const auto pending = Begin(GoodProvider(target_));
  gate_->Enter(one);
  ASSERT_TRUE(AwaitRefusal());
  EXPECT_TRUE(Mapped() == base_.image);
  reader->reset();
  ASSERT_TRUE(pending->Wait(ContextFor()).ok());
  EXPECT_TRUE(Mapped() == target_.image);
}

TEST_F(LiveAdvance, NoHolderInGate_LeavesReplicaAsItIs) {
  auto one = Hold();
  const auto pending = Begin(GoodProvider(target_));
  staged_.WaitForNotification();
  one.reset();
  EXPECT_FALSE(HasTarget());
  EXPECT_TRUE(engine_->LeaseArtifact(base_.manifest->id(), kCpu).ok());
}

TEST_F(LiveAdvance, LastCopy_IsRewrittenWhenGuardAgrees) {
  const auto one = Hold();
  Map(*one);
  guard_.Refuse(base_.manifest->id());
  auto pending = Begin(GoodProvider(target_));
  gate_->Enter(one);
  ASSERT_TRUE(AwaitRefusal());
  EXPECT_THAT(
      std::string(gate_->refusal().message()),
      AllOf(HasSubstr("the last copy"), HasSubstr("without live"), Not(HasSubstr("without advance"))));
  EXPECT_TRUE(gate_->Leave(one.get()));
  pending.reset();
  WaitUntilIdle();
  EXPECT_TRUE(Mapped() == base_.image);
  EXPECT_NE(one->lease(), nullptr);
}

TEST_F(LiveAdvance, WrongBytes_ChangeNothing) {
  const auto one = Hold();
  Map(*one);
  TestArtifact wrong = target_;
  wrong.image[kChunkBytes] ^= std::byte{0x55};
  const auto pending = Begin(GoodProvider(wrong));
  gate_->Enter(one);
  EXPECT_FALSE(pending->Wait(ContextFor()).ok());
  EXPECT_TRUE(Mapped() == base_.image);
  EXPECT_TRUE(gate_->Leave(one.get()));
  EXPECT_NE(one->lease(), nullptr);
}

TEST_F(LiveAdvanceBesideTarget, OtherReplica_IsSourceAndGoesAfterItsReaders) {
  const auto one = Hold();
  Map(*one);
  auto reader = Lease(target_);
  const std::string other = reader->replica_id();
  auto pending = Begin(nullptr);  // there is no other source
  staged_.WaitForNotification();
  EXPECT_EQ(ReplicaOf(target_), other) << "until the commit";
  EXPECT_TRUE(Mapped() == base_.image);
  gate_->Enter(one);
  const auto lease = pending->Wait(ContextFor());
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(Mapped() == target_.image);
  EXPECT_EQ((*lease)->HostSpans(0, 1).front().data(), mapped_.front().data());
  EXPECT_EQ(ReplicaOf(target_), (*lease)->replica_id());
  EXPECT_NE((*lease)->replica_id(), other);
  EXPECT_EQ(engine_->ListReplicas().size(), 2u) << "a process reads the other one";
  reader.reset();
  EXPECT_EQ(engine_->ListReplicas().size(), 1u);
}

TEST_F(LiveAdvanceBesideTarget, PinOfOtherReplica_StaysOnTheOneThatReplacesIt) {
  const auto one = Hold();
  ASSERT_TRUE(engine_->SetPinned(ReplicaOf(target_), true).ok());
  const auto pending = Begin(nullptr);
  gate_->Enter(one);
  ASSERT_TRUE(pending->Wait(ContextFor()).ok());
  ASSERT_EQ(engine_->ListReplicas().size(), 1u);
  EXPECT_TRUE(engine_->ListReplicas().front().pinned);
}

// Its holders would be counted as those of the replica that took its place.
TEST_F(LiveAdvanceBesideTarget, ReplacedReplica_IsNotAdvancedAgain) {
  const auto one = Hold();
  const auto other = std::make_shared<LiveLease>(Lease(target_));
  const std::string replaced = other->lease()->replica_id();
  {
    const auto pending = Begin(nullptr);
    gate_->Enter(one);
    ASSERT_TRUE(pending->Wait(ContextFor()).ok());
  }
  held_replica_ = replaced;
  const TestArtifact later = Next(target_);
  const absl::Status refused = Begin(target_, later, GoodProvider(later))->Wait(ContextFor()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("has taken the place of replica " + replaced));
}

TEST_F(LiveAdvance, PinnedReplica_IsRefused) {
  const auto one = Hold();
  Map(*one);
  ASSERT_TRUE(engine_->SetPinned(one->lease()->replica_id(), true).ok());
  const auto pending = Begin(GoodProvider(target_));
  gate_->Enter(one);
  const absl::Status refused = pending->Wait(ContextFor()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("is pinned"));
  EXPECT_TRUE(Mapped() == base_.image);
  EXPECT_TRUE(gate_->Leave(one.get()));
}

// A GPU with room for one image. The pool is page-locked, so that the GPU can read changed values from it.
class LiveAdvanceOnGpu : public LiveAdvance {
 protected:
  explicit LiveAdvanceOnGpu(bool page_locked = true)
      : LiveAdvance({.device_pool_bytes = kChunks * kStagingBytes, .disk = false, .guard = true}, kGpu,
                    kStagingBytes) {
    if (!page_locked) return;
    CHECK_OK(devices_->RegisterHost(pool_->base(), pool_->bytes(), HostAccess::kReadWrite));
  }
  // Many values of a block change, so that the block is copied as a whole.
  static TestArtifact Dense(TestArtifact artifact) {
    for (uint64_t i = 0; i < kStagingBytes / 2; ++i) artifact.image[i] ^= std::byte{1};
    return WithDigests(std::move(artifact));
  }
  // What a process that has the memory open sees.
  std::vector<std::byte> Opened(DevicePtr image) const {
    std::vector<std::byte> bytes(base_.layout.image_bytes);
    auto stream = devices_->CreateStream(image.device);
    CHECK_OK(stream.status());
    CHECK_OK((*stream)->CopyToHost(bytes.data(), image, bytes.size()));
    CHECK_OK((*stream)->Synchronize());
    return bytes;
  }
};

class LiveAdvanceInPageableMemory : public LiveAdvanceOnGpu {
 protected:
  LiveAdvanceInPageableMemory() : LiveAdvanceOnGpu(/*page_locked=*/false) {}
};

TEST_F(LiveAdvanceOnGpu, TwoHoldersThatEnter_SeeTargetInSameMemory) {
  const auto one = Hold();
  const auto other = Hold();
  const DevicePtr image = one->lease()->memory().device;
  const TestArtifact target = Dense(target_);
  const auto pending = Begin(base_, target, GoodProvider(target));
  staged_.WaitForNotification();
  gate_->Enter(one);
  ASSERT_TRUE(AwaitRefusal());
  EXPECT_TRUE(Opened(image) == base_.image) << "nothing is written before the commit";
  gate_->Enter(other);
  const auto lease = pending->Wait(ContextFor());
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(Opened(image) == target.image);
  EXPECT_EQ((*lease)->memory().device, image);
  EXPECT_EQ(one->lease(), nullptr);
  EXPECT_FALSE(Has(base_));
  EXPECT_EQ(pool_->stats().used_bytes, setup_.staging_buffers * kGranuleBytes) << "the values went";
}

TEST_F(LiveAdvanceOnGpu, CopyThatFails_LosesReplicaAndKeepsMemory) {
  auto one = Hold();
  const TestArtifact target = Dense(target_);
  const auto pending = Begin(base_, target, GoodProvider(target));
  staged_.WaitForNotification();
  faults_->fail_copies = 1;
  gate_->Enter(one);
  const absl::Status failed = pending->Wait(ContextFor()).status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kInternal) << failed;
  EXPECT_THAT(std::string(failed.message()), AllOf(HasSubstr("gpu:0"), HasSubstr(held_replica_),
                                                   HasSubstr("get the weights again with live=True")));
  EXPECT_FALSE(gate_->Leave(one.get()));
  EXPECT_FALSE(Has(base_));
  EXPECT_FALSE(Has(target));
  WaitUntilIdle();
  EXPECT_GT(engine_->device_pool_stats(0).used_bytes, 0u) << "its holder has it open";
  one.reset();
  EXPECT_EQ(engine_->device_pool_stats(0).used_bytes, 0u);
}

TEST_F(LiveAdvanceInPageableMemory, Version_IsRefusedBeforeTheCommit) {
  const auto one = Hold();
  const auto pending = Begin(GoodProvider(target_));
  gate_->Enter(one);
  const absl::Status refused = pending->Wait(ContextFor()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("gpu:0"), HasSubstr("without live")));
  EXPECT_TRUE(gate_->Leave(one.get()));
  EXPECT_TRUE(Opened(one->lease()->memory().device) == base_.image);
}

}  // namespace
}  // namespace tensorcast::testing::live_advance_test
