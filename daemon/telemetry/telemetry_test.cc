#include "daemon/telemetry/telemetry.h"

#include <map>
#include <string>
#include <vector>

#include "base/steady_time.h"
#include "daemon/telemetry/reports.h"
#include "gtest/gtest.h"
#include "otel/api/testing/recorded_telemetry.h"

namespace tensorcast::daemon {
namespace {

TEST(TransferLog, TransferLog_KeepsNewestUpToItsLimit) {
  TransferLog log(2);
  for (const char* id : {"one", "two", "three"}) log.Add({.transfer_id = id});
  const std::vector<TransferReport> newest = log.Newest();
  ASSERT_EQ(newest.size(), 2);
  EXPECT_EQ(newest[0].transfer_id, "three");
  EXPECT_EQ(newest[1].transfer_id, "two");
}

TEST(TransferLog, TransferLog_SumsBytesOfForgottenTransfers) {
  TransferLog log(1);
  for (int i = 0; i < 3; ++i) {
    TransferReport report;
    report.stages = {{.stage = Stage::kFetch, .source = {.lane = "ucx", .grant_id = "t"}, .bytes = 5},
                     {.stage = Stage::kVerify, .source = {.lane = "ucx", .grant_id = "t"}, .bytes = 5},
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
SteadyTime At(int second) { return SteadyTime() + absl::Seconds(second); }

StageReport StageOf(Stage stage, SourceInfo source, uint64_t bytes, int start, int end) {
  return {.stage = stage,
          .source = std::move(source),
          .bytes = bytes,
          .chunks = 4,
          .start = At(start),
          .end = At(end),
          .busy = absl::Seconds(end - start)};
}

TEST(Telemetry, TransferSpan_HasChildSpansAndLossEvents) {
  RecordedTelemetry recorded;
  const SourceInfo peer{.type = kRemote, .lane = "ucx", .name = "a"};
  const SourceInfo file{.type = SourceType::kDisk, .lane = "disk", .name = "file"};
  TransferReport report{.transfer_id = "t",
                        .artifact_id = "tc2:a",
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
  report.reassigned_chunks = 3;
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
  EXPECT_EQ(recorded.Sum(metrics::kP2pReassignedChunks.id(), {}), 3);
  EXPECT_EQ(recorded.Sum(metrics::kP2pFallbacks.id(), {"ucx", "disk", "timeout"}), 1);
  EXPECT_EQ(recorded.Sum(metrics::kP2pPulls.id(), {"ucx", "receive", "failed"}), 1);
}

TEST(Telemetry, EqualChunks_AreCountedApartFromPulls) {
  RecordedTelemetry recorded;
  TransferReport report{.trace = TraceContext::NewRoot(), .queued = At(0), .start = At(0), .end = At(9)};
  const SourceInfo equal{.type = SourceType::kLocal, .lane = std::string(kEqualLane), .name = "tc2:base"};
  report.stages = {StageOf(Stage::kFetch, equal, 5, 0, 9)};
  report.sources = {{.source = equal, .bytes = 70},
                    {.source = {.type = kRemote, .lane = "tcp"}, .bytes = 30}};
  RecordTransfer(report);
  EXPECT_EQ(recorded.Sum(metrics::kEqualChunkBytes.id(), {}), 70);
  EXPECT_EQ(recorded.AwaitSpan("Memory/Read").attribute(attr::kLane), "equal");
}

TEST(Telemetry, IngestSpan_LinksToEachFeedingTraceOnce) {
  RecordedTelemetry recorded;
  const TraceContext one = TraceContext::NewRoot().NewChild();
  const TraceContext other = TraceContext::NewRoot().NewChild();
  TransferReport report{.trace = TraceContext::NewRoot(), .queued = At(0), .start = At(0), .end = At(9)};
  for (const TraceContext& made_by : {one, other, one}) {
    report.stages.push_back(
        StageOf(Stage::kFetch, {.type = kRemote, .lane = "tcp", .name = "a", .made_by = made_by}, 5, 0, 9));
    report.stages.push_back(report.stages.back());
    report.stages.back().stage = Stage::kVerify;
  }
  RecordTransfer(report);
  const RecordedSpan ingest = recorded.AwaitSpan("StoreEngine/P2PIngest");
  ASSERT_EQ(ingest.links.size(), 2);
  EXPECT_EQ(ingest.links[0].span_id, one.span_id);
  EXPECT_EQ(ingest.links[1].span_id, other.span_id);
}

TEST(Telemetry, P2pBytes_CountRemotePullsButNotLocalCopies) {
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

TEST(Telemetry, ArtifactLoad_IsTimedOnSuccessAndAlwaysCounted) {
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

TEST(Telemetry, ServeSpan_LinksToReceiverTrace) {
  RecordedTelemetry recorded;
  const TraceContext call = TraceContext::NewRoot().NewChild();
  const TraceContext reader = TraceContext::NewRoot();
  v1::ServeReport pull;
  pull.set_lane("ucx");
  pull.set_grant_id("transport");
  pull.set_artifact_id("tc2:a");
  RecordServing(pull, {.bytes = 7, .receiver_trace = reader}, SteadyNow(), call, "ok", /*filling_bytes=*/3);
  const RecordedSpan served = recorded.AwaitSpan("P2P/Serve");
  ASSERT_EQ(served.links.size(), 1);
  EXPECT_EQ(served.links[0].span_id, reader.span_id);
  EXPECT_EQ(recorded.Sum(metrics::kP2pBytes.id(), {"ucx", "serve"}), 7);
  EXPECT_EQ(recorded.Sum(metrics::kP2pServedFillingBytes.id(), {"ucx"}), 3);

  {
    AttachRecord attached(call, reader, "transport", "tc2:a", /*image_bytes=*/9);
  }
  const RecordedSpan lent = recorded.AwaitSpan(
      "P2P/Serve", [](const RecordedSpan& span) { return span.attribute(attr::kLane) == "local"; });
  ASSERT_EQ(lent.links.size(), 1);
  EXPECT_EQ(lent.links[0].span_id, reader.span_id);
  EXPECT_EQ(lent.attribute(attr::kSizeBytes), "9");

  {
    AttachRecord unknown(call, TraceContext(), "another", "tc2:a", /*image_bytes=*/9);
  }
  EXPECT_TRUE(
      recorded
          .AwaitSpan("P2P/Serve",
                     [](const RecordedSpan& span) { return span.attribute(attr::kGrantId) == "another"; })
          .links.empty())
      << "a reader without tracing";
}

}  // namespace
}  // namespace tensorcast::daemon
