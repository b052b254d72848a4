#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "core/device/fake_device.h"
#include "core/testing/scripted_source.h"
#include "core/testing/test_artifact.h"
#include "daemon/service/ingest.h"
#include "daemon/service/publications.h"
#include "daemon/service/report_log.h"
#include "daemon/service/serve_registry.h"
#include "daemon/service/telemetry.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "otel/api/testing/recorded_telemetry.h"
#include "rpc/grant_token/grant_token.h"
#include "transport/loopback/loopback_transport.h"

namespace tensorcast::daemon {
namespace {

using testing::MakeChunkedArtifact;
using testing::TestArtifact;

TEST(Publications, ProtectUntilTheHeartbeatAfterTheirEnd) {
  Publications publications;
  publications.BeginHeartbeat();
  EXPECT_FALSE(publications.Protects("a"));
  {
    const Publications::Hold one(&publications, "a", [](const std::string&) {});
    const Publications::Hold another(&publications, "a", [](const std::string&) {});
    publications.BeginHeartbeat();
    EXPECT_TRUE(publications.Protects("a"));
    EXPECT_FALSE(publications.Protects("b"));
  }
  EXPECT_TRUE(publications.Protects("a"));  // the answer under way was made before it was published
  publications.BeginHeartbeat();
  EXPECT_FALSE(publications.Protects("a"));
}

TEST(Publications, WhatAPutMadeGoesWithItWhenItFailsAndStaysWhenItIsPublished) {
  Publications publications;
  std::vector<std::string> dropped;
  const auto drop = [&dropped](const std::string& replica_id) { dropped.push_back(replica_id); };
  {
    Publications::Hold published(&publications, "a", drop);
    published.Made("kept");
    published.Published();
  }
  EXPECT_THAT(dropped, ::testing::IsEmpty());
  {
    Publications::Hold failed(&publications, "a", drop);
    failed.Made("cpu");
    failed.Made("disk");
  }
  EXPECT_THAT(dropped, ::testing::ElementsAre("cpu", "disk"));
}

// The second found what the first had made, and took it for its own.
TEST(Publications, WhatAPutMadeThatFailsStaysForAnotherOfTheSameContentUnlessThatFailsToo) {
  for (const bool published : {true, false}) {
    Publications publications;
    std::vector<std::string> dropped;
    const auto drop = [&dropped](const std::string& replica_id) { dropped.push_back(replica_id); };
    std::optional<Publications::Hold> first(std::in_place, &publications, "a", drop);
    first->Made("cpu");
    std::optional<Publications::Hold> second(std::in_place, &publications, "a", drop);
    first.reset();
    EXPECT_THAT(dropped, ::testing::IsEmpty());
    if (published) second->Published();
    second.reset();
    EXPECT_EQ(dropped, published ? std::vector<std::string>() : std::vector<std::string>{"cpu"});
  }
}

TEST(TransferLog, KeepsTheNewestFirstAndNoMoreThanItHolds) {
  TransferLog log(2);
  for (const char* id : {"one", "two", "three"}) {
    log.Add({.transfer_id = id});
  }
  const std::vector<TransferReport> newest = log.Newest();
  ASSERT_EQ(newest.size(), 2);
  EXPECT_EQ(newest[0].transfer_id, "three");
  EXPECT_EQ(newest[1].transfer_id, "two");
}

TEST(TransferLog, AddsUpWhatCameFromOthersAlsoOfTransfersItForgot) {
  TransferLog log(1);
  for (int i = 0; i < 3; ++i) {
    TransferReport report;
    report.stages = {{.stage = Stage::kFetch, .source = {.lane = "ucx", .transport_id = "t"}, .bytes = 5},
                     {.stage = Stage::kVerify, .source = {.lane = "ucx", .transport_id = "t"}, .bytes = 5},
                     {.stage = Stage::kFetch, .source = {.lane = "disk"}, .bytes = 7}};
    log.Add(report);
  }
  EXPECT_EQ(log.bytes(), (BytesByLane{{"ucx", 15}}));
}

namespace attr = otel::attr;
namespace metrics = otel::metrics;
using otel::testing::RecordedSpan;
using otel::testing::RecordedTelemetry;

constexpr SourceType kRemote = SourceType::kRemote;

// A minute's steps of a transfer.
absl::Time At(int second) { return absl::UnixEpoch() + absl::Seconds(second); }

StageReport StageOf(Stage stage, SourceInfo source, uint64_t bytes, int start, int end) {
  return {.stage = stage,
          .source = std::move(source),
          .bytes = bytes,
          .chunks = 4,
          .start = At(start),
          .end = At(end),
          .busy = absl::Seconds(end - start)};
}

TEST(Telemetry, ATransferIsASpanWithOneChildAStageAndSourceAndEventsThatSayWhy) {
  RecordedTelemetry recorded;
  const SourceInfo peer{.type = kRemote, .lane = "ucx", .name = "a"};
  const SourceInfo file{.type = SourceType::kDisk, .lane = "disk", .name = "file"};
  TransferReport report{.transfer_id = "t",
                        .artifact_id = "tc1:a",
                        .destination = {LocationKind::kGpu, 1},
                        .trace = TraceContext::NewRoot().NewChild(),
                        .queued = At(0),
                        .start = At(1),
                        .end = At(9)};
  report.trace.trace_state.clear();
  report.stages = {StageOf(Stage::kFetch, peer, 100, 1, 3), StageOf(Stage::kVerify, peer, 100, 2, 3),
                   StageOf(Stage::kFetch, file, 50, 4, 8), StageOf(Stage::kPlace, file, 50, 5, 9)};
  report.stages[0].status = absl::DeadlineExceededError("nothing came");
  report.changes = {{.from = peer,
                     .to = file,
                     .why = SourceLoss::kTimeout,
                     .status = absl::DeadlineExceededError("nothing came"),
                     .chunks = 2,
                     .at = At(4)}};
  RecordTransfer(report);

  const RecordedSpan ingest = recorded.AwaitSpan("StoreEngine/P2PIngest");
  EXPECT_EQ(ingest.parent.span_id, report.trace.span_id);
  EXPECT_EQ(ingest.attribute(attr::kTransferId), "t");
  EXPECT_EQ(ingest.attribute(attr::kLocation), "gpu");
  EXPECT_EQ(ingest.error, "") << "it ended well";
  const std::map<std::string, std::string> lane_of = {
      {"P2P/Pull", "ucx"}, {"P2P/Verify", "ucx"}, {"Disk/Read", "disk"}, {"Device/Copy", "disk"}};
  for (const auto& [name, lane] : lane_of) {
    const std::vector<RecordedSpan> stages = recorded.AwaitSpans(name, 1);
    ASSERT_EQ(stages.size(), 1) << name;
    EXPECT_EQ(stages[0].parent.span_id, ingest.context.span_id) << name;
    EXPECT_EQ(stages[0].attribute(attr::kLane), lane) << name;
    EXPECT_EQ(stages[0].attribute(attr::kChunks), "4") << name;
  }
  EXPECT_EQ(recorded.AwaitSpan("P2P/Pull").error, "DEADLINE_EXCEEDED");
  ASSERT_EQ(ingest.events.size(), 2);
  EXPECT_EQ(ingest.events[0].name, "refetch");
  EXPECT_EQ(ingest.events[0].attributes.at("tc.chunks"), "2");
  EXPECT_EQ(ingest.events[1].name, "fallback");
  EXPECT_EQ(ingest.events[1].attributes.at("tc.previous.lane"), "ucx");
  for (const otel::testing::RecordedEvent& event : ingest.events) {
    EXPECT_EQ(event.attributes.at("tc.lane"), "disk");
    EXPECT_EQ(event.attributes.at("tc.reason"), "timeout");
    EXPECT_EQ(event.attributes.at("tc.attempt"), "2");
    EXPECT_NE(event.time, otel::SpanTime()) << "when it happened, not when it is told";
  }
  EXPECT_EQ(recorded.Sum(metrics::kP2pRefetchedChunks.id(), {"ucx", "timeout"}), 2);
  EXPECT_EQ(recorded.Sum(metrics::kP2pFallbacks.id(), {"ucx", "disk", "timeout"}), 1);
  EXPECT_EQ(recorded.Sum(metrics::kP2pPulls.id(), {"ucx", "receive", "failed"}), 1);
}

TEST(Telemetry, APullIsCountedByItsLaneAndACopyFromThisNodeIsNone) {
  RecordedTelemetry recorded;
  TransferReport report{.queued = At(0), .start = At(0), .end = At(1)};
  report.stages = {StageOf(Stage::kFetch, {.type = kRemote, .lane = "ucx"}, 100, 0, 1),
                   StageOf(Stage::kVerify, {.type = kRemote, .lane = "ucx"}, 100, 0, 1),
                   StageOf(Stage::kFetch, {.type = SourceType::kLocal, .lane = "memory"}, 50, 0, 1)};
  RecordTransfer(report);
  EXPECT_EQ(recorded.Sum(metrics::kP2pBytes.id(), {"ucx", "receive"}), 100);
  EXPECT_EQ(recorded.Sum(metrics::kP2pBytes.id(), {"memory", "receive"}), 0);
  EXPECT_EQ(recorded.Sum(metrics::kTransfersCompleted.id(), {"cpu", "ok"}), 1);
}

TEST(Telemetry, ALoadIsTimedWhereItSucceededAndCountedEitherWay) {
  RecordedTelemetry recorded;
  RecordLoad("remote", LocationKind::kGpu, absl::Seconds(2), 100, absl::OkStatus());
  RecordLoad("unknown", LocationKind::kGpu, absl::Seconds(3), 0, absl::CancelledError());
  RecordLoad("unknown", LocationKind::kGpu, absl::Seconds(3), 0, absl::NotFoundError("no such artifact"));
  EXPECT_EQ(recorded.Sum(metrics::kArtifactLoadSeconds.id(), {"remote", "gpu"}), 2);
  EXPECT_EQ(recorded.Sum(metrics::kArtifactLoadBytes.id(), {"remote", "gpu"}), 100);
  EXPECT_EQ(recorded.Count(metrics::kArtifactLoadSeconds.id(), {"unknown", "gpu"}), 0);
  for (const char* outcome : {"cancelled", "failed"}) {
    EXPECT_EQ(recorded.Sum(metrics::kArtifactLoads.id(), {"unknown", "gpu", outcome}), 1) << outcome;
  }
}

TEST(Telemetry, AServingIsLinkedToThePullOrTheReaderThatItIsFor) {
  RecordedTelemetry recorded;
  const TraceContext call = TraceContext::NewRoot().NewChild();
  const TraceContext reader = TraceContext::NewRoot();
  ServeRecord pull(call, "ucx", "transport", "tc1:a");
  pull.End({.bytes = 7, .receiver_trace = reader}, "ok");
  const RecordedSpan served = recorded.AwaitSpan("P2P/Serve");
  ASSERT_EQ(served.links.size(), 1);
  EXPECT_EQ(served.links[0].span_id, reader.span_id);
  EXPECT_EQ(recorded.Sum(metrics::kP2pBytes.id(), {"ucx", "serve"}), 7);

  { AttachRecord attached(call, reader, "transport", "tc1:a"); }
  const RecordedSpan lent = recorded.AwaitSpan(
      "P2P/Serve", [](const RecordedSpan& span) { return span.attribute(attr::kLane) == "local"; });
  ASSERT_EQ(lent.links.size(), 1);
  EXPECT_EQ(lent.links[0].span_id, reader.span_id);

  { AttachRecord unknown(call, TraceContext(), "another", "tc1:a"); }
  EXPECT_TRUE(
      recorded
          .AwaitSpan("P2P/Serve",
                     [](const RecordedSpan& span) { return span.attribute(attr::kTransportId) == "another"; })
          .links.empty())
      << "a reader without tracing";
}

// The loopback transport; before it serves the next image it calls the hook, once.
class HookedTransport : public transport::Transport {
 public:
  explicit HookedTransport(std::function<void()>* on_serve) : on_serve_(*on_serve) {}
  std::string_view name() const override { return transport_->name(); }
  absl::Status RegisterMemory(std::byte* base, uint64_t bytes) override {
    return transport_->RegisterMemory(base, bytes);
  }
  absl::StatusOr<std::unique_ptr<transport::Serving>> Serve(
      std::shared_ptr<transport::ServedImage> image) override {
    if (const auto hook = std::exchange(on_serve_, nullptr)) hook();
    return transport_->Serve(std::move(image));
  }
  absl::StatusOr<std::unique_ptr<transport::Pull>> Connect(const RequestContext& context,
                                                           std::string_view descriptor) override {
    return transport_->Connect(context, descriptor);
  }

 private:
  std::function<void()>& on_serve_;
  const std::unique_ptr<transport::Transport> transport_ = transport::NewLoopbackTransport();
};

// An engine with one replica in host memory and one on a fake GPU, and a loopback lane to serve them over.
class ServeRegistryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto pool = HostPool::Create({.bytes = 32 << 20, .use_huge_pages = false, .prefault_threads = 0});
    ASSERT_TRUE(pool.ok()) << pool.status();
    pool_ = *std::move(pool);
    auto devices = CreateFakeRuntime({.device_count = 1, .device_bytes = 16 << 20});
    ASSERT_TRUE(devices.ok()) << devices.status();
    devices_ = *std::move(devices);
    auto engine = StoreEngine::Create({.host_pool = pool_.get(),
                                       .devices = devices_.get(),
                                       .staging_buffers = 2,
                                       .staging_buffer_bytes = 2 << 20});
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    lane_ = std::make_unique<HookedTransport>(&on_serve_);
    ASSERT_TRUE(lane_->RegisterMemory(pool_->base(), pool_->bytes()).ok());
    auto staging = StagingBuffers::Create(pool_.get(), 1);
    ASSERT_TRUE(staging.ok()) << staging.status();
    registry_ = std::make_unique<ServeRegistry>(
        ServeRegistry::Options{.engine = engine_.get(),
                               .devices = devices_.get(),
                               .lanes = {lane_.get()},
                               .staging = *staging,
                               .grant_key =
                                   [this] {
                                     return rpc::GrantKey{std::string(32, 'k'), given_};
                                   },
                               .grant_life = absl::Seconds(30),
                               .staging_wait = absl::Milliseconds(50),
                               .now = [this] { return now_; }});
  }

  std::string MakeReplica(Location location) {
    auto provider = std::make_shared<testing::ScriptedProvider>(
        std::vector{testing::MakeControl(artifact_.image, testing::SourceScript{})});
    auto pending =
        engine_->Materialize(RequestContext::Background(absl::Seconds(20)),
                             {.manifest = artifact_.manifest, .location = location, .sources = provider});
    EXPECT_TRUE(pending.ok()) << pending.status();
    auto lease = (*pending)->Wait(RequestContext::Background(absl::Seconds(20)));
    EXPECT_TRUE(lease.ok()) << lease.status();
    return (*lease)->replica_id();
  }

  PullOpening Opening(const std::string& replica_id, const std::string& lane = "loopback") {
    const rpc::GrantClaims claims{.transport_id = "transport",
                                  .replica_id = replica_id,
                                  .artifact_id = artifact_.manifest->id(),
                                  .receiver_node_id = "receiver",
                                  .lane = lane,
                                  .expires = now_ - given_ + absl::Seconds(30)};
    return {.transport_id = claims.transport_id,
            .grant_token = rpc::SignGrant(std::string(32, 'k'), claims),
            .replica_id = replica_id,
            .artifact_id = claims.artifact_id,
            .receiver_node_id = claims.receiver_node_id,
            .lane = "loopback"};
  }

  // Pulls the whole image the way a receiver does.
  absl::StatusOr<std::vector<std::byte>> Pull(const std::string& descriptor) {
    auto pull = lane_->Connect(RequestContext::Background(absl::Seconds(20)), descriptor);
    if (!pull.ok()) {
      return pull.status();
    }
    auto memory = pool_->Allocate(artifact_.image.size());
    EXPECT_TRUE(memory.ok()) << memory.status();
    const std::vector<HostSpan> destination = memory->Spans(0, memory->bytes());
    absl::Notification done;
    absl::Status status;
    (*pull)->Fetch(0, destination, absl::Now() + absl::Seconds(20),
                   [&](const transport::FetchResult& result) {
                     status = result.status();
                     done.Notify();
                   });
    done.WaitForNotification();
    if (!status.ok()) {
      return status;
    }
    return testing::Gather(destination);
  }

  uint32_t Leases() const {
    uint32_t leases = 0;
    for (const ReplicaInfo& replica : engine_->ListReplicas()) {
      leases += replica.leases;
    }
    return leases;
  }

  const TestArtifact artifact_ = MakeChunkedArtifact(1, 80, 64 << 10);  // larger than the one staging buffer
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  const absl::Time given_ = absl::UnixEpoch();  // the grant key
  std::unique_ptr<HostPool> pool_;
  std::unique_ptr<DeviceRuntime> devices_;
  std::function<void()> on_serve_;
  std::unique_ptr<transport::Transport> lane_;
  std::unique_ptr<StoreEngine> engine_;
  std::unique_ptr<ServeRegistry> registry_;
};

TEST_F(ServeRegistryTest, ServesHostMemoryInPlaceAndClosesWithItsLease) {
  auto descriptor = registry_->Open(Opening(MakeReplica({LocationKind::kCpu})));
  ASSERT_TRUE(descriptor.ok()) << descriptor.status();
  EXPECT_EQ(Leases(), 1);
  auto bytes = Pull(descriptor->descriptor);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(*bytes, artifact_.image);
  EXPECT_EQ(registry_->Close("transport", absl::OkStatus()), artifact_.image.size());
  EXPECT_EQ(registry_->active(), 0);
  EXPECT_EQ(Leases(), 0);
  EXPECT_EQ(registry_->Close("transport", absl::OkStatus()), 0);
  EXPECT_FALSE(Pull(descriptor->descriptor).ok());
}

TEST_F(ServeRegistryTest, ServesAGpuThroughOneStagingBuffer) {
  auto descriptor = registry_->Open(Opening(MakeReplica({LocationKind::kGpu, 0})));
  ASSERT_TRUE(descriptor.ok()) << descriptor.status();
  auto bytes = Pull(descriptor->descriptor);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(*bytes, artifact_.image);
  EXPECT_FALSE(registry_->Reports()[0].in_place);
  EXPECT_GT(registry_->Reports()[0].reading, absl::ZeroDuration());
}

TEST_F(ServeRegistryTest, TellsWhatItServesAndWhatItServed) {
  auto descriptor = registry_->Open(Opening(MakeReplica({LocationKind::kCpu})));
  ASSERT_TRUE(descriptor.ok()) << descriptor.status();
  ASSERT_EQ(registry_->Reports().size(), 1);
  EXPECT_EQ(registry_->Reports()[0].requests, 0);
  ASSERT_TRUE(Pull(descriptor->descriptor).ok());
  const ServeReport open = registry_->Reports()[0];
  EXPECT_EQ(open.transport_id, "transport");
  EXPECT_EQ(open.receiver_node_id, "receiver");
  EXPECT_EQ(open.lane, "loopback");
  EXPECT_EQ(open.bytes, artifact_.image.size());
  EXPECT_GT(open.requests, 0);
  EXPECT_TRUE(open.in_place);
  EXPECT_LE(open.opened, open.first_request);
  EXPECT_LE(open.first_request, open.last_completion);
  EXPECT_EQ(open.closed, absl::InfiniteFuture());
  EXPECT_EQ(registry_->bytes(), (BytesByLane{{"loopback", artifact_.image.size()}}));

  registry_->Close("transport", absl::OkStatus());
  ASSERT_EQ(registry_->Reports().size(), 1);
  EXPECT_GE(registry_->Reports()[0].closed, open.last_completion);
  EXPECT_EQ(registry_->Reports()[0].bytes, artifact_.image.size());
  EXPECT_EQ(registry_->bytes(), (BytesByLane{{"loopback", artifact_.image.size()}})) << "counted once";
}

TEST_F(ServeRegistryTest, ARepeatedOpenIsTheSamePullAndAClosedOneStaysClosed) {
  const PullOpening opening = Opening(MakeReplica({LocationKind::kCpu}));
  auto first = registry_->Open(opening);
  auto second = registry_->Open(opening);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->descriptor, second->descriptor);
  EXPECT_EQ(registry_->active(), 1);
  registry_->Close("transport", absl::OkStatus());
  EXPECT_EQ(registry_->Open(opening).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ServeRegistryTest, APullRevokedBeforeItOpensIsNotOpened) {
  const PullOpening opening = Opening(MakeReplica({LocationKind::kCpu}));
  registry_->Revoke({"transport"});
  EXPECT_EQ(registry_->Open(opening).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ServeRegistryTest, ARevocationThatComesWhileAPullIsBeingOpenedEndsIt) {
  const PullOpening opening = Opening(MakeReplica({LocationKind::kCpu}));
  on_serve_ = [this] { registry_->Revoke({"transport"}); };
  EXPECT_EQ(registry_->Open(opening).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(registry_->active(), 0);
  EXPECT_EQ(Leases(), 0);
}

TEST_F(ServeRegistryTest, ARepetitionThatOvertakesTheOpeningOfAPullIsTheSamePull) {
  const PullOpening opening = Opening(MakeReplica({LocationKind::kCpu}));
  absl::StatusOr<OpenedPull> overtaking = absl::UnknownError("not called");
  on_serve_ = [&] { overtaking = registry_->Open(opening); };
  auto descriptor = registry_->Open(opening);
  ASSERT_TRUE(descriptor.ok() && overtaking.ok());
  EXPECT_EQ(descriptor->descriptor, overtaking->descriptor);
  EXPECT_TRUE(Pull(descriptor->descriptor).ok());
}

TEST_F(ServeRegistryTest, NothingIsAttachedToUnderAGrantThatHasEnded) {
  const PullOpening opening = Opening(MakeReplica({LocationKind::kCpu}));
  EXPECT_TRUE(registry_->CheckGrant(opening).ok());
  registry_->Revoke({"transport"});
  EXPECT_EQ(registry_->CheckGrant(opening).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ServeRegistryTest, ASourceThatGaveWhatWasWantedOfItIsNotToldToHaveBeenCancelled) {
  ASSERT_TRUE(registry_->Open(Opening(MakeReplica({LocationKind::kCpu}))).ok());
  registry_->Close("transport", absl::OkStatus());  // after a part of the image, or nothing of it
  EXPECT_EQ(registry_->Reports()[0].error, "");
}

TEST_F(ServeRegistryTest, AReceiverThatGivesUpIsToldWithItsReason) {
  ASSERT_TRUE(registry_->Open(Opening(MakeReplica({LocationKind::kCpu}))).ok());
  registry_->Close("transport", absl::UnavailableError("no byte arrived"));
  EXPECT_EQ(registry_->Reports()[0].error, "no byte arrived");
}

TEST_F(ServeRegistryTest, RevocationEndsAPullAndItsLease) {
  auto descriptor = registry_->Open(Opening(MakeReplica({LocationKind::kCpu})));
  ASSERT_TRUE(descriptor.ok());
  registry_->Revoke({"transport", "another"});
  EXPECT_EQ(Leases(), 0);
  EXPECT_FALSE(Pull(descriptor->descriptor).ok());
}

TEST_F(ServeRegistryTest, WhoAwaitsItsEndWaitsForTheLastPullOrToTheDeadline) {
  EXPECT_TRUE(registry_->AwaitNone(absl::InfinitePast()));
  ASSERT_TRUE(registry_->Open(Opening(MakeReplica({LocationKind::kCpu}))).ok());
  EXPECT_FALSE(registry_->AwaitNone(absl::InfinitePast()));
  EXPECT_FALSE(registry_->AwaitNone(SteadyNow() + absl::Milliseconds(5)));
  std::thread closer([&] { registry_->Close("transport", absl::OkStatus()); });
  EXPECT_TRUE(registry_->AwaitNone(absl::InfiniteFuture()));
  closer.join();
}

TEST_F(ServeRegistryTest, AnExpiredPullEndsWhenNothingMovesAndARenewedOneLives) {
  auto descriptor = registry_->Open(Opening(MakeReplica({LocationKind::kCpu})));
  ASSERT_TRUE(descriptor.ok());
  now_ += absl::Seconds(29);
  registry_->Renew();
  now_ += absl::Seconds(29);
  registry_->Sweep();
  EXPECT_EQ(registry_->active(), 1);
  now_ += absl::Seconds(2);
  ASSERT_TRUE(Pull(descriptor->descriptor).ok());
  registry_->Sweep();
  EXPECT_EQ(registry_->active(), 1) << "bytes moved since the last sweep";
  now_ += absl::Seconds(29);
  registry_->Sweep();
  EXPECT_EQ(registry_->active(), 1) << "on a slow link the next ones may take a while";
  now_ += absl::Seconds(2);
  registry_->Sweep();
  EXPECT_EQ(registry_->active(), 0);
  EXPECT_EQ(Leases(), 0);
}

TEST_F(ServeRegistryTest, ATokenOpensOnlyWhatItNames) {
  const std::string replica_id = MakeReplica({LocationKind::kCpu});
  PullOpening other_transport = Opening(replica_id);
  other_transport.transport_id = "another";
  PullOpening other_replica = Opening(replica_id);
  other_replica.replica_id = MakeReplica({LocationKind::kGpu, 0});
  PullOpening other_receiver = Opening(replica_id);
  other_receiver.receiver_node_id = "somebody";
  PullOpening other_lane = Opening(replica_id, "ucx");
  PullOpening forged = Opening(replica_id);
  forged.grant_token.back() ^= 1;
  for (const PullOpening& opening : {other_transport, other_replica, other_receiver, other_lane, forged}) {
    EXPECT_EQ(registry_->Open(opening).status().code(), absl::StatusCode::kPermissionDenied);
  }
  EXPECT_EQ(registry_->active(), 0);
}

TEST_F(ServeRegistryTest, AnExpiredTokenIsRefused) {
  const PullOpening opening = Opening(MakeReplica({LocationKind::kCpu}));
  now_ += absl::Minutes(10);
  EXPECT_EQ(registry_->Open(opening).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(ServeRegistryTest, AGrantToAttachAlsoPermitsAPullButNotTheOtherWayRound) {
  const std::string replica_id = MakeReplica({LocationKind::kCpu});
  EXPECT_TRUE(registry_->Open(Opening(replica_id, "local")).ok());
  PullOpening attach = Opening(replica_id, "loopback");
  attach.lane = "local";
  EXPECT_EQ(registry_->CheckGrant(attach).code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(ServeRegistryTest, AReplicaThatIsGoneAndALaneThatIsNotThereAreNamed) {
  EXPECT_EQ(registry_->Open(Opening("no-such-replica")).status().code(), absl::StatusCode::kNotFound);
  PullOpening unknown = Opening(MakeReplica({LocationKind::kCpu}), "local");
  unknown.lane = "warp";
  EXPECT_EQ(registry_->Open(unknown).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Leases(), 0);
}

TEST(StagingBuffers, AreBoundedAndComeBackWithTheLastReference) {
  auto pool = HostPool::Create({.bytes = 8 << 20, .use_huge_pages = false, .prefault_threads = 0});
  ASSERT_TRUE(pool.ok());
  auto buffers = StagingBuffers::Create(pool->get(), 1);
  ASSERT_TRUE(buffers.ok());
  auto first = (*buffers)->Acquire(absl::InfiniteDuration());
  ASSERT_TRUE(first.ok());
  EXPECT_EQ((*buffers)->Acquire(absl::ZeroDuration()).status().code(), absl::StatusCode::kDeadlineExceeded);
  std::thread giver([held = *std::move(first)]() mutable { held.reset(); });
  EXPECT_TRUE((*buffers)->Acquire(absl::InfiniteDuration()).ok());
  giver.join();
  EXPECT_EQ(StagingBuffers::Create(pool->get(), 100).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace tensorcast::daemon
