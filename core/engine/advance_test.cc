// Ingests that write their image over that of an earlier version (core/ingest/advance.h).
#include "core/ingest/advance.h"

#include <fcntl.h>

#include <algorithm>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/log/check.h"
#include "base/posix/unique_fd.h"
#include "base/testing/eventually.h"
#include "core/artifact/test_util.h"
#include "core/engine/engine_fixture.h"
#include "core/replicas/kept_replicas.h"
#include "gmock/gmock.h"

namespace tensorcast::testing::advance_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr uint32_t kChunks = 12;
// A chunk a granule, so that memory is counted in chunks.
constexpr uint64_t kChunkBytes = kGranuleBytes;

class EngineAdvance : public EngineFixture {
 protected:
  explicit EngineAdvance(Location location = kCpu, uint64_t chunk_bytes = kChunkBytes)
      : location_(location), base_(MakeChunkedArtifact(1, kChunks, chunk_bytes)) {}

  // Room for one image and a buffer, and no buffers that others share.
  static Setup Tight() {
    return {.host_granules = kChunks + 1, .staging_buffers = 0, .disk = false, .guard = true};
  }
  static Setup Roomy() { return {.host_granules = 3 * kChunks, .guard = true}; }

  // With other bytes in these chunks.
  static TestArtifact Next(TestArtifact artifact, const std::set<uint32_t>& changed) {
    const uint64_t bytes = artifact.layout.chunk_bytes;
    for (const uint32_t chunk : changed) {
      for (uint64_t i = 0; i < bytes; i += 512) artifact.image[chunk * bytes + i] ^= std::byte{1};
    }
    auto manifest =
        Manifest::Create(artifact.layout, DigestsOf(artifact.layout, artifact.image), {{"version", "2"}});
    CHECK_OK(manifest.status());
    artifact.manifest = *std::move(manifest);
    return artifact;
  }

  void Have(const TestArtifact& artifact) {
    MustGet(artifact, location_);
    WaitUntilIdle();
  }
  std::unique_ptr<PendingReplica> Ask(const std::vector<std::shared_ptr<SourceControl>>& sources,
                                      bool required = true, bool wait = false,
                                      const RequestContext& context = ContextFor()) {
    auto pending =
        engine_->Ingest(context, {.manifest = target_.manifest,
                                  .location = location_,
                                  .sources = ProviderOf(sources),
                                  .wait_for_space = wait,
                                  .advance = std::make_shared<Advance>(base_.manifest->id(), required)});
    CHECK_OK(pending.status());
    return *std::move(pending);
  }
  absl::Status Advanced(bool required = true) {
    return Ask({Far(target_)}, required)->Wait(ContextFor()).status();
  }
  static std::shared_ptr<SourceControl> Far(const TestArtifact& artifact, SourceScript script = {}) {
    script.name = "far";
    script.type = SourceType::kRemote;
    return MakeControl(artifact.image, std::move(script));
  }
  TransferReport LastReport() {
    WaitUntilIdle();
    return listener_->reports().back();
  }
  static std::vector<SourceReport> Advances(const TransferReport& report) {
    std::vector<SourceReport> advances;
    for (const SourceReport& source : report.sources) {
      if (source.source.lane == kAdvanceLane) advances.push_back(source);
    }
    return advances;
  }
  bool Has(const TestArtifact& artifact) const {
    return engine_->LeaseArtifact(artifact.manifest->id(), location_).ok();
  }
  void ExpectTarget() {
    const auto lease = engine_->LeaseArtifact(target_.manifest->id(), location_);
    ASSERT_TRUE(lease.ok()) << lease.status();
    EXPECT_TRUE(Read(**lease) == target_.image);
  }
  void ExpectBase() {
    const auto lease = engine_->LeaseArtifact(base_.manifest->id(), location_);
    ASSERT_TRUE(lease.ok()) << lease.status();
    EXPECT_TRUE(Read(**lease) == base_.image);
  }
  static std::set<const std::byte*> PlacesOf(const ReplicaLease& lease) {
    std::set<const std::byte*> places;
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      places.insert(lease.HostSpans(chunk * kChunkBytes, kChunkBytes).front().data());
    }
    return places;
  }

  const Location location_;
  const TestArtifact base_;
  const std::set<uint32_t> changed_ = {2, 5, 11};
  const TestArtifact target_ = Next(base_, changed_);
};

TEST_F(EngineAdvance, PoolWithRoomForOneImage_HoldsNextVersion) {
  Start(Tight());
  Have(base_);
  const auto places = PlacesOf(**engine_->LeaseArtifact(base_.manifest->id(), kCpu));
  const auto far = Far(target_);
  ASSERT_TRUE(Ask({far})->Wait(ContextFor()).ok());
  ExpectTarget();
  EXPECT_FALSE(Has(base_));
  EXPECT_THAT(far->fetches(), UnorderedElementsAre(Key(2U), Key(5U), Key(11U)));
  EXPECT_EQ(PlacesOf(**engine_->LeaseArtifact(target_.manifest->id(), kCpu)), places);
  const TransferReport report = LastReport();
  ASSERT_THAT(Advances(report), SizeIs(1));
  EXPECT_EQ(Advances(report)[0].source.name, base_.manifest->id());
  EXPECT_EQ(Advances(report)[0].chunks, kChunks - changed_.size());
  EXPECT_EQ(report.verified_chunks, kChunks);
  EXPECT_THAT(guard_.asked(), ElementsAre(base_.manifest->id()));
  EXPECT_EQ(pool_->stats().used_bytes, kChunks * kGranuleBytes) << "the buffer went back";
}

TEST_F(EngineAdvance, VersionWithNoEqualChunk_IsReportedAsAdvanced) {
  Start(Roomy());
  TestArtifact other = base_;
  std::set<uint32_t> all;
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) all.insert(chunk);
  other = Next(other, all);
  Have(base_);
  auto pending =
      engine_->Ingest(ContextFor(), {.manifest = other.manifest,
                                     .location = kCpu,
                                     .sources = GoodProvider(other),
                                     .advance = std::make_shared<Advance>(base_.manifest->id(), true)});
  ASSERT_TRUE(pending.ok()) << pending.status();
  ASSERT_TRUE((*pending)->Wait(ContextFor()).ok());
  const TransferReport report = LastReport();
  ASSERT_THAT(Advances(report), SizeIs(1));
  EXPECT_EQ(Advances(report)[0].chunks, 0u);
  EXPECT_TRUE(Advances(report)[0].status.ok());
}

TEST_F(EngineAdvance, LeasedBase_IsRefusedAndStays) {
  Start(Roomy());
  const auto lease = MustGet(base_, kCpu);
  const absl::Status refused = Advanced();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr(lease->replica_id()), HasSubstr("1 lease"),
                                                    HasSubstr("--wait"), HasSubstr("get without advance")));
  EXPECT_THAT(guard_.asked(), IsEmpty()) << "the consent is the last thing that is asked for";
  EXPECT_FALSE(Has(target_));
  ExpectBase();
}

TEST_F(EngineAdvance, LeasedBase_IsWaitedForWhereWanted) {
  Start(Roomy());
  auto lease = MustGet(base_, kCpu);
  const auto pending = Ask({Far(target_)}, /*required=*/true, /*wait=*/true);
  ASSERT_TRUE(Eventually([&] { return pending->progress().waiting_for.find("leases") != std::string::npos; }))
      << pending->progress().waiting_for;
  EXPECT_TRUE(Has(base_));
  lease.reset();
  ASSERT_TRUE(pending->Wait(ContextFor()).ok());
  ExpectTarget();
  EXPECT_FALSE(Has(base_));
}

TEST_F(EngineAdvance, WaitThatEnds_NamesWhatHeldTheBase) {
  Start(Roomy());
  const auto lease = MustGet(base_, kCpu);
  const auto pending =
      Ask({Far(target_)}, /*required=*/true, /*wait=*/true, ContextFor(absl::Milliseconds(50)));
  const absl::Status ended = pending->Wait(ContextFor()).status();
  EXPECT_EQ(ended.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(ended.message()), HasSubstr(lease->replica_id()));
  ExpectBase();
}

TEST_F(EngineAdvance, PinnedBase_IsRefused) {
  Start(Roomy());
  const std::string replica_id = MustGet(base_, kCpu)->replica_id();
  WaitUntilIdle();
  ASSERT_TRUE(engine_->SetPinned(replica_id, true).ok());
  EXPECT_THAT(std::string(Advanced().message()), AllOf(HasSubstr("is pinned"), HasSubstr("unpin")));
  ExpectBase();
}

TEST_F(EngineAdvance, LastCopy_IsRefusedAndStays) {
  Start(Roomy());
  Have(base_);
  guard_.Refuse(base_.manifest->id());
  const absl::Status refused = Advanced();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the last copy"));
  ExpectBase();
}

TEST_F(EngineAdvance, MemoryOfEarlierDaemon_IsRefused) {
  Start(Tight());
  Have(base_);
  HostPool::Kept kept;
  std::vector<NamedExtent> extents;
  {
    const auto lease = engine_->LeaseArtifact(base_.manifest->id(), kCpu);
    ASSERT_TRUE(lease.ok()) << lease.status();
    extents = pool_->Named(*(*lease)->memory().host);
  }
  for (size_t i = 0; i < pool_->segments().size(); ++i) {
    const int segment = fcntl(pool_->segments()[i].fd, F_DUPFD_CLOEXEC, 0);
    kept.segments.push_back({pool_->segment_name(i), UniqueFd(segment)});
  }
  const HostPool::Options options{
      .bytes = pool_->bytes(), .use_huge_pages = false, .prefault_threads = 0, .share_granules = false};
  engine_.reset();
  pool_.reset();
  pool_ = *HostPool::Create(options, std::move(kept));
  Restart();
  auto memory = pool_->Adopt(base_.image.size(), extents);
  ASSERT_TRUE(memory.ok()) << memory.status();
  std::vector<KeptReplica> replicas;
  replicas.push_back({base_.manifest, *std::move(memory)});
  engine_->Adopt(std::move(replicas), [](const std::string&, std::unique_ptr<ReplicaLease>) {});
  ASSERT_TRUE(Eventually([&] { return Has(base_); }));
  EXPECT_THAT(std::string(Advanced().message()), HasSubstr("read-only"));
  ExpectBase();
}

TEST_F(EngineAdvance, UnwantedRefusal_MakesVersionBesideBase) {
  Start(Roomy());
  const auto lease = MustGet(base_, kCpu);
  ASSERT_TRUE(Advanced(/*required=*/false).ok());
  ExpectTarget();
  ExpectBase();
  const TransferReport report = LastReport();
  ASSERT_THAT(Advances(report), SizeIs(1));
  EXPECT_EQ(Advances(report)[0].loss, SourceLoss::kNotOpened);
  EXPECT_THAT(std::string(Advances(report)[0].status.message()), HasSubstr("1 lease"));
}

TEST_F(EngineAdvance, EvictedBase_IsAnOrdinaryIngest) {
  Start(Roomy());
  EXPECT_TRUE(Advanced().ok());
  ExpectTarget();
  ASSERT_THAT(Advances(LastReport()), SizeIs(1));
  EXPECT_EQ(Advances(LastReport())[0].status.code(), absl::StatusCode::kNotFound);
}

TEST_F(EngineAdvance, OnlyNewChunks_AreServedMeanwhile) {
  Start(Roomy());
  const std::string base_replica = MustGet(base_, kCpu)->replica_id();
  WaitUntilIdle();
  const auto far = Far(target_, {.held = true});
  const auto pending = Ask({far});
  far->WaitForHeldFetches(1);
  // Listeners, of which one keeps a record for the next daemon, know it before the first byte is written.
  EXPECT_THAT(listener_->StatesOf(base_replica), Contains(ReplicaState::kGone));
  EXPECT_FALSE(Has(base_));
  std::string filling;
  for (const ReplicaInfo& replica : engine_->ListReplicas()) {
    if (replica.artifact_id == target_.manifest->id()) filling = replica.id;
  }
  const auto lease = engine_->LeaseFilling(filling);
  ASSERT_TRUE(lease.ok()) << lease.status();
  const Availability& there = *(*lease)->availability();
  ASSERT_TRUE(Eventually([&] { return there.count() == kChunks - changed_.size(); }));
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) EXPECT_EQ(there.Has(chunk), !changed_.contains(chunk));
  far->Release();
  ASSERT_TRUE(pending->Wait(ContextFor()).ok());
  ExpectTarget();
}

TEST_F(EngineAdvance, WrongChunk_IsNotWrittenOverTheOldOne) {
  Start(Roomy());
  auto base = MustGet(base_, kCpu);
  const std::byte* const place = base->HostSpans(5 * kChunkBytes, kChunkBytes).front().data();
  const auto liar = Far(target_, {.corrupt_chunks = {5}});
  const auto honest = Far(target_, {.held = true});
  auto pending = Ask({liar, honest}, /*required=*/true, /*wait=*/true);
  ASSERT_TRUE(Eventually([&] { return !pending->progress().waiting_for.empty(); }));
  base.reset();
  honest->WaitForHeldFetches(1);
  EXPECT_TRUE(std::equal(place, place + kChunkBytes, base_.image.begin() + 5 * kChunkBytes));
  honest->Release();
  ASSERT_TRUE(pending->Wait(ContextFor()).ok());
  ExpectTarget();
}

TEST_F(EngineAdvance, CancelledAdvance_LeavesNewChunksAndIsFinishedLater) {
  Start(Roomy());
  Have(base_);
  const auto far = Far(target_, {.held = true});
  auto pending = Ask({far});
  far->WaitForHeldFetches(1);
  ASSERT_TRUE(Eventually([&] { return pending->progress().bytes_done >= (kChunks - 3) * kChunkBytes; }));
  pending.reset();
  WaitUntilIdle();
  EXPECT_FALSE(Has(base_));
  const std::vector<ReplicaInfo> left = engine_->ListReplicas();
  ASSERT_THAT(left, SizeIs(1));
  EXPECT_EQ(left[0].state, ReplicaState::kPartial);
  EXPECT_EQ(left[0].chunks_present, kChunks - changed_.size());
  const auto again = Far(target_);
  ASSERT_TRUE(Ask({again})->Wait(ContextFor()).ok());
  EXPECT_THAT(again->fetches(), SizeIs(changed_.size()));
  ExpectTarget();
}

TEST_F(EngineAdvance, PartOfVersionHere_IsRefused) {
  Start(Roomy());
  auto part = engine_->Ingest(ContextFor(), {.manifest = target_.manifest,
                                             .location = kCpu,
                                             .sources = GoodProvider(target_),
                                             .chunks = std::vector<uint32_t>{1, 2}});
  ASSERT_TRUE(part.ok() && (*part)->Wait(ContextFor()).ok());
  part->reset();
  WaitUntilIdle();
  Have(base_);
  EXPECT_THAT(std::string(Advanced().message()),
              AllOf(HasSubstr("a partial replica of"), HasSubstr("get the new version without advance")));
  ExpectBase();
}

TEST_F(EngineAdvance, PartOrDisk_IsInvalid) {
  Start(Roomy());
  const auto advance = std::make_shared<Advance>(base_.manifest->id(), true);
  const auto disk = engine_->Ingest(ContextFor(), {.manifest = target_.manifest,
                                                   .location = kDisk,
                                                   .sources = GoodProvider(target_),
                                                   .advance = advance});
  EXPECT_EQ(disk.status().code(), absl::StatusCode::kInvalidArgument);
  const auto part = engine_->Ingest(ContextFor(), {.manifest = target_.manifest,
                                                   .location = kCpu,
                                                   .sources = GoodProvider(target_),
                                                   .chunks = std::vector<uint32_t>{1},
                                                   .advance = advance});
  EXPECT_EQ(part.status().code(), absl::StatusCode::kInvalidArgument);
}

// A GPU with room for one image.
class EngineAdvanceOnGpu : public EngineAdvance {
 protected:
  EngineAdvanceOnGpu() : EngineAdvance(kGpu, kStagingBytes) {
    Start({.device_pool_bytes = kChunks * kStagingBytes, .disk = false, .guard = true});
  }
  DevicePtr ImageOf(const TestArtifact& artifact) const {
    const auto lease = engine_->LeaseArtifact(artifact.manifest->id(), kGpu);
    CHECK_OK(lease.status());
    return (*lease)->memory().device;
  }
  void Damage(const TestArtifact& artifact, uint32_t chunk) {
    const std::vector<std::byte> wrong(16, std::byte{0x55});
    auto stream = devices_->CreateStream(kGpu.device);
    CHECK_OK(stream.status());
    CHECK_OK((*stream)->CopyToDevice(ImageOf(artifact) + chunk * kStagingBytes, wrong.data(), wrong.size()));
    CHECK_OK((*stream)->Synchronize());
  }
};

TEST_F(EngineAdvanceOnGpu, NextVersion_TakesTheAllocationOfTheBase) {
  Have(base_);
  const DevicePtr image = ImageOf(base_);
  const auto far = Far(target_);
  const auto pending = Ask({far});
  const auto lease = pending->Wait(ContextFor());
  ASSERT_TRUE(lease.ok()) << lease.status();
  ExpectTarget();
  EXPECT_EQ(ImageOf(target_), image);
  EXPECT_FALSE(Has(base_));
  EXPECT_THAT(far->fetches(), UnorderedElementsAre(Key(2U), Key(5U), Key(11U)));
  const TransferReport report = LastReport();
  ASSERT_THAT(Advances(report), SizeIs(1));
  EXPECT_EQ(Advances(report)[0].source.name, base_.manifest->id());
  EXPECT_EQ(Advances(report)[0].chunks, kChunks - changed_.size());
  EXPECT_EQ(report.verified_chunks, kChunks);
  EXPECT_THAT(guard_.asked(), ElementsAre(base_.manifest->id()));
}

TEST_F(EngineAdvanceOnGpu, DamagedChunk_ComesWhole) {
  Have(base_);
  Damage(base_, 7);
  const auto far = Far(target_);
  ASSERT_TRUE(Ask({far})->Wait(ContextFor()).ok());
  ExpectTarget();
  EXPECT_THAT(far->fetches(), AllOf(Contains(Key(2U)), Contains(Key(7U))));
}

// The policy is about copies between GPUs, and chunks that stay are not copied.
TEST_F(EngineAdvanceOnGpu, DamagedChunkWithoutVerification_ComesWhole) {
  setup_.device_verification = DeviceVerification::kOff;
  Restart();
  Have(base_);
  Damage(base_, 7);
  const auto far = Far(target_);
  ASSERT_TRUE(Ask({far})->Wait(ContextFor()).ok());
  ExpectTarget();
  EXPECT_THAT(far->fetches(), Contains(Key(7U)));
}

TEST_F(EngineAdvanceOnGpu, LeasedBase_IsRefusedAndStays) {
  const auto lease = MustGet(base_, kGpu);
  const absl::Status refused = Advanced();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr(lease->replica_id()), HasSubstr("1 lease")));
  EXPECT_THAT(guard_.asked(), IsEmpty());
  ExpectBase();
}

TEST_F(EngineAdvanceOnGpu, CopyThatFails_LeavesNeitherVersion) {
  Have(base_);
  const auto far = Far(target_, {.held = true});
  const auto pending = Ask({far});
  far->WaitForHeldFetches(1);
  faults_->fail_copies = 1;
  far->Release();
  const absl::Status failed = pending->Wait(ContextFor()).status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kInternal) << failed;
  EXPECT_FALSE(Has(base_));
  EXPECT_FALSE(Has(target_));
  Have(target_);  // there is room for it
  ExpectTarget();
}

}  // namespace
}  // namespace tensorcast::testing::advance_test
