// Full pools: what is evicted, what is not, what waits, and what the message says. A replica here takes one
// granule.
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/steady_time.h"
#include "base/testing/eventually.h"
#include "core/engine/engine_fixture.h"
#include "gmock/gmock.h"

namespace tensorcast::testing::eviction_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class EngineEviction : public EngineFixture {
 protected:
  EngineEviction() {
    for (uint64_t seed = 0; seed < 6; ++seed) artifacts_.push_back(MakeChunkedArtifact(seed, 2));
  }

  void StartWithGranules(int granules, bool guard = false, bool share = false) {
    Setup setup;
    setup.host_granules = granules;
    setup.share_granules = share;
    setup.guard = guard;
    Start(setup);
  }
  bool IsHere(int artifact) { return engine_->LeaseArtifact(artifacts_[artifact].manifest->id(), kCpu).ok(); }
  std::string ReplicaOf(int artifact) {
    return (*engine_->LeaseArtifact(artifacts_[artifact].manifest->id(), kCpu))->replica_id();
  }
  std::vector<int> Present() {
    std::vector<int> present;
    for (const ReplicaInfo& replica : engine_->ListReplicas()) {
      for (int i = 0; i < static_cast<int>(artifacts_.size()); ++i) {
        if (replica.artifact_id == artifacts_[i].manifest->id() && replica.state == ReplicaState::kReady) {
          present.push_back(i);
        }
      }
    }
    std::sort(present.begin(), present.end());
    return present;
  }

  // A partial replica without a holder; its id.
  std::string MakePart(int artifact) {
    auto pending = engine_->Ingest(ContextFor(), {.manifest = artifacts_[artifact].manifest,
                                                  .location = kCpu,
                                                  .sources = GoodProvider(artifacts_[artifact]),
                                                  .chunks = std::vector<uint32_t>{0}});
    EXPECT_TRUE(pending.ok()) << pending.status();
    auto lease = (*pending)->Wait(ContextFor());
    EXPECT_TRUE(lease.ok()) << lease.status();
    return (*lease)->replica_id();
  }

  std::vector<TestArtifact> artifacts_;
};

TEST_F(EngineEviction, Eviction_TakesLeastRecentlyUsedReplica) {
  StartWithGranules(3);
  for (int i = 0; i < 3; ++i) MustGet(artifacts_[i], kCpu);
  EXPECT_TRUE(IsHere(0));  // a lease is a use
  MustGet(artifacts_[3], kCpu);
  EXPECT_THAT(Present(), ElementsAre(0, 2, 3));
  MustGet(artifacts_[4], kCpu);
  EXPECT_THAT(Present(), ElementsAre(0, 3, 4));
}

TEST_F(EngineEviction, Eviction_ReportsEachStateToListener) {
  StartWithGranules(1);
  const std::string victim = MustGet(artifacts_[0], kCpu)->replica_id();
  MustGet(artifacts_[1], kCpu);
  using enum ReplicaState;
  listener_->WaitForState(victim, kGone);
  EXPECT_THAT(listener_->StatesOf(victim), ElementsAre(kAllocating, kFilling, kReady, kDraining, kGone));
}

TEST_F(EngineEviction, Eviction_SparesLeasedAndPinnedReplicas) {
  StartWithGranules(3);
  const auto lease = MustGet(artifacts_[0], kCpu);
  const std::string pinned = MustGet(artifacts_[1], kCpu)->replica_id();
  ASSERT_TRUE(engine_->SetPinned(pinned, true).ok());
  MustGet(artifacts_[2], kCpu);
  MustGet(artifacts_[3], kCpu);
  EXPECT_THAT(Present(), ElementsAre(0, 1, 3));
}

TEST_F(EngineEviction, SmallImages_ShareOneGranuleAndAreEvictedForLargeOne) {
  StartWithGranules(1, /*guard=*/false, /*share=*/true);
  for (int i = 0; i < 6; ++i) MustGet(artifacts_[i], kCpu);
  EXPECT_THAT(Present(), ElementsAre(0, 1, 2, 3, 4, 5));
  const TestArtifact large = MakeTestArtifact(7, {kGranuleBytes - 4096});
  MustGet(large, kCpu);
  EXPECT_THAT(Present(), ElementsAre());
  MustGet(artifacts_[2], kCpu);
  EXPECT_THAT(Present(), ElementsAre(2));
}

TEST_F(EngineEviction, GetWithoutWait_WaitsForReplicaThatFills) {
  StartWithGranules(1);
  auto control = MakeControl(artifacts_[0].image, {.held = true});
  auto filling = Materialize(artifacts_[0], kCpu, ProviderOf({control}));
  control->WaitForHeldFetches(1);
  auto waiting = Materialize(artifacts_[1], kCpu, GoodProvider(artifacts_[1]));
  EXPECT_EQ(waiting->Wait(ContextFor(absl::Milliseconds(50))).status().code(),
            absl::StatusCode::kDeadlineExceeded)
      << "it neither fails nor takes the memory of the other";
  control->Release();
  EXPECT_TRUE(filling->Wait(ContextFor()).ok());
  filling.reset();
  EXPECT_TRUE(waiting->Wait(ContextFor()).ok());
  EXPECT_THAT(Present(), ElementsAre(1));
}

TEST_F(EngineEviction, Scratch_EvictsAndComesBackToWaitingIngest) {
  StartWithGranules(1);
  MustGet(artifacts_[0], kCpu);
  auto scratch = engine_->AllocateScratch(ContextFor(), "records", kGranuleBytes);
  ASSERT_TRUE(scratch.ok()) << scratch.status();
  EXPECT_EQ(scratch->bytes(), kGranuleBytes);
  EXPECT_THAT(Present(), IsEmpty());
  auto waiting = Materialize(artifacts_[1], kCpu, GoodProvider(artifacts_[1]), {}, /*wait_for_space=*/true);
  *scratch = HostAllocation();
  EXPECT_TRUE(waiting->Wait(ContextFor()).ok());
}

TEST_F(EngineEviction, Scratch_DoesNotWaitForReplicaThatFills) {
  StartWithGranules(1);
  auto control = MakeControl(artifacts_[0].image, {.held = true});
  auto filling = Materialize(artifacts_[0], kCpu, ProviderOf({control}));
  control->WaitForHeldFetches(1);
  EXPECT_EQ(engine_->AllocateScratch(ContextFor(), "records", kGranuleBytes).status().code(),
            absl::StatusCode::kResourceExhausted);
  control->Release();
  EXPECT_TRUE(filling->Wait(ContextFor()).ok());
}

TEST_F(EngineEviction, GetWithoutWait_FailsWhenFilledReplicaIsHeld) {
  StartWithGranules(1);
  auto control = MakeControl(artifacts_[0].image, {.held = true});
  auto filling = Materialize(artifacts_[0], kCpu, ProviderOf({control}));
  control->WaitForHeldFetches(1);
  auto waiting = Materialize(artifacts_[1], kCpu, GoodProvider(artifacts_[1]));
  control->Release();
  const auto held = filling->Wait(ContextFor());
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_EQ(waiting->Wait(ContextFor()).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(EngineEviction, FullPool_ErrorSaysWhatHoldsIt) {
  StartWithGranules(3);
  const auto lease = MustGet(artifacts_[0], kCpu);
  const std::string pinned = MustGet(artifacts_[1], kCpu)->replica_id();
  ASSERT_TRUE(engine_->SetPinned(pinned, true).ok());
  auto control = MakeControl(artifacts_[2].image, {.held = true});
  auto filling = Materialize(artifacts_[2], kCpu, ProviderOf({control}));
  control->WaitForHeldFetches(1);
  // What fills leaves no room for one as large as this.
  const TestArtifact large = MakeTestArtifact(9, {2 * kGranuleBytes}, 1 << 20);
  const absl::Status status = Get(large, kCpu, GoodProvider(large)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      status.message(),
      AllOf(HasSubstr("the host pool"), HasSubstr("1 leased replica (2097152 bytes)"),
            HasSubstr("1 pinned replica (2097152 bytes)"), HasSubstr("1 filling replica (2097152 bytes)"),
            HasSubstr("4194304 by staging buffers"), HasSubstr(large.manifest->id())));
  control->Release();
  EXPECT_TRUE(filling->Wait(ContextFor()).ok());
}

TEST_F(EngineEviction, RequestThatCannotFit_EvictsNothing) {
  StartWithGranules(3);
  const auto lease = MustGet(artifacts_[0], kCpu);
  MustGet(artifacts_[1], kCpu);
  const TestArtifact large = MakeTestArtifact(9, {3 * kGranuleBytes}, 1 << 20);
  EXPECT_FALSE(Get(large, kCpu, GoodProvider(large)).ok());
  EXPECT_THAT(Present(), ElementsAre(0, 1));
}

TEST_F(EngineEviction, LargeRequest_EvictsAsManyReplicasAsItNeeds) {
  StartWithGranules(3);
  for (int i = 0; i < 3; ++i) MustGet(artifacts_[i], kCpu);
  const TestArtifact large = MakeTestArtifact(9, {2 * kGranuleBytes}, 1 << 20);
  ASSERT_TRUE(Get(large, kCpu, GoodProvider(large)).ok());
  EXPECT_THAT(Present(), ElementsAre(2));
}

TEST_F(EngineEviction, WaitForSpace_FailsAtOnceWhenImageExceedsPool) {
  StartWithGranules(2);
  const TestArtifact huge = MakeTestArtifact(9, {3 * kGranuleBytes}, 1 << 20);
  const absl::Status status = Get(huge, kCpu, GoodProvider(huge), /*wait_for_space=*/true).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("even an empty pool is too small"));
}

TEST_F(EngineEviction, Eviction_SparesReplicasThatGuardRefuses) {
  StartWithGranules(2, /*guard=*/true);
  MustGet(artifacts_[0], kCpu);
  MustGet(artifacts_[1], kCpu);
  guard_.Refuse(artifacts_[0].manifest->id());
  MustGet(artifacts_[2], kCpu);
  EXPECT_THAT(Present(), ElementsAre(0, 2));
  EXPECT_THAT(guard_.asked(), ElementsAre(artifacts_[0].manifest->id(), artifacts_[1].manifest->id()));
  guard_.Refuse(artifacts_[2].manifest->id());
  const absl::Status status = Get(artifacts_[3], kCpu, GoodProvider(artifacts_[3])).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("2 idle replicas (", 2 * kGranuleBytes,
                                                       " bytes) must stay: scripted: the last copy")))
      << "equal reasons are said once";
  EXPECT_TRUE(IsHere(0)) << "a refused replica can be used as before";
}

TEST_F(EngineEviction, Eviction_StopsReadersOfPartialReplicaAsLastResort) {
  StartWithGranules(2, /*guard=*/true);
  Reader older(engine_->LeaseToServe(MakePart(0)));
  Reader newer(engine_->LeaseToServe(MakePart(1)));
  MustGet(artifacts_[2], kCpu);
  EXPECT_TRUE(older.told_to_stop());
  EXPECT_FALSE(newer.told_to_stop());
  guard_.Refuse(artifacts_[2].manifest->id());
  MustGet(artifacts_[3], kCpu);
  EXPECT_TRUE(newer.told_to_stop());
  EXPECT_THAT(Present(), ElementsAre(2, 3));
}

TEST_F(EngineEviction, IdlePartialReplica_IsEvictedBeforeOnesWithReaders) {
  StartWithGranules(3);
  Reader reader(engine_->LeaseToServe(MakePart(0)));
  MustGet(artifacts_[1], kCpu);
  MakePart(2);
  MustGet(artifacts_[3], kCpu);
  EXPECT_THAT(Present(), ElementsAre(1, 3)) << "the idle part went";
  MustGet(artifacts_[4], kCpu);
  EXPECT_THAT(Present(), ElementsAre(3, 4));
  EXPECT_FALSE(reader.told_to_stop());
}

TEST_F(EngineEviction, LeasedPartialReplica_IsKeptThoughItHasReaders) {
  StartWithGranules(1);
  const std::string id = MakePart(0);
  auto held = *engine_->LeaseFilling(id);
  Reader reader(engine_->LeaseToServe(id));
  const absl::Status status = Get(artifacts_[1], kCpu, GoodProvider(artifacts_[1])).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("1 leased"));
  EXPECT_FALSE(reader.told_to_stop());
  held.reset();
  MustGet(artifacts_[1], kCpu);
}

TEST_F(EngineEviction, ReaderToldToStop_IsAwaitedBeforeOthersAreStopped) {
  StartWithGranules(2);
  auto slow = *engine_->LeaseToServe(MakePart(0));
  Reader other(engine_->LeaseToServe(MakePart(1)));
  auto waiting = Materialize(artifacts_[2], kCpu, GoodProvider(artifacts_[2]));
  ASSERT_TRUE(Eventually([&] { return slow->availability()->ended(); }));
  EXPECT_EQ(slow->availability()->end().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(waiting->Wait(ContextFor(absl::Milliseconds(50))).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  slow.reset();
  EXPECT_TRUE(waiting->Wait(ContextFor()).ok());
  EXPECT_FALSE(other.told_to_stop());
}

TEST_F(EngineEviction, WaitForSpace_EndsWhenLeaseEnds) {
  StartWithGranules(1);
  auto lease = MustGet(artifacts_[0], kCpu);
  auto provider = GoodProvider(artifacts_[1]);
  auto waiting = Materialize(artifacts_[1], kCpu, provider, {}, /*wait_for_space=*/true);
  EXPECT_EQ(waiting->Wait(ContextFor(absl::Milliseconds(20))).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(provider->calls(), 0) << "no source is opened before there is space";
  lease.reset();
  EXPECT_TRUE(waiting->Wait(ContextFor()).ok());
  listener_->WaitForReports(2);
  EXPECT_GT(listener_->reports()[1].wall_time[TimeUse::kBuffers], absl::ZeroDuration());
}

TEST_F(EngineEviction, WaitForSpace_EndsWhenReplicaIsUnpinned) {
  StartWithGranules(1);
  const std::string pinned = MustGet(artifacts_[0], kCpu)->replica_id();
  ASSERT_TRUE(engine_->SetPinned(pinned, true).ok());
  auto waiting = Materialize(artifacts_[1], kCpu, GoodProvider(artifacts_[1]), {}, /*wait_for_space=*/true);
  ASSERT_TRUE(engine_->SetPinned(pinned, false).ok());
  EXPECT_TRUE(waiting->Wait(ContextFor()).ok());
}

TEST_F(EngineEviction, WaitForSpace_EndsAtDeadlineAndOnCancellation) {
  StartWithGranules(1);
  const auto lease = MustGet(artifacts_[0], kCpu);
  // On a busy machine it may be late before it begins to wait.
  auto late =
      engine_->Ingest(ContextFor(absl::Milliseconds(20)), {artifacts_[1].manifest, kCpu, nullptr, true});
  EXPECT_EQ((late.ok() ? (*late)->Wait(ContextFor()).status() : late.status()).code(),
            absl::StatusCode::kDeadlineExceeded);
  const RequestContext context;
  auto unwanted = Materialize(artifacts_[2], kCpu, nullptr, context, /*wait_for_space=*/true);
  context.cancellation.Cancel();
  EXPECT_EQ(unwanted->Wait(ContextFor()).status().code(), absl::StatusCode::kCancelled);
}

TEST_F(EngineEviction, WaitForSpace_LeavesOtherIngestsRunning) {
  Setup setup;
  setup.host_granules = 1;
  setup.max_concurrent_ingests = 1;
  Start(setup);
  auto lease = MustGet(artifacts_[0], kCpu);
  auto first = Materialize(artifacts_[1], kCpu, GoodProvider(artifacts_[1]), {}, /*wait_for_space=*/true);
  auto second = Materialize(artifacts_[2], kCpu, GoodProvider(artifacts_[2]), {}, /*wait_for_space=*/true);
  EXPECT_TRUE(Get(artifacts_[3], kGpu, GoodProvider(artifacts_[3])).ok());
  EXPECT_EQ(engine_->active_ingests(), 2);
  lease.reset();
  // Either may be first; the other gets its place when that one lets go.
  std::thread one([&first] {
    EXPECT_TRUE(first->Wait(ContextFor()).ok());
    first.reset();
  });
  EXPECT_TRUE(second->Wait(ContextFor()).ok());
  second.reset();
  one.join();
}

TEST_F(EngineEviction, Ingest_WaitsForMemoryOfCancelledIngest) {
  StartWithGranules(1);
  auto control = MakeControl(artifacts_[0].image, {.held = true});
  auto abandoned = Materialize(artifacts_[0], kCpu, ProviderOf({control}));
  control->WaitForHeldFetches(1);
  abandoned.reset();
  EXPECT_TRUE(Get(artifacts_[1], kCpu, GoodProvider(artifacts_[1])).ok());
}

TEST_F(EngineEviction, DeviceEviction_TakesIdleReplicaAndKeepsLeasedOnes) {
  Setup setup;
  setup.device_pool_bytes = 2 * kGranuleBytes;
  Start(setup);
  MustGet(artifacts_[0], kGpu);
  auto lease = MustGet(artifacts_[1], kGpu);
  MustGet(artifacts_[2], kGpu);
  EXPECT_FALSE(engine_->LeaseArtifact(artifacts_[0].manifest->id(), kGpu).ok());
  auto other = engine_->LeaseArtifact(artifacts_[2].manifest->id(), kGpu);
  const absl::Status full = Get(artifacts_[3], kGpu, GoodProvider(artifacts_[3])).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(full.message(), AllOf(HasSubstr("the pool of gpu:0"), HasSubstr("2 leased")));
  const TestArtifact elsewhere = artifacts_[3];
  EXPECT_TRUE(Get(elsewhere, {LocationKind::kGpu, 1}, GoodProvider(elsewhere)).ok())
      << "another device has room";
}

TEST_F(EngineEviction, EvictRequest_DrainsUntilLastLeaseEnds) {
  StartWithGranules(2);
  auto one = MustGet(artifacts_[0], kCpu);
  auto two = *engine_->LeaseReplica(one->replica_id());
  const std::string id = one->replica_id();
  EXPECT_TRUE(engine_->Evict(id, false).ok());
  EXPECT_TRUE(engine_->Evict(id, false).ok()) << "asking twice does no harm";
  EXPECT_EQ(engine_->LeaseReplica(id).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(engine_->SetPinned(id, true).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(engine_->ListReplicas()[0].state, ReplicaState::kDraining);
  one.reset();
  EXPECT_TRUE(Read(*two) == artifacts_[0].image) << "still there for its holder";
  EXPECT_EQ(pool_->stats().used_bytes, 3 * kGranuleBytes);
  two.reset();
  EXPECT_THAT(engine_->ListReplicas(), IsEmpty());
  EXPECT_EQ(pool_->stats().used_bytes, 2 * kGranuleBytes);
  listener_->WaitForState(id, ReplicaState::kGone);
}

TEST_F(EngineEviction, DrainingReplica_IsMadeAgainAsNewReplica) {
  StartWithGranules(2);
  auto old = MustGet(artifacts_[0], kCpu);
  ASSERT_TRUE(engine_->Evict(old->replica_id(), false).ok());
  auto fresh = MustGet(artifacts_[0], kCpu);
  EXPECT_NE(fresh->replica_id(), old->replica_id());
}

TEST_F(EngineEviction, EvictRequest_NeverForcesPinAndForcesGuardOnRequest) {
  StartWithGranules(2, /*guard=*/true);
  const std::string id = MustGet(artifacts_[0], kCpu)->replica_id();
  EXPECT_EQ(engine_->Evict("no such replica", false).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(engine_->SetPinned("no such replica", true).code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(engine_->SetPinned(id, true).ok());
  EXPECT_EQ(engine_->Evict(id, true).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(guard_.asked(), IsEmpty());
  ASSERT_TRUE(engine_->SetPinned(id, false).ok());
  guard_.Refuse(artifacts_[0].manifest->id());
  EXPECT_EQ(engine_->Evict(id, false).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(IsHere(0));
  EXPECT_TRUE(engine_->Evict(id, true).ok());
  EXPECT_FALSE(IsHere(0));
}

TEST_F(EngineEviction, EvictRequest_IsUnavailableWhenGuardCannotDecide) {
  StartWithGranules(2, /*guard=*/true);
  const std::string id = MustGet(artifacts_[0], kCpu)->replica_id();
  guard_.SetUndecided(true);
  const absl::Status undecided = engine_->Evict(id, false);
  EXPECT_EQ(undecided.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(undecided.message(), HasSubstr("the store is away"));
  EXPECT_TRUE(IsHere(0));
  guard_.SetUndecided(false);
  EXPECT_TRUE(engine_->Evict(id, false).ok());
}

TEST_F(EngineEviction, EvictRequest_RefusesFillingReplica) {
  StartWithGranules(2);
  auto control = MakeControl(artifacts_[0].image, {.held = true, .failing_chunks = {}});
  auto pending = Materialize(artifacts_[0], kCpu, ProviderOf({control}));
  control->WaitForHeldFetches(1);
  const ReplicaInfo filling = engine_->ListReplicas()[0];
  EXPECT_EQ(filling.state, ReplicaState::kFilling);
  EXPECT_EQ(filling.chunks_present, 0u);
  EXPECT_EQ(filling.chunks_total, 2u);
  EXPECT_EQ(engine_->Evict(filling.id, true).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(engine_->LeaseReplica(filling.id).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(engine_->SetPinned(filling.id, true).ok()) << "pinned before it is ready, it stays";
  control->Release();
  EXPECT_TRUE(pending->Wait(ContextFor()).ok());
  EXPECT_TRUE(engine_->ListReplicas()[0].pinned);
}

TEST_F(EngineEviction, Forget_SparesReplicaThatBecameReadyLater) {
  StartWithGranules(3);
  MustGet(artifacts_[0], kCpu);
  MustGet(artifacts_[0], kDisk);
  const SteadyTime said = SteadyNow();
  const std::string again = MustGet(artifacts_[0], kGpu)->replica_id();
  EXPECT_TRUE(engine_->Forget(artifacts_[0].manifest->id(), said).ok());
  ASSERT_EQ(engine_->ListReplicas().size(), 1u);
  EXPECT_EQ(engine_->ListReplicas()[0].id, again);
  EXPECT_TRUE(engine_->LeaseReplica(again).ok());
}

TEST_F(EngineEviction, Forget_DropsPinnedReplicasAndSparesOtherArtifacts) {
  StartWithGranules(3);
  const std::string id = MustGet(artifacts_[0], kCpu)->replica_id();
  MustGet(artifacts_[0], kGpu);
  MustGet(artifacts_[0], kDisk);
  MustGet(artifacts_[1], kCpu);
  ASSERT_TRUE(engine_->SetPinned(id, true).ok());
  EXPECT_TRUE(engine_->Forget(artifacts_[0].manifest->id(), SteadyTime::InfiniteFuture()).ok());
  EXPECT_THAT(Present(), ElementsAre(1));
  EXPECT_THAT(store_->List(), IsEmpty());
  EXPECT_FALSE(engine_->FindManifest(artifacts_[0].manifest->id()).ok());
  EXPECT_TRUE(engine_->Forget(artifacts_[0].manifest->id(), SteadyTime::InfiniteFuture()).ok())
      << "nothing left is nothing wrong";
}

TEST_F(EngineEviction, EngineCreate_FailsWithoutRoomForStagingBuffers) {
  StartWithGranules(1);
  EngineOptions options;
  options.host_pool = pool_.get();
  options.devices = devices_.get();
  options.staging_buffers = 100;
  EXPECT_EQ(StoreEngine::Create(options).status().code(), absl::StatusCode::kResourceExhausted);
  options.devices = nullptr;
  EXPECT_TRUE(StoreEngine::Create(options).ok()) << "without devices and disk nothing is staged";
}

}  // namespace
}  // namespace tensorcast::testing::eviction_test
