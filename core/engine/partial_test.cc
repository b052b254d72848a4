// Partial replicas: some chunks of an artifact in host memory, because no others were wanted or because an
// ingest did not come to its end. What they give, hold and become.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/log/check.h"
#include "base/testing/eventually.h"
#include "core/engine/engine_fixture.h"
#include "gmock/gmock.h"

namespace tensorcast::testing::partial_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using enum ReplicaState;

constexpr uint32_t kChunks = 8;
// A chunk a granule, so that memory is counted in chunks.
constexpr uint64_t kChunkBytes = kGranuleBytes;
using Chunks = std::vector<uint32_t>;

class EnginePartial : public EngineFixture {
 protected:
  static Setup Plain() { return {.host_granules = 20, .peer_timeout = absl::Milliseconds(50)}; }

  std::unique_ptr<PendingReplica> Ask(std::shared_ptr<SourceProvider> sources, std::optional<Chunks> chunks,
                                      const RequestContext& context = {}) {
    auto pending = engine_->Ingest(context, {.manifest = artifact_.manifest,
                                             .location = kCpu,
                                             .sources = std::move(sources),
                                             .chunks = std::move(chunks)});
    CHECK_OK(pending.status());
    return *std::move(pending);
  }
  // From a source that has all, to the end.
  std::unique_ptr<ReplicaLease> GetChunks(const Chunks& chunks) {
    auto lease = Ask(ProviderOf({MakeControl(artifact_.image)}), chunks)->Wait(ContextFor());
    CHECK_OK(lease.status());
    return *std::move(lease);
  }
  // A partial replica with these chunks, without a holder.
  std::string MakePartial(const Chunks& chunks) { return GetChunks(chunks)->replica_id(); }

  ReplicaInfo Only() const {
    const std::vector<ReplicaInfo> replicas = engine_->ListReplicas();
    CHECK_EQ(replicas.size(), 1u);
    return replicas.front();
  }

  Chunks Present(const ReplicaLease& lease) const {
    Chunks present;
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      if (lease.availability() == nullptr || lease.availability()->Has(chunk)) present.push_back(chunk);
    }
    return present;
  }

  // What the lease says is there has the artifact's bytes.
  void ExpectReadable(const ReplicaLease& lease) const {
    for (const uint32_t chunk : Present(lease)) {
      const ByteRange range = artifact_.layout.chunk(chunk);
      auto at = artifact_.image.begin() + static_cast<ptrdiff_t>(range.offset);
      for (const ConstHostSpan span : lease.HostSpans(range.offset, range.bytes)) {
        EXPECT_TRUE(std::equal(span.begin(), span.end(), at)) << chunk;
        at += static_cast<ptrdiff_t>(span.size());
      }
    }
  }

  static Chunks Fetched(const SourceControl& source) {
    Chunks fetched;
    for (const auto& [chunk, times] : source.fetches()) {
      EXPECT_EQ(times, 1) << chunk;
      fetched.push_back(chunk);
    }
    return fetched;
  }

  uint64_t UsedGranules() const { return pool_->stats().used_bytes / kGranuleBytes - setup_.staging_buffers; }

  const TestArtifact artifact_ = MakeChunkedArtifact(1, kChunks, kChunkBytes);
};

TEST_F(EnginePartial, PartialReplica_HoldsOnlyChosenChunksAndTheirMemory) {
  Start(Plain());
  auto source = MakeControl(artifact_.image);
  auto pending = Ask(ProviderOf({source}), Chunks{1, 2, 6});
  auto lease = pending->Wait(ContextFor());
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_THAT(Fetched(*source), ElementsAre(1, 2, 6));
  EXPECT_THAT(Present(**lease), ElementsAre(1, 2, 6));
  EXPECT_FALSE((*lease)->availability()->ended());
  EXPECT_TRUE((*lease)->partial());
  ExpectReadable(**lease);
  EXPECT_EQ(UsedGranules(), 3u);
  EXPECT_EQ(Only().state, kPartial);
  EXPECT_EQ(Only().chunks_present, 3u);
  EXPECT_EQ(Only().chunks_total, kChunks);
  const TransferReport report = *pending->report();
  EXPECT_EQ(report.bytes, 3 * kChunkBytes);
  EXPECT_EQ(report.bytes_total, 3 * kChunkBytes);
  EXPECT_EQ(report.bytes_present, 0u);
  EXPECT_EQ(report.verified_chunks, 3u);
  EXPECT_EQ(report.replica_id, (*lease)->replica_id());
  listener_->WaitForState(report.replica_id, kPartial);
  EXPECT_THAT(listener_->StatesOf(report.replica_id), ElementsAre(kAllocating, kFilling, kPartial));
  EXPECT_FALSE(engine_->LeaseReplica(report.replica_id).ok()) << "it is not whole";
  EXPECT_FALSE(engine_->LeaseArtifact(artifact_.manifest->id(), kCpu).ok());
}

TEST_F(EnginePartial, ReplicaOfAllChunks_IsReadyInsteadOfPartial) {
  Start(Plain());
  auto lease = GetChunks({0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(lease->availability(), nullptr);
  EXPECT_EQ(Only().state, kReady);
}

TEST_F(EnginePartial, PartialReplicaOfNoChunks_TakesNoMemory) {
  Start(Plain());
  auto no_source = ProviderOf({});
  auto lease = Ask(no_source, Chunks{})->Wait(ContextFor());
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_THAT(Present(**lease), IsEmpty());
  EXPECT_EQ(no_source->calls(), 0);
  EXPECT_EQ(UsedGranules(), 0u);
  EXPECT_EQ(Only().state, kPartial);
}

TEST_F(EnginePartial, PartialIngest_RefusesOtherLocationsAndInvalidChunks) {
  Start(Plain());
  const auto ask = [&](IngestRequest request) {
    return engine_->Ingest(ContextFor(), std::move(request)).status();
  };
  for (const Location location : {kGpu, kDisk}) {
    const absl::Status status =
        ask({.manifest = artifact_.manifest, .location = location, .chunks = Chunks{1}});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), AllOf(HasSubstr(location.ToString()), HasSubstr("host memory")));
  }
  const auto source = ProviderOf({MakeControl(artifact_.image)});
  EXPECT_EQ(
      ask({.location = kCpu, .sources = source, .new_layout = artifact_.layout, .chunks = Chunks{1}}).code(),
      absl::StatusCode::kInvalidArgument);
  for (const Chunks& wrong : {Chunks{8}, Chunks{2, 1}, Chunks{1, 1}, Chunks{0xffffffffU}}) {
    EXPECT_EQ(ask({.manifest = artifact_.manifest, .location = kCpu, .chunks = wrong}).code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(engine_->ListReplicas(), IsEmpty());
}

TEST_F(EnginePartial, RequestForPresentChunks_IsServedAtOnce) {
  Start(Plain());
  const std::string id = MakePartial({1, 2, 6});
  auto no_source = ProviderOf({});
  auto pending = Ask(no_source, Chunks{2, 6});
  auto lease = pending->Wait(ContextFor());
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_EQ((*lease)->replica_id(), id);
  EXPECT_FALSE(pending->report().has_value());
  EXPECT_EQ(pending->progress().bytes_total, 2 * kChunkBytes);
  EXPECT_EQ(no_source->calls(), 0);
}

TEST_F(EnginePartial, LeasedPartialReplica_GrowsToWholeByFetchingTheRest) {
  Start(Plain());
  auto early = GetChunks({1, 2, 6});
  auto rest = MakeControl(artifact_.image);
  auto pending = Ask(ProviderOf({rest}), std::nullopt);
  auto whole = pending->Wait(ContextFor());
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_THAT(Fetched(*rest), ElementsAre(0, 3, 4, 5, 7));
  EXPECT_EQ((*whole)->replica_id(), early->replica_id());
  EXPECT_EQ((*whole)->availability(), nullptr);
  EXPECT_TRUE(Read(**whole) == artifact_.image);
  EXPECT_TRUE(early->availability()->complete()) << "it serves all chunks from now on";
  EXPECT_EQ(early->availability()->end(), absl::OkStatus());
  ExpectReadable(*early);
  EXPECT_EQ(UsedGranules(), kChunks);
  EXPECT_EQ(Only().state, kReady);
  EXPECT_EQ(pending->report()->bytes, 5 * kChunkBytes);
  EXPECT_EQ(pending->report()->bytes_total, 5 * kChunkBytes);
  EXPECT_EQ(pending->report()->bytes_present, 3 * kChunkBytes);
  EXPECT_EQ(pending->report()->replica_id, early->replica_id());
  listener_->WaitForState(early->replica_id(), kReady);
  EXPECT_THAT(listener_->StatesOf(early->replica_id()),
              ElementsAre(kAllocating, kFilling, kPartial, kFilling, kReady));
}

TEST_F(EnginePartial, PartialReplica_GrowsByOtherChunks) {
  Start(Plain());
  auto early = GetChunks({1, 2});
  auto source = MakeControl(artifact_.image);
  auto lease = Ask(ProviderOf({source}), Chunks{2, 5})->Wait(ContextFor());
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_THAT(Fetched(*source), ElementsAre(5));
  EXPECT_THAT(Present(**lease), ElementsAre(1, 2, 5));
  EXPECT_EQ((*lease)->availability(), early->availability()) << "it only grows";
  ExpectReadable(*early);
  EXPECT_EQ(UsedGranules(), 3u);
  EXPECT_EQ(Only().state, kPartial);
}

TEST_F(EnginePartial, CancelledIngest_LeavesPartialReplicaThatNextIngestFills) {
  Start(Plain());
  auto half = std::make_shared<Availability>(artifact_.layout.image_bytes, kChunkBytes);
  for (uint32_t chunk = 0; chunk < kChunks / 2; ++chunk) half->Add(chunk);
  auto source = MakeControl(artifact_.image, {.availability = half});
  auto pending = Materialize(artifact_, kCpu, ProviderOf({source}));
  EXPECT_TRUE(Eventually([&] { return pending->progress().bytes_done == kChunks / 2 * kChunkBytes; }));
  auto lease = engine_->LeaseFilling(Only().id);
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_FALSE((*lease)->partial());
  pending.reset();
  WaitUntilIdle();
  EXPECT_EQ(Only().state, kPartial);
  EXPECT_EQ(Only().chunks_present, kChunks / 2);
  // Its reader is told that no more comes; a later reader finds what is there.
  ASSERT_TRUE((*lease)->availability()->ended());
  EXPECT_EQ((*lease)->availability()->end().code(), absl::StatusCode::kCancelled);
  ExpectReadable(**lease);
  EXPECT_EQ(UsedGranules(), kChunks) << "of the lease";
  lease->reset();
  EXPECT_EQ(UsedGranules(), kChunks / 2);
  auto idle = engine_->LeaseFilling(Only().id);
  ASSERT_TRUE(idle.ok()) << idle.status();
  EXPECT_FALSE((*idle)->availability()->ended());
  EXPECT_THAT(Present(**idle), ElementsAre(0, 1, 2, 3));
  ExpectReadable(**idle);

  auto rest = MakeControl(artifact_.image);
  auto whole = Get(artifact_, kCpu, ProviderOf({rest}));
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_THAT(Fetched(*rest), ElementsAre(4, 5, 6, 7));
  EXPECT_TRUE(Read(**whole) == artifact_.image);
  EXPECT_TRUE((*idle)->availability()->complete());
  ExpectReadable(**idle);
}

TEST_F(EnginePartial, RequestDuringCancellation_ContinuesFromPresentChunks) {
  Start(Plain());
  auto half = std::make_shared<Availability>(artifact_.layout.image_bytes, kChunkBytes);
  for (uint32_t chunk = 0; chunk < kChunks / 2; ++chunk) half->Add(chunk);
  auto pending =
      Materialize(artifact_, kCpu, ProviderOf({MakeControl(artifact_.image, {.availability = half})}));
  EXPECT_TRUE(Eventually([&] { return pending->progress().bytes_done == kChunks / 2 * kChunkBytes; }));
  auto rest = MakeControl(artifact_.image);
  pending.reset();
  auto again = Get(artifact_, kCpu, ProviderOf({rest}));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_THAT(Fetched(*rest), ElementsAre(4, 5, 6, 7));
  EXPECT_TRUE(Read(**again) == artifact_.image);
  EXPECT_THAT(engine_->ListReplicas(), SizeIs(1));
}

TEST_F(EnginePartial, FailedIngest_LeavesPartialReplicaThatNextIngestFills) {
  Start(Plain());
  auto failing = MakeControl(artifact_.image, {.max_concurrency = 1, .failing_chunks = {5}});
  auto pending = Materialize(artifact_, kCpu, ProviderOf({failing}));
  EXPECT_FALSE(pending->Wait(ContextFor()).ok());
  const std::string id = pending->report()->replica_id;
  EXPECT_EQ(Only().id, id);
  EXPECT_EQ(Only().state, kPartial);
  EXPECT_EQ(Only().chunks_present, 5u);
  EXPECT_EQ(UsedGranules(), 5u);
  auto rest = MakeControl(artifact_.image);
  pending = Materialize(artifact_, kCpu, ProviderOf({rest}));
  auto whole = pending->Wait(ContextFor());
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_THAT(Fetched(*rest), ElementsAre(5, 6, 7));
  EXPECT_EQ(pending->report()->bytes_present, 5 * kChunkBytes);
  EXPECT_EQ((*whole)->replica_id(), id);
}

TEST_F(EnginePartial, FailedIngestWithoutVerifiedChunk_LeavesNoReplica) {
  Start(Plain());
  auto pending = Ask(ProviderOf({MakeControl(artifact_.image, {.corrupt_chunks = {3}})}), Chunks{3});
  EXPECT_FALSE(pending->Wait(ContextFor()).ok());
  EXPECT_THAT(engine_->ListReplicas(), IsEmpty());
  EXPECT_EQ(UsedGranules(), 0u);
}

TEST_F(EnginePartial, RequestsForOtherChunks_RunOneAfterAnother) {
  Start(Plain());
  auto held = MakeControl(artifact_.image, {.held = true});
  auto one = Ask(ProviderOf({held}), Chunks{1, 2});
  held->WaitForHeldFetches(1);
  auto other_source = MakeControl(artifact_.image);
  auto other = Ask(ProviderOf({other_source}), Chunks{2, 3});
  EXPECT_FALSE(other->shared()) << "one that does not bring chunk 3 is none to join";
  auto joins = Ask(ProviderOf({}), Chunks{1});
  EXPECT_TRUE(joins->shared());
  auto joins_other = Ask(ProviderOf({}), Chunks{3});
  EXPECT_TRUE(joins_other->shared());
  EXPECT_EQ(engine_->queued_ingests(), 1);
  EXPECT_EQ(other_source->opened(), 0);
  held->Release();
  for (PendingReplica* pending : {one.get(), other.get(), joins.get(), joins_other.get()}) {
    auto lease = pending->Wait(ContextFor());
    ASSERT_TRUE(lease.ok()) << lease.status();
    ExpectReadable(**lease);
  }
  EXPECT_THAT(Fetched(*held), ElementsAre(1, 2));
  EXPECT_THAT(Fetched(*other_source), ElementsAre(3));
  EXPECT_EQ(Only().chunks_present, 3u);
}

TEST_F(EnginePartial, QueuedPartialRequest_MayFindReplicaReady) {
  Start(Plain());
  auto held = MakeControl(artifact_.image, {.held = true});
  auto cancelled = Materialize(artifact_, kCpu, ProviderOf({held}));
  held->WaitForHeldFetches(1);
  auto few = Ask(ProviderOf({MakeControl(artifact_.image)}), Chunks{1});
  auto all = Ask(ProviderOf({}), std::nullopt);
  EXPECT_TRUE(few->shared());
  EXPECT_TRUE(all->shared());
  held->Release();
  EXPECT_TRUE(all->Wait(ContextFor()).ok());
  auto lease = few->Wait(ContextFor());
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_EQ((*lease)->availability(), nullptr);
}

TEST_F(EnginePartial, PartialReplica_IsEvictedFirstWithoutAskingTheGuard) {
  Setup setup = Plain();
  setup.host_granules = 6;
  setup.guard = true;
  Start(setup);
  const std::string partial = MakePartial({0, 1, 2});
  const TestArtifact whole = MakeChunkedArtifact(2, 2, kChunkBytes);
  const std::string ready = MustGet(whole, kCpu)->replica_id();
  ASSERT_TRUE(engine_->LeaseFilling(partial).ok()) << "used later than the ready one";
  const TestArtifact other = MakeChunkedArtifact(3, 3, kChunkBytes);
  EXPECT_TRUE(Get(other, kCpu, GoodProvider(other)).ok());
  EXPECT_THAT(guard_.asked(), IsEmpty());
  listener_->WaitForState(partial, kGone);
  EXPECT_TRUE(engine_->LeaseReplica(ready).ok());
  EXPECT_EQ(UsedGranules(), 5u);
}

TEST_F(EnginePartial, PartialReplica_IsKeptWhileLeasedPinnedOrGrowing) {
  Setup setup = Plain();
  setup.host_granules = 3;
  Start(setup);
  auto lease = GetChunks({0, 1});
  const std::string id = lease->replica_id();
  const TestArtifact other = MakeChunkedArtifact(2, 2, kChunkBytes);
  EXPECT_THAT(Get(other, kCpu, GoodProvider(other)).status().message(),
              HasSubstr("1 leased replica (4194304 bytes)"));
  lease.reset();
  EXPECT_TRUE(engine_->SetPinned(id, true).ok());
  EXPECT_THAT(Get(other, kCpu, GoodProvider(other)).status().message(),
              HasSubstr("1 pinned replica (4194304 bytes)"));
  EXPECT_TRUE(engine_->SetPinned(id, false).ok());
  auto held = MakeControl(artifact_.image, {.held = true});
  auto growing = Ask(ProviderOf({held}), Chunks{2});
  held->WaitForHeldFetches(1);
  EXPECT_EQ(engine_->Evict(id, /*force=*/true).code(), absl::StatusCode::kFailedPrecondition);
  growing.reset();
  ASSERT_TRUE(Eventually([this] {
    const std::vector<ReplicaInfo> replicas = engine_->ListReplicas();
    return replicas.size() == 1 && replicas[0].state == ReplicaState::kPartial;
  })) << "the caller that asked for more has gone";
  EXPECT_TRUE(Get(other, kCpu, GoodProvider(other)).ok()) << "it may go";
}

TEST_F(EnginePartial, FailedGrowthForLackOfSpace_LeavesPartialReplicaUnchanged) {
  Setup setup = Plain();
  setup.host_granules = 5;
  Start(setup);
  auto lease = GetChunks({0, 1});
  const absl::Status status = Get(artifact_, kCpu, GoodProvider(artifact_)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Only().id, lease->replica_id());
  EXPECT_EQ(Only().state, kPartial);
  EXPECT_FALSE(lease->availability()->ended()) << "nothing came of it";
  ExpectReadable(*lease);
  EXPECT_EQ(UsedGranules(), 2u);
}

TEST_F(EnginePartial, EvictedPartialReplica_DrainsUntilItsLastLeaseEnds) {
  Start(Plain());
  auto lease = GetChunks({0, 1});
  EXPECT_TRUE(engine_->Evict(lease->replica_id(), /*force=*/false).ok());
  EXPECT_EQ(lease->availability()->end().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(lease->availability()->end().message(), HasSubstr("the replica is being removed"));
  EXPECT_EQ(Only().state, kDraining);
  ExpectReadable(*lease);
  auto anew = GetChunks({0});
  EXPECT_NE(anew->replica_id(), lease->replica_id());
  anew.reset();
  EXPECT_EQ(UsedGranules(), 3u);
  lease.reset();
  EXPECT_EQ(UsedGranules(), 1u);
}

TEST_F(EnginePartial, ForgottenArtifact_LosesItsPartialReplica) {
  Start(Plain());
  MakePartial({0, 1});
  EXPECT_TRUE(engine_->Forget(artifact_.manifest->id(), SteadyTime::InfinitePast()).ok());
  EXPECT_THAT(engine_->ListReplicas(), IsEmpty());
  EXPECT_EQ(UsedGranules(), 0u);
}

// What goes to a device is staged, in buffers that chunks of a granule do not fit.
TEST_F(EnginePartial, PartialReplica_IsSourceForOtherLocations) {
  Start(Plain());
  const TestArtifact small = MakeChunkedArtifact(5, kChunks);
  auto source = MakeControl(small.image);
  auto some = engine_->Ingest(ContextFor(), {.manifest = small.manifest,
                                             .location = kCpu,
                                             .sources = ProviderOf({source}),
                                             .chunks = Chunks{1, 2, 6}});
  ASSERT_TRUE(some.ok()) << some.status();
  ASSERT_TRUE((*some)->Wait(ContextFor()).ok());
  for (const Location location : {kGpu, kDisk}) {
    auto rest = MakeControl(small.image, {.name = "elsewhere"});
    auto lease = Get(small, location, ProviderOf({rest}));
    ASSERT_TRUE(lease.ok()) << lease.status();
    EXPECT_TRUE(Read(**lease) == small.image);
    if (location == kGpu) {
      for (const auto& [chunk, times] : rest->fetches()) EXPECT_EQ(times, 1) << chunk;
      EXPECT_GE(rest->total_fetches(), 5);
    } else {
      EXPECT_EQ(rest->total_fetches(), 0) << "the device has all of it";
    }
  }
}

TEST_F(EnginePartial, PartialReplicaAsOnlySource_FailsIngestThatNeedsMore) {
  Start(Plain());
  const TestArtifact small = MakeChunkedArtifact(5, kChunks);
  auto some = engine_->Ingest(
      ContextFor(),
      {.manifest = small.manifest, .location = kCpu, .sources = GoodProvider(small), .chunks = Chunks{1}});
  ASSERT_TRUE(some.ok()) << some.status();
  ASSERT_TRUE((*some)->Wait(ContextFor()).ok());
  const absl::Status status = Get(small, kGpu, nullptr).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("7 of 8 chunks are missing"));
}

TEST_F(EnginePartial, PartialReplicaWithWrongBytes_IsWithdrawn) {
  Start(Plain());
  const TestArtifact small = MakeChunkedArtifact(5, kChunks);
  auto some = engine_->Ingest(
      ContextFor(),
      {.manifest = small.manifest, .location = kCpu, .sources = GoodProvider(small), .chunks = Chunks{1, 2}});
  ASSERT_TRUE(some.ok()) << some.status();
  auto lease = (*some)->Wait(ContextFor());
  ASSERT_TRUE(lease.ok()) << lease.status();
  some->reset();
  (*lease)->memory().host->Spans(small.layout.chunk(2).offset, 1).front()[0] ^= std::byte{1};
  const std::string id = (*lease)->replica_id();
  lease->reset();
  auto elsewhere = MakeControl(small.image);
  auto to_device = Get(small, kGpu, ProviderOf({elsewhere}));
  ASSERT_TRUE(to_device.ok()) << to_device.status();
  EXPECT_TRUE(Read(**to_device) == small.image);
  listener_->WaitForState(id, kGone);
}

TEST_F(EnginePartial, GrowingReplicaWithWrongBytes_Fails) {
  Start(Plain());
  const TestArtifact small = MakeChunkedArtifact(5, kChunks);
  const auto ask = [&](std::shared_ptr<SourceProvider> sources, std::optional<Chunks> chunks) {
    auto pending = engine_->Ingest(
        ContextFor(),
        {.manifest = small.manifest, .location = kCpu, .sources = std::move(sources), .chunks = chunks});
    CHECK_OK(pending.status());
    return *std::move(pending);
  };
  std::string id;
  {
    auto lease = ask(GoodProvider(small), Chunks{1, 2})->Wait(ContextFor());
    ASSERT_TRUE(lease.ok()) << lease.status();
    (*lease)->memory().host->Spans(small.layout.chunk(2).offset, 1).front()[0] ^= std::byte{1};
    id = (*lease)->replica_id();
  }
  auto held = MakeControl(small.image, {.held = true});
  auto growing = ask(ProviderOf({held}), std::nullopt);
  held->WaitForHeldFetches(1);
  EXPECT_TRUE(Get(small, kGpu, GoodProvider(small)).ok());
  held->Release();
  const absl::Status status = growing->Wait(ContextFor()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("do not match the manifest"));
  growing.reset();
  listener_->WaitForState(id, kFailed);
  auto anew = Get(small, kCpu, nullptr);
  ASSERT_TRUE(anew.ok()) << anew.status();
  EXPECT_TRUE(Read(**anew) == small.image);
}

TEST_F(EnginePartial, PartialReplica_IsReplacedByReadyOneOfSameContent) {
  Start(Plain());
  const TestArtifact content = MakeTestArtifact(5, {3'000'000});
  auto some = engine_->Ingest(ContextFor(), {.manifest = content.manifest,
                                             .location = kCpu,
                                             .sources = GoodProvider(content),
                                             .chunks = Chunks{0}});
  ASSERT_TRUE(some.ok()) << some.status();
  auto partial = (*some)->Wait(ContextFor());
  ASSERT_TRUE(partial.ok()) << partial.status();
  auto first = IngestFirst(content, kCpu, GoodProvider(content));
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_EQ((*first)->manifest()->id(), content.manifest->id());
  EXPECT_NE((*first)->replica_id(), (*partial)->replica_id());
  EXPECT_EQ((*partial)->availability()->end().code(), absl::StatusCode::kUnavailable);
  some->reset();
  partial->reset();
  EXPECT_EQ(Only().state, kReady);
  EXPECT_EQ(UsedGranules(), 2u);
}

TEST_F(EnginePartial, EngineStop_CancelsGrowingAndQueuedPartialIngests) {
  Start(Plain());
  const std::string id = MakePartial({0, 1});
  auto held = MakeControl(artifact_.image, {.held = true});
  auto growing = Ask(ProviderOf({held}), std::nullopt);
  held->WaitForHeldFetches(1);
  auto behind = Ask(ProviderOf({}), Chunks{3});
  auto cancelled = Ask(ProviderOf({}), Chunks{3});
  Stop();
  EXPECT_EQ(growing->Wait(ContextFor()).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(behind->Wait(ContextFor()).status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace tensorcast::testing::partial_test
