// One ingest at a time: every destination, every way in which a source or a destination can fail.
#include <algorithm>
#include <thread>

#include "base/steady_time.h"
#include "core/artifact/test_util.h"
#include "core/engine/engine_fixture.h"
#include "gmock/gmock.h"

namespace tensorcast::testing::ingest_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const StageReport* FindStage(const TransferReport& report, Stage stage, std::string_view source) {
  for (const StageReport& candidate : report.stages) {
    if (candidate.stage == stage && candidate.source.name == source) return &candidate;
  }
  return nullptr;
}

class EngineIngest : public EngineFixture {};

TEST_F(EngineIngest, Ingest_MakesReadyReplicaAtEveryLocation) {
  Start();
  const TestArtifact artifact = MakeTestArtifact(1, {10000, 300, 5000}, 4096);
  for (const Location location : {kCpu, kGpu, kDisk}) {
    Restart();
    ASSERT_TRUE(engine_->Forget(artifact.manifest->id(), SteadyTime::InfiniteFuture()).ok());
    auto provider = GoodProvider(artifact);
    auto lease = Get(artifact, location, provider);
    ASSERT_TRUE(lease.ok()) << location.ToString() << ": " << lease.status();
    EXPECT_EQ((*lease)->location(), location);
    EXPECT_EQ((*lease)->manifest()->id(), artifact.manifest->id());
    EXPECT_TRUE(Read(**lease) == artifact.image) << location.ToString();
    EXPECT_EQ(provider->calls(), 1);
    EXPECT_THAT(provider->finished(), ElementsAre(absl::OkStatus()));
    using enum ReplicaState;
    listener_->WaitForState((*lease)->replica_id(), kReady);
    EXPECT_THAT(listener_->StatesOf((*lease)->replica_id()), ElementsAre(kAllocating, kFilling, kReady));
  }
}

TEST_F(EngineIngest, TransferReport_ListsEveryStageWithItsBytes) {
  Start();
  const TestArtifact artifact = MakeChunkedArtifact(2, 10);
  RequestContext context;
  context.trace = TraceContext::NewRoot();
  auto pending = Materialize(artifact, kGpu, GoodProvider(artifact), context);
  auto lease = pending->Wait(context);
  ASSERT_TRUE(lease.ok()) << lease.status();
  ASSERT_THAT(listener_->reports(), SizeIs(1)) << "the listener hears of it before the caller";
  const TransferReport report = listener_->reports().front();
  EXPECT_EQ(pending->report()->transfer_id, report.transfer_id);
  EXPECT_EQ(report.artifact_id, artifact.manifest->id());
  EXPECT_EQ(report.replica_id, (*lease)->replica_id());
  EXPECT_EQ(report.destination, kGpu);
  EXPECT_EQ(report.trace.trace_id, context.trace.trace_id);
  EXPECT_EQ(report.bytes, artifact.image.size());
  EXPECT_TRUE(report.status.ok());
  EXPECT_EQ(report.refetched_chunks, 0u);
  EXPECT_EQ(report.verified_chunks, 10u);
  EXPECT_LE(report.queued, report.start);
  EXPECT_LE(report.start, report.end);
  EXPECT_THAT(report.stages, SizeIs(3));
  for (const Stage stage : {Stage::kFetch, Stage::kVerify, Stage::kPlace}) {
    const StageReport* const found = FindStage(report, stage, "scripted");
    ASSERT_NE(found, nullptr) << StageName(stage);
    EXPECT_EQ(found->bytes, artifact.image.size()) << StageName(stage);
    EXPECT_EQ(found->chunks, 10u);
    EXPECT_LE(report.start, found->start);
    EXPECT_LE(found->start, found->end);
    EXPECT_LE(found->end, report.end);
    EXPECT_GE(found->busy, absl::ZeroDuration());
    EXPECT_EQ(found->source.lane, "test");
  }
  EXPECT_EQ(pending->progress().bytes_done, artifact.image.size());
  EXPECT_EQ(pending->progress().bytes_total, artifact.image.size());
}

TEST_F(EngineIngest, ChunksDigestedBySource_AreNotReadAgain) {
  Start();
  const TestArtifact artifact = MakeChunkedArtifact(3, 5);
  SourceScript script;
  script.deliver_digests = true;
  auto lease = Get(artifact, kCpu, ProviderOf({MakeControl(artifact.image, script)}));
  ASSERT_TRUE(lease.ok());
  const TransferReport report = listener_->reports().front();
  EXPECT_EQ(report.verified_chunks, 5u);
  const StageReport* const verify = FindStage(report, Stage::kVerify, "scripted");
  ASSERT_NE(verify, nullptr);
  EXPECT_EQ(verify->chunks, 5u);
  EXPECT_EQ(verify->bytes, 0u);
  EXPECT_EQ(verify->end - verify->start, absl::ZeroDuration())
      << "nothing was done, whatever passed between chunks";
  EXPECT_EQ(verify->busy, absl::ZeroDuration());
  EXPECT_EQ(FindStage(report, Stage::kPlace, "scripted"), nullptr) << "host replicas are filled in place";
}

TEST_F(EngineIngest, Ingest_LimitsFetchesToMaxConcurrencyOfSource) {
  Start();
  const TestArtifact artifact = MakeChunkedArtifact(4, 40);
  SourceScript script;
  script.max_concurrency = 3;
  auto control = MakeControl(artifact.image, script);
  ASSERT_TRUE(Get(artifact, kCpu, ProviderOf({control})).ok());
  EXPECT_LE(control->max_at_once(), 3);
  EXPECT_EQ(control->total_fetches(), 40);
}

TEST_F(EngineIngest, Ingest_KeepsMaxConcurrencyOfFetchesInFlight) {
  Start();
  const TestArtifact artifact = MakeChunkedArtifact(4, 40);
  SourceScript script;
  script.max_concurrency = 3;
  script.held = true;
  auto control = MakeControl(artifact.image, script);
  auto pending = Materialize(artifact, kCpu, ProviderOf({control}));
  control->WaitForHeldFetches(3);
  control->Release();
  EXPECT_TRUE(pending->Wait(ContextFor()).ok());
}

TEST_F(EngineIngest, IngestToDevice_LimitsFetchesToStagingBuffers) {
  Setup setup;
  setup.staging_buffers = 2;
  Start(setup);
  const TestArtifact artifact = MakeChunkedArtifact(5, 40);
  SourceScript script;
  script.max_concurrency = 8;
  auto control = MakeControl(artifact.image, script);
  ASSERT_TRUE(Get(artifact, kGpu, ProviderOf({control})).ok());
  EXPECT_LE(control->max_at_once(), 2);
}

TEST_F(EngineIngest, DeadSource_CostsOnlyItsUnfinishedChunks) {
  Start();
  const TestArtifact artifact = MakeChunkedArtifact(6, 20);
  SourceScript dying;
  dying.name = "dying";
  dying.max_concurrency = 1;
  dying.failing_chunks = {7};
  auto first = MakeControl(artifact.image, dying);
  auto second = MakeControl(artifact.image, {.name = "healthy"});
  auto provider = ProviderOf({first, second});
  auto lease = Get(artifact, kCpu, provider);
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(Read(**lease) == artifact.image);
  EXPECT_EQ(first->total_fetches(), 8);
  const std::map<uint32_t, int> fetches = second->fetches();
  EXPECT_THAT(fetches, SizeIs(13));
  EXPECT_FALSE(fetches.contains(6));
  EXPECT_TRUE(fetches.contains(7));
  ASSERT_THAT(provider->failures(), SizeIs(1));
  EXPECT_EQ(provider->failures()[0].source.name, "dying");
  EXPECT_FALSE(provider->failures()[0].corrupt);
  EXPECT_EQ(provider->failures()[0].status.code(), absl::StatusCode::kUnavailable);
  const TransferReport report = listener_->reports().front();
  EXPECT_EQ(report.refetched_chunks, 1u);
  EXPECT_EQ(report.verified_chunks, 20u);
  ASSERT_THAT(report.changes, SizeIs(1));
  const SourceChange& change = report.changes[0];
  EXPECT_EQ(change.from.name, "dying");
  EXPECT_EQ(change.to.name, "healthy");
  EXPECT_EQ(SourceLossName(change.why), "source_died");
  EXPECT_EQ(change.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(change.chunks, 1u);
  EXPECT_GE(change.at, report.start);
  EXPECT_LE(change.at, report.end);
  EXPECT_EQ(FindStage(report, Stage::kFetch, "dying")->status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(FindStage(report, Stage::kFetch, "dying")->chunks, 7u);
  EXPECT_TRUE(FindStage(report, Stage::kFetch, "healthy")->status.ok());
  EXPECT_EQ(FindStage(report, Stage::kFetch, "healthy")->chunks, 13u);
  EXPECT_EQ(first->open(), 0);
}

TEST_F(EngineIngest, RunningTransfers_ReportProgressAndQueuedIngest) {
  Setup setup;
  setup.max_concurrent_ingests = 1;
  Start(setup);
  const TestArtifact artifact = MakeChunkedArtifact(7, 20);
  SourceScript dying;
  dying.name = "dying";
  dying.max_concurrency = 1;
  dying.failing_chunks = {5};
  auto held = MakeControl(artifact.image, {.name = "held", .held = true});
  auto running = Materialize(artifact, kCpu, ProviderOf({MakeControl(artifact.image, dying), held}));
  held->WaitForHeldFetches(1);
  const TestArtifact next = MakeChunkedArtifact(8, 1);
  auto waiting = Materialize(next, kCpu, GoodProvider(next));

  const std::vector<TransferReport> reports = engine_->RunningTransfers();
  ASSERT_THAT(reports, SizeIs(2));
  const TransferReport& report = reports[0];
  EXPECT_EQ(report.artifact_id, artifact.manifest->id());
  EXPECT_EQ(report.destination, kCpu);
  EXPECT_EQ(report.bytes_total, artifact.image.size());
  EXPECT_GE(report.bytes, artifact.image.size() / 20 * 5) << "what the first source gave before it died";
  EXPECT_LT(report.bytes, report.bytes_total);
  EXPECT_LE(report.queued, report.start);
  EXPECT_LE(report.start, report.end);
  EXPECT_GE(FindStage(report, Stage::kFetch, "dying")->chunks, 5u);
  EXPECT_EQ(FindStage(report, Stage::kFetch, "held"), nullptr) << "nothing went through it yet";
  EXPECT_EQ(reports[1].artifact_id, next.manifest->id());
  EXPECT_LT(reports[1].start, reports[1].queued) << "its turn has not come";
  EXPECT_THAT(reports[1].stages, IsEmpty());

  held->Release();
  EXPECT_TRUE(running->Wait(ContextFor()).ok());
  EXPECT_TRUE(waiting->Wait(ContextFor()).ok());
  WaitUntilIdle();
  EXPECT_THAT(engine_->RunningTransfers(), IsEmpty());
}

class EngineIngestCorrupt : public EngineFixture, public ::testing::WithParamInterface<bool> {};

TEST_P(EngineIngestCorrupt, WrongChunk_IsFetchedFromOtherSource) {
  Start();
  const TestArtifact artifact = MakeChunkedArtifact(7, 12);
  for (const Location location : {kCpu, kGpu}) {
    SourceScript lying;
    lying.name = "lying";
    lying.corrupt_chunks = {4};
    lying.deliver_digests = GetParam();
    auto provider = ProviderOf({MakeControl(artifact.image, lying), MakeControl(artifact.image)});
    // To the device from elsewhere too, not from the replica in host memory.
    ASSERT_TRUE(engine_->Forget(artifact.manifest->id(), SteadyTime::InfiniteFuture()).ok());
    auto lease = Get(artifact, location, provider);
    ASSERT_TRUE(lease.ok()) << lease.status();
    EXPECT_TRUE(Read(**lease) == artifact.image);
    ASSERT_THAT(provider->failures(), SizeIs(1));
    EXPECT_TRUE(provider->failures()[0].corrupt);
    EXPECT_EQ(provider->failures()[0].status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(provider->failures()[0].status.message(), AllOf(HasSubstr("chunk 4"), HasSubstr("lying")));
  }
  ASSERT_THAT(listener_->reports(), SizeIs(2));
  EXPECT_GE(listener_->reports()[0].refetched_chunks, 1u);
  EXPECT_EQ(listener_->reports()[0].verified_chunks, 12u);
  ASSERT_THAT(listener_->reports()[0].changes, SizeIs(1));
  EXPECT_EQ(SourceLossName(listener_->reports()[0].changes[0].why), "bad_digest");
  EXPECT_EQ(FindStage(listener_->reports()[0], Stage::kVerify, "lying")->status.code(),
            absl::StatusCode::kDataLoss);
}

INSTANTIATE_TEST_SUITE_P(DigestBySource, EngineIngestCorrupt, ::testing::Bool());

TEST_F(EngineIngest, Ingest_FailsWithBothReasonsWhenNoSourceIsLeft) {
  Start();
  const TestArtifact artifact = MakeChunkedArtifact(8, 1);  // of more, what is right would stay
  SourceScript lying;
  lying.corrupt_chunks = {0};
  auto provider = ProviderOf({MakeControl(artifact.image, lying)});
  auto pending = Materialize(artifact, kCpu, provider);
  const absl::Status status = pending->Wait(ContextFor()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("no scripted source is left"), HasSubstr("chunk 0")));
  EXPECT_EQ(pending->report()->status, status);
  EXPECT_THAT(provider->finished(), ElementsAre(status));
  EXPECT_THAT(engine_->ListReplicas(), IsEmpty());
  EXPECT_FALSE(engine_->LeaseArtifact(artifact.manifest->id(), kCpu).ok());
  EXPECT_EQ(pool_->stats().used_bytes, 2 * kGranuleBytes) << "only the staging buffers";
  using enum ReplicaState;
  listener_->WaitForState(pending->report()->replica_id, kFailed);
  EXPECT_THAT(listener_->StatesOf(pending->report()->replica_id),
              ElementsAre(kAllocating, kFilling, kFailed));
}

TEST_F(EngineIngest, Ingest_FailsWithNotFoundWithoutSource) {
  Start();
  const TestArtifact artifact = MakeChunkedArtifact(9, 4);
  EXPECT_EQ(Get(artifact, kCpu, ProviderOf({})).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Get(artifact, kCpu, nullptr).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(EngineIngest, EmptyImage_AsksNoSource) {
  Start();
  const TestArtifact artifact = MakeTestArtifact(10, {});
  for (const Location location : {kCpu, kGpu, kDisk}) {
    auto provider = ProviderOf({});
    auto lease = Get(artifact, location, provider);
    ASSERT_TRUE(lease.ok()) << location.ToString() << ": " << lease.status();
    EXPECT_EQ(provider->calls(), 0);
    EXPECT_THAT(provider->finished(), SizeIs(1));
  }
}

TEST_F(EngineIngest, FailedDeviceCopy_FailsIngestWithoutBlamingSource) {
  Start();
  const TestArtifact artifact = MakeChunkedArtifact(11, 8);
  faults_->fail_copies = 1;
  auto provider = GoodProvider(artifact);
  const absl::Status status = Get(artifact, kGpu, provider).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("gpu:0"));
  EXPECT_THAT(provider->failures(), IsEmpty()) << "the source is not to blame";
  EXPECT_EQ(engine_->device_pool_stats(0).used_bytes, 0u);
  EXPECT_TRUE(Get(artifact, kGpu, GoodProvider(artifact)).ok()) << "the next one works";
}

TEST_F(EngineIngest, FullDevice_FailsIngestAndFreesMemory) {
  Start();
  const TestArtifact artifact = MakeChunkedArtifact(12, 8);
  faults_->fail_allocations = 1;
  const absl::Status status = Get(artifact, kGpu, GoodProvider(artifact)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("the pool of gpu:0"));
  EXPECT_EQ(engine_->device_pool_stats(0).used_bytes, 0u);
}

TEST_F(EngineIngest, FullDisk_FailsIngestAndLeavesNoFile) {
  Start();
  const TestArtifact artifact = MakeChunkedArtifact(13, 8);
  store_->FailWritesAfter(3);
  const absl::Status status = Get(artifact, kDisk, GoodProvider(artifact)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("no space left"));
  EXPECT_THAT(store_->List(), IsEmpty());
  EXPECT_THAT(engine_->ListReplicas(), IsEmpty());
  store_->FailWritesAfter(-1);
  EXPECT_TRUE(Get(artifact, kDisk, GoodProvider(artifact)).ok());
}

TEST_F(EngineIngest, FailedCommit_FailsIngestAndLeavesNoFile) {
  Start();
  const TestArtifact artifact = MakeChunkedArtifact(14, 8);
  store_->FailCommits(true);
  EXPECT_EQ(Get(artifact, kDisk, GoodProvider(artifact)).status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(store_->List(), IsEmpty());
  EXPECT_THAT(engine_->ListReplicas(), IsEmpty());
}

TEST_F(EngineIngest, Ingest_RefusesUnusableLocationManifestAndContext) {
  Setup setup;
  setup.disk = false;
  Start(setup);
  const TestArtifact artifact = MakeChunkedArtifact(15, 2);
  auto materialize = [&](std::shared_ptr<const Manifest> manifest, Location location) {
    return engine_->Ingest(ContextFor(), {std::move(manifest), location, nullptr, false}).status();
  };
  EXPECT_EQ(materialize(nullptr, kCpu).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(materialize(artifact.manifest, {LocationKind::kGpu, 4}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(materialize(artifact.manifest, kDisk).code(), absl::StatusCode::kFailedPrecondition);
  const TestArtifact coarse = MakeChunkedArtifact(16, 2, 2 * kStagingBytes);
  const absl::Status unstageable = materialize(coarse.manifest, kGpu);
  EXPECT_EQ(unstageable.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(unstageable.message(), HasSubstr("staging buffers"));
  EXPECT_TRUE(Get(coarse, kCpu, GoodProvider(coarse)).ok()) << "nothing is staged on the way to host memory";
  RequestContext cancelled;
  cancelled.cancellation.Cancel();
  EXPECT_EQ(engine_->Ingest(cancelled, {artifact.manifest, kCpu, nullptr, false}).status().code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(engine_->active_ingests(), 0);
}

TEST_F(EngineIngest, FirstIngest_ComputesArtifactId) {
  Start();
  const TestArtifact artifact = MakeTestArtifact(17, {kMinChunkBytes, 77, 9000});
  for (const Location location : {kCpu, kGpu, kDisk}) {
    auto lease = IngestFirst(artifact, location, GoodProvider(artifact));
    ASSERT_TRUE(lease.ok()) << lease.status();
    EXPECT_EQ((*lease)->manifest()->id(), artifact.manifest->id());
    EXPECT_TRUE(Read(**lease) == artifact.image);
    EXPECT_TRUE(engine_->FindManifest(artifact.manifest->id()).ok());
  }
  listener_->WaitForReports(1);
  EXPECT_EQ(listener_->reports()[0].verified_chunks, 0u) << "digests are computed, none is compared";
  EXPECT_EQ(listener_->reports()[0].artifact_id, artifact.manifest->id());
}

TEST_F(EngineIngest, FirstIngestOfPresentContent_ReturnsPresentReplica) {
  Start();
  const TestArtifact artifact = MakeTestArtifact(18, {5000});
  auto first = IngestFirst(artifact, kCpu, GoodProvider(artifact));
  auto second = IngestFirst(artifact, kCpu, GoodProvider(artifact));
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ((*first)->replica_id(), (*second)->replica_id());
  EXPECT_THAT(engine_->ListReplicas(), SizeIs(1));
  EXPECT_EQ(engine_->ListReplicas()[0].leases, 2u);
  EXPECT_EQ(pool_->stats().used_bytes, 3 * kGranuleBytes) << "staging and one replica";
}

TEST_F(EngineIngest, NewArtifact_TellsItsIdBeforeItsReplicaIsReady) {
  Start();
  const TestArtifact artifact = MakeTestArtifact(21, {5000});
  std::vector<std::string> identified;
  auto ingest = [&] {
    auto pending = engine_->Ingest(
        ContextFor(), {.location = kCpu,
                       .sources = GoodProvider(artifact),
                       .new_layout = artifact.layout,
                       .new_metadata = artifact.manifest->metadata(),
                       .on_identified = [&](const std::string& artifact_id) {
                         identified.push_back(artifact_id);
                         EXPECT_TRUE(engine_->Forget(artifact_id, SteadyTime::InfiniteFuture()).ok());
                       }});
    EXPECT_TRUE(pending.ok()) << pending.status();
    auto lease = (*pending)->Wait(ContextFor());
    EXPECT_TRUE(lease.ok()) << lease.status();
    return (*lease)->replica_id();
  };
  const std::string first = ingest();
  EXPECT_NE(ingest(), first) << "that one was forgotten just in time";
  EXPECT_THAT(identified, ElementsAre(artifact.manifest->id(), artifact.manifest->id()));
}

TEST_F(EngineIngest, FirstIngest_RefusesNonZeroPadding) {
  Start();
  const TestArtifact artifact = MakeTestArtifact(19, {100, 5000});
  TestArtifact dirty = artifact;
  dirty.image[101] = std::byte{7};
  const absl::Status status = IngestFirst(artifact, kCpu, GoodProvider(dirty)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("byte 101"));
  EXPECT_THAT(engine_->ListReplicas(), IsEmpty());
}

TEST_F(EngineIngest, FirstIngest_RequiresValidLayoutAndSource) {
  Start();
  TestArtifact artifact = MakeTestArtifact(20, {100});
  EXPECT_EQ(IngestFirst(artifact, kCpu, nullptr).status().code(), absl::StatusCode::kInvalidArgument);
  artifact.layout.tensors[0].offset = 256;
  EXPECT_EQ(IngestFirst(artifact, kCpu, GoodProvider(artifact)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Of two chunks, the second one forged.
class EngineForgery : public EngineFixture {
 protected:
  EngineForgery() : artifact_(MakeChunkedArtifact(30, 2, kMinChunkBytes)), forged_(artifact_.image) {
    ForgeKeepingXxh3(std::span(forged_).subspan(kMinChunkBytes));
  }
  void StartWith(bool distrust_other_hosts) {
    Setup setup;
    setup.distrust_other_hosts = distrust_other_hosts;
    Start(setup);
  }
  std::shared_ptr<SourceControl> Liar(bool deliver_digests = false) const {
    return MakeControl(forged_,
                       {.name = "liar", .type = SourceType::kRemote, .deliver_digests = deliver_digests});
  }

  const TestArtifact artifact_;
  std::vector<std::byte> forged_;
};

TEST_F(EngineForgery, ForgedChunk_IsFoundByBlake3AndItsSourceNamed) {
  StartWith(true);
  for (const bool deliver_digests : {false, true}) {
    for (const Location location : {kCpu, kGpu, kDisk}) {
      auto provider = ProviderOf({Liar(deliver_digests), MakeControl(artifact_.image)});
      auto lease = Get(artifact_, location, provider);
      ASSERT_TRUE(lease.ok()) << lease.status();
      EXPECT_TRUE(Read(**lease) == artifact_.image);
      ASSERT_THAT(provider->failures(), SizeIs(1));
      EXPECT_TRUE(provider->failures()[0].corrupt);
      EXPECT_EQ(provider->failures()[0].source.name, "liar");
      EXPECT_THAT(
          provider->failures()[0].status.message(),
          AllOf(HasSubstr("chunk 1 "), HasSubstr("liar: the chunk is forged: the XXH3 digest is right")));
      lease->reset();
      ASSERT_TRUE(engine_->Forget(artifact_.manifest->id(), SteadyTime::InfiniteFuture()).ok());
    }
  }
}

TEST_F(EngineForgery, ForgedChunkFromOnlySource_FailsIngest) {
  StartWith(true);
  const absl::Status status = Get(artifact_, kCpu, ProviderOf({Liar()})).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("forged"));
  for (const ReplicaInfo& replica : engine_->ListReplicas()) {
    EXPECT_EQ(replica.state, ReplicaState::kPartial) << "of what is right";
    auto lease = engine_->LeaseFilling(replica.id);
    ASSERT_TRUE(lease.ok()) << lease.status();
    EXPECT_FALSE((*lease)->availability()->Has(1));
  }
}

TEST_F(EngineForgery, ForgedChunk_PassesWhereOtherHostsAreTrusted) {
  StartWith(false);
  auto lease = Get(artifact_, kCpu, ProviderOf({Liar()}));
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(Read(**lease) == forged_);
}

TEST_F(EngineIngest, ConcurrentIngests_AreLimitedInOrderOfArrival) {
  Setup setup;
  setup.max_concurrent_ingests = 2;
  Start(setup);
  std::vector<std::shared_ptr<SourceControl>> controls;
  std::vector<std::unique_ptr<PendingReplica>> pending;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const TestArtifact artifact = MakeChunkedArtifact(100 + seed, 1);
    controls.push_back(MakeControl(artifact.image, {.held = true}));
    pending.push_back(Materialize(artifact, kCpu, ProviderOf({controls.back()})));
  }
  controls[0]->WaitForHeldFetches(1);
  controls[1]->WaitForHeldFetches(1);
  EXPECT_EQ(controls[2]->opened(), 0) << "first come, first served";
  EXPECT_EQ(engine_->active_ingests(), 3);
  controls[1]->Release();
  controls[2]->WaitForHeldFetches(1);
  controls[0]->Release();
  controls[2]->Release();
  for (const auto& each : pending) EXPECT_TRUE(each->Wait(ContextFor()).ok());
  WaitUntilIdle();
}

}  // namespace
}  // namespace tensorcast::testing::ingest_test
