// Replicas that are read while they fill: what their leases tell, and what holds the memory when they fail.
#include <algorithm>
#include <random>
#include <thread>

#include "absl/log/check.h"
#include "base/testing/eventually.h"
#include "core/engine/engine_fixture.h"
#include "gmock/gmock.h"

namespace tensorcast::testing::filling_lease_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint32_t kChunks = 8;

class EngineFillingLease : public EngineFixture {
 protected:
  // An ingest to host memory of which the first half is there; it stands still, in the fetch of the next
  // chunk.
  void StartHalf(const Setup& setup) {
    Start(setup);
    half_ = std::make_shared<Availability>(artifact_.layout.image_bytes, artifact_.layout.chunk_bytes);
    for (uint32_t chunk = 0; chunk < kChunks / 2; ++chunk) half_->Add(chunk);
    source_ = MakeControl(artifact_.image, {.name = "peer", .availability = half_});
    pending_ = Materialize(artifact_, kCpu, ProviderOf({source_}));
    replica_id_ = engine_->ListReplicas().front().id;
    listener_->WaitForState(replica_id_, ReplicaState::kFilling);
    auto lease = engine_->LeaseFilling(replica_id_);
    CHECK_OK(lease.status());
    lease_ = *std::move(lease);
    CHECK(Eventually([this] { return lease_->availability()->count() == kChunks / 2; }));
  }
  void StartHalf() { StartHalf(Setup()); }

  void FillTheRest() {
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) half_->Add(chunk);
  }
  // Its chunks that are said to be there are.
  void ExpectReadable(const ReplicaLease& lease) {
    const std::vector<std::byte> memory = Read(lease);
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      if (!lease.availability()->Has(chunk)) continue;
      const ByteRange range = artifact_.layout.chunk(chunk);
      EXPECT_TRUE(std::equal(artifact_.image.begin() + static_cast<ptrdiff_t>(range.offset),
                             artifact_.image.begin() + static_cast<ptrdiff_t>(range.offset + range.bytes),
                             memory.begin() + static_cast<ptrdiff_t>(range.offset)))
          << chunk;
    }
  }

  uint64_t UsedGranules() const { return pool_->stats().used_bytes / kGranuleBytes - setup_.staging_buffers; }

  const TestArtifact artifact_ = MakeChunkedArtifact(1, kChunks);
  std::shared_ptr<Availability> half_;  // of the source
  std::shared_ptr<SourceControl> source_;
  std::unique_ptr<PendingReplica> pending_;
  std::string replica_id_;
  std::unique_ptr<ReplicaLease> lease_;
};

TEST_F(EngineFillingLease, LeaseOnFillingReplica_StaysValidWhenReplicaIsReady) {
  StartHalf();
  EXPECT_EQ(lease_->replica_id(), replica_id_);
  EXPECT_EQ(lease_->manifest()->id(), artifact_.manifest->id());
  EXPECT_EQ(lease_->location(), kCpu);
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    EXPECT_EQ(lease_->availability()->Has(chunk), chunk < kChunks / 2);
  }
  ExpectReadable(*lease_);
  EXPECT_FALSE(lease_->availability()->ended());
  EXPECT_FALSE(engine_->LeaseReplica(replica_id_).ok()) << "it is not ready";
  FillTheRest();
  auto ready = pending_->Wait(ContextFor());
  ASSERT_TRUE(ready.ok()) << ready.status();
  EXPECT_EQ((*ready)->availability(), nullptr);
  EXPECT_TRUE(lease_->availability()->complete());
  EXPECT_EQ(lease_->availability()->end(), absl::OkStatus());
  ExpectReadable(*lease_);
  EXPECT_EQ(lease_->memory().host, (*ready)->memory().host);
  EXPECT_TRUE(engine_->LeaseFilling(replica_id_).ok());
  // It holds the replica as any other lease does.
  ready->reset();
  pending_.reset();
  EXPECT_EQ(engine_->ListReplicas().front().leases, 1u);
  EXPECT_TRUE(engine_->Evict(replica_id_, /*force=*/true).ok());
  EXPECT_EQ(UsedGranules(), 1u);
  lease_.reset();
  EXPECT_EQ(UsedGranules(), 0u);
}

TEST_F(EngineFillingLease, LeaseOnFillingReplica_KeepsVerifiedChunksAfterCancellation) {
  StartHalf();
  pending_.reset();
  WaitUntilIdle();
  ASSERT_THAT(engine_->ListReplicas(), SizeIs(1));
  EXPECT_EQ(engine_->ListReplicas().front().state, ReplicaState::kPartial);
  ASSERT_TRUE(lease_->availability()->ended());
  EXPECT_EQ(lease_->availability()->end().code(), absl::StatusCode::kCancelled);
  ExpectReadable(*lease_);
  EXPECT_EQ(UsedGranules(), 1u);
  EXPECT_TRUE(engine_->Evict(replica_id_, /*force=*/false).ok());
  EXPECT_FALSE(engine_->LeaseFilling(replica_id_).ok());
  EXPECT_EQ(UsedGranules(), 1u);
  ExpectReadable(*lease_);
  lease_.reset();
  EXPECT_EQ(UsedGranules(), 0u);
}

TEST_F(EngineFillingLease, LeaseOnFillingReplica_ReportsErrorOfFailedIngest) {
  StartHalf();
  half_->End(absl::UnavailableError("the peer went away"));
  EXPECT_FALSE(pending_->Wait(ContextFor()).ok());
  EXPECT_THAT(lease_->availability()->end().message(), HasSubstr("the peer went away"));
  ExpectReadable(*lease_);
  lease_.reset();
  EXPECT_TRUE(engine_->Evict(replica_id_, /*force=*/false).ok()) << "what was verified, which stayed";
  EXPECT_EQ(UsedGranules(), 0u);
}

TEST_F(EngineFillingLease, LeaseOnFillingReplica_ReportsDeletionOfArtifact) {
  StartHalf();
  EXPECT_TRUE(engine_->Forget(artifact_.manifest->id(), SteadyTime::InfiniteFuture()).ok());
  EXPECT_FALSE(pending_->Wait(ContextFor()).ok());
  EXPECT_THAT(lease_->availability()->end().message(), HasSubstr("was deleted"));
  lease_.reset();
}

TEST_F(EngineFillingLease, LeaseOnFillingReplica_HoldsItsMemoryAfterCancellation) {
  Setup setup;
  setup.host_granules = 1;
  StartHalf(setup);
  const TestArtifact other = MakeChunkedArtifact(2, kChunks);
  pending_.reset();
  WaitUntilIdle();
  EXPECT_THAT(Get(other, kCpu, GoodProvider(other)).status().message(), HasSubstr("1 leased"));
  auto waiting = Materialize(other, kCpu, GoodProvider(other), ContextFor(), /*wait_for_space=*/true);
  EXPECT_EQ(engine_->active_ingests(), 1);
  lease_.reset();
  EXPECT_TRUE(waiting->Wait(ContextFor()).ok()) << "told that there is room";
}

TEST_F(EngineFillingLease, LeaseToServe_IsToldToStopWhenMemoryIsNeeded) {
  StartHalf({.host_granules = 1});
  lease_.reset();
  Reader reader(engine_->LeaseToServe(replica_id_));
  pending_.reset();
  const TestArtifact other = MakeChunkedArtifact(2, 2);
  MustGet(other, kCpu);
  EXPECT_TRUE(reader.told_to_stop());
}

TEST_F(EngineFillingLease, LeaseFilling_IsRefusedOnDeviceAndForUnknownArtifact) {
  Start();
  auto to_device_from = MakeControl(artifact_.image, {.held = true});
  auto to_device = Materialize(artifact_, kGpu, ProviderOf({to_device_from}));
  const TestArtifact unknown = MakeTestArtifact(2, {5000});
  auto first_from = MakeControl(unknown.image, {.held = true});
  auto first = engine_->Ingest(ContextFor(), {.location = kCpu,
                                              .sources = ProviderOf({first_from}),
                                              .new_layout = unknown.layout,
                                              .new_metadata = unknown.manifest->metadata()});
  ASSERT_TRUE(first.ok()) << first.status();
  to_device_from->WaitForHeldFetches(1);
  first_from->WaitForHeldFetches(1);
  ASSERT_THAT(engine_->ListReplicas(), SizeIs(2));
  for (const ReplicaInfo& replica : engine_->ListReplicas()) {
    EXPECT_EQ(replica.state, ReplicaState::kFilling);
    EXPECT_EQ(engine_->LeaseFilling(replica.id).status().code(), absl::StatusCode::kNotFound);
  }
  EXPECT_EQ(engine_->LeaseFilling("no such replica").status().code(), absl::StatusCode::kNotFound);
  to_device_from->Release();
  first_from->Release();
  EXPECT_TRUE(to_device->Wait(ContextFor()).ok());
  EXPECT_TRUE((*first)->Wait(ContextFor()).ok());
}

TEST_F(EngineFillingLease, FillingHostReplica_FillsDeviceReplicaMeanwhile) {
  StartHalf();
  auto untouched = ProviderOf({});
  auto to_device = Materialize(artifact_, kGpu, untouched);
  EXPECT_TRUE(Eventually([&] { return to_device->progress().bytes_done >= artifact_.image.size() / 2; }));
  EXPECT_EQ(to_device->progress().sources.front().source.name, "cpu");
  FillTheRest();
  auto lease = to_device->Wait(ContextFor());
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(Read(**lease) == artifact_.image);
  EXPECT_EQ(untouched->calls(), 0);
  EXPECT_EQ(source_->total_fetches(), static_cast<int>(kChunks)) << "from elsewhere, once";
  lease_.reset();
}

TEST_F(EngineFillingLease, SourceThatFailsToFill_LetsReadersGoOnElsewhere) {
  StartHalf();
  auto elsewhere = MakeControl(artifact_.image, {.name = "elsewhere"});
  auto provider = ProviderOf({elsewhere});
  auto to_device = Materialize(artifact_, kGpu, provider);
  EXPECT_TRUE(Eventually([&] { return to_device->progress().bytes_done >= artifact_.image.size() / 2; }));
  pending_.reset();  // the request for it in host memory is gone
  auto lease = to_device->Wait(ContextFor());
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(Read(**lease) == artifact_.image);
  EXPECT_EQ(elsewhere->total_fetches(), static_cast<int>(kChunks / 2));
  EXPECT_THAT(provider->failures(), IsEmpty()) << "the provider hears of its own sources only";
  lease_.reset();
}

// Ingests that fill from sources which themselves fill, fail and are cancelled, while others take leases on
// what fills, read what is said to be there, and let go at any moment.
TEST_F(EngineFillingLease, RandomFillingLeases_LeaveNoReplicasAndMemory) {
  Setup setup;
  setup.host_granules = 2;
  setup.max_concurrent_ingests = 3;
  setup.peer_timeout = absl::Milliseconds(5);
  Start(setup);
  constexpr int kSteps = 60;
  std::atomic<bool> over = false;
  auto ingests = [&](unsigned seed) {
    std::mt19937 random(seed);
    for (int step = 0; step < kSteps; ++step) {
      auto has = std::make_shared<Availability>(artifact_.layout.image_bytes, artifact_.layout.chunk_bytes);
      SourceScript script{.name = "filling", .own_thread = random() % 2 == 0, .availability = has};
      if (random() % 4 == 0) script.failing_chunks.insert(random() % kChunks);
      if (random() % 4 == 0) script.corrupt_chunks.insert(random() % kChunks);
      const Location location = random() % 3 == 0 ? kGpu : kCpu;
      auto pending = Materialize(
          artifact_, location,
          std::make_shared<ScriptedProvider>(std::vector<SourceBatch>{
              {.controls = {MakeControl(artifact_.image, script), MakeControl(artifact_.image, script)}},
              {.controls = {MakeControl(artifact_.image)}}}));
      const uint32_t chunks = random() % (kChunks + 1);
      for (uint32_t chunk = 0; chunk < chunks; ++chunk) has->Add(chunk);
      if (random() % 2 == 0) has->End(chunks == kChunks ? absl::OkStatus() : absl::AbortedError("it ended"));
      if (random() % 2 == 0) {
        if (auto lease = pending->Wait(ContextFor()); lease.ok()) {
          EXPECT_TRUE(Read(**lease) == artifact_.image);
        }
      }
      pending.reset();
      if (random() % 2 == 0) (void)engine_->Forget(artifact_.manifest->id(), SteadyTime::InfiniteFuture());
    }
  };
  auto readers = [&] {
    while (!over) {
      for (const ReplicaInfo& replica : engine_->ListReplicas()) {
        auto lease = engine_->LeaseFilling(replica.id);
        if (!lease.ok() || (*lease)->location() != kCpu || (*lease)->availability() == nullptr) continue;
        for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
          if (!(*lease)->availability()->Has(chunk)) continue;
          const ByteRange range = artifact_.layout.chunk(chunk);
          auto at = artifact_.image.begin() + static_cast<ptrdiff_t>(range.offset);
          for (const ConstHostSpan span : (*lease)->HostSpans(range.offset, range.bytes)) {
            EXPECT_TRUE(std::equal(span.begin(), span.end(), at));
            at += static_cast<ptrdiff_t>(span.size());
          }
        }
      }
    }
  };
  std::vector<std::thread> makers;
  for (unsigned seed = 0; seed < 4; ++seed) makers.emplace_back(ingests, seed);
  std::thread reader(readers);
  for (std::thread& maker : makers) maker.join();
  over = true;
  reader.join();
  WaitUntilIdle();
  EXPECT_TRUE(engine_->Forget(artifact_.manifest->id(), SteadyTime::InfiniteFuture()).ok());
  EXPECT_THAT(engine_->ListReplicas(), IsEmpty());
  EXPECT_EQ(UsedGranules(), 0u);
}

// A node that wants an artifact on several of its devices brings it once.
class EngineFillingDevice : public EngineFillingLease {
 protected:
  // To the first device, of which the first half is there.
  void StartHalfOnDevice() {
    Start();
    half_ = std::make_shared<Availability>(artifact_.layout.image_bytes, artifact_.layout.chunk_bytes);
    for (uint32_t chunk = 0; chunk < kChunks / 2; ++chunk) half_->Add(chunk);
    source_ = MakeControl(artifact_.image, {.name = "peer", .availability = half_});
    pending_ = Materialize(artifact_, kFirst, ProviderOf({source_}));
  }
  bool HasHalf(Location location) const {
    const std::vector<ReplicaInfo> replicas = engine_->ListReplicas();
    return std::ranges::any_of(replicas, [location](const ReplicaInfo& replica) {
      return replica.location == location && replica.chunks_present == kChunks / 2;
    });
  }
  void ExpectWhole(PendingReplica& pending) {
    auto ready = pending.Wait(ContextFor());
    ASSERT_TRUE(ready.ok()) << ready.status();
    EXPECT_TRUE(Read(**ready) == artifact_.image);
  }

  static constexpr Location kFirst{LocationKind::kGpu, 0};
  static constexpr Location kSecond{LocationKind::kGpu, 1};
};

TEST_F(EngineFillingDevice, FillingDeviceReplica_FillsAnotherDeviceMeanwhile) {
  StartHalfOnDevice();
  const auto nowhere_else = ProviderOf({});
  const auto second = Materialize(artifact_, kSecond, nowhere_else);
  EXPECT_TRUE(Eventually([this] { return HasHalf(kSecond); }));
  FillTheRest();
  ExpectWhole(*pending_);
  ExpectWhole(*second);
  EXPECT_EQ(nowhere_else->calls(), 0);
  for (const auto& [chunk, fetches] : source_->fetches()) EXPECT_EQ(fetches, 1) << chunk;
}

TEST_F(EngineFillingDevice, FillingDeviceReplica_FillsHostReplicaMeanwhile) {
  StartHalfOnDevice();
  const auto nowhere_else = ProviderOf({});
  const auto second = Materialize(artifact_, kCpu, nowhere_else);
  EXPECT_TRUE(Eventually([this] { return HasHalf(kCpu); }));
  FillTheRest();
  ExpectWhole(*second);
  EXPECT_EQ(nowhere_else->calls(), 0);
}

TEST_F(EngineFillingDevice, SourceThatFailsToFill_LetsCopiesGoOnElsewhere) {
  StartHalfOnDevice();
  const auto elsewhere = GoodProvider(artifact_);
  const auto second = Materialize(artifact_, kSecond, elsewhere);
  EXPECT_TRUE(Eventually([this] { return HasHalf(kSecond); }));
  half_->End(absl::UnavailableError("the peer went away"));
  EXPECT_FALSE(pending_->Wait(ContextFor()).ok());
  ExpectWhole(*second);
  EXPECT_EQ(elsewhere->calls(), 1);
}

TEST_F(EngineFillingDevice, FillingDeviceReplica_CannotBeLeasedAndLeavesNoPart) {
  StartHalfOnDevice();
  EXPECT_TRUE(Eventually([this] { return HasHalf(kFirst); }));
  EXPECT_FALSE(engine_->LeaseFilling(engine_->ListReplicas().front().id).ok());
  pending_.reset();
  WaitUntilIdle();
  EXPECT_THAT(engine_->ListReplicas(), IsEmpty()) << "on a device nothing partial stays";
}

}  // namespace
}  // namespace tensorcast::testing::filling_lease_test
