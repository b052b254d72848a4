#include "daemon/telemetry/telemetry.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/steady_time.h"
#include "core/replica/transfer_report.h"
#include "otel/api/metrics_catalogue.h"

namespace tensorcast::daemon {
namespace {

namespace attr = otel::attr;
namespace metrics = otel::metrics;

// The labels of outcomes in metrics and logs.
std::string_view Outcome(const absl::Status& status) {
  return status.ok() ? "ok" : absl::IsCancelled(status) ? "cancelled" : "failed";
}

// Whether the bytes came from another daemon, attached or pulled.
bool FromPeer(const SourceInfo& source) {
  return source.type == SourceType::kRemote || source.lane == kLocalLane;
}

// A transfer that changed sources is named by the furthest of them: peer, then disk, then this node.
std::string_view IngestName(const TransferReport& report) {
  if (report.stages.empty()) return "StoreEngine/Ingest";  // no source, or no space
  std::string_view name = "StoreEngine/LocalIngest";
  for (const StageReport& stage : report.stages) {
    if (FromPeer(stage.source)) return "StoreEngine/P2PIngest";
    if (stage.source.type == SourceType::kDisk) name = "StoreEngine/DiskIngest";
  }
  return name;
}

// Each kind of work has one name, so that traces can be searched by it. A fetch is named after its source, a
// placement after its destination.
std::string_view StageSpanName(const StageReport& stage, LocationKind destination) {
  switch (stage.stage) {
    case Stage::kFetch:
      return FromPeer(stage.source)                   ? "P2P/Pull"
             : stage.source.type == SourceType::kDisk ? "Disk/Read"
             : stage.source.lane == kDeviceLane       ? "Device/Copy"
             : stage.source.lane == kNcclLane         ? "Device/Read"
                                                      : "Memory/Read";
    case Stage::kVerify:
      return FromPeer(stage.source) ? "P2P/Verify" : "StoreEngine/Verify";
    case Stage::kPlace:
      return destination == LocationKind::kGpu    ? "Device/Copy"
             : destination == LocationKind::kDisk ? "Disk/Write"
                                                  : "Memory/Place";
  }
  return "StoreEngine/Stage";
}

void RecordStageSpan(const StageReport& stage, LocationKind destination, const otel::Span& ingest) {
  // A fetch's span has an id that was reserved with its source, so that the source's own spans could name it.
  // The other stages get theirs here.
  otel::Span span(
      StageSpanName(stage, destination), ingest.context(),
      {{attr::kStage, StageName(stage.stage)},
       {attr::kLane, stage.source.lane},
       {attr::kSourceType, SourceTypeName(stage.source.type)},
       {attr::kSizeBytes, stage.bytes},
       {attr::kChunks, stage.chunks},
       {attr::kBusySeconds, absl::ToDoubleSeconds(stage.busy)}},
      {.start = stage.start, .reserved = stage.stage == Stage::kFetch ? &stage.source.span : nullptr});
  if (!stage.source.grant_id.empty()) span.SetAttribute(attr::kGrantId, stage.source.grant_id);
  span.SetError(stage.status);
  span.End(stage.end);
}

// Why the transfer did not end with the source that it began with. `attempt` counts its sources.
void AddEvents(const SourceChange& change, int attempt, otel::Span& ingest) {
  const std::string_view reason = SourceLossName(change.why);
  if (change.chunks > 0) {
    ingest.AddEvent("refetch",
                    {{attr::kReason, reason},
                     {attr::kAttempt, attempt},
                     {attr::kLane, change.to.lane},
                     {attr::kChunks, change.chunks},
                     {attr::kExceptionMessage, change.status.message()}},
                    change.at);
  }
  const bool same_lane = change.from.lane == change.to.lane;
  ingest.AddEvent(same_lane ? "next source" : "fallback",
                  {{attr::kReason, reason},
                   {attr::kAttempt, attempt},
                   {attr::kPreviousLane, change.from.lane},
                   {attr::kLane, change.to.lane},
                   {attr::kExceptionMessage, change.status.message()}},
                  change.at);
}

// The ingests that made the replicas which this one read, each once.
std::vector<otel::SpanLink> LinksOf(const TransferReport& report) {
  std::vector<otel::SpanLink> links;
  for (const StageReport& stage : report.stages) {
    const TraceContext& made_by = stage.source.made_by;
    if (stage.stage != Stage::kFetch || !made_by.IsValid()) continue;
    // A source that came back, or was read over two lanes, is one all the same.
    const bool known = std::ranges::any_of(
        links, [&made_by](const otel::SpanLink& link) { return link.context.span_id == made_by.span_id; });
    if (!known) links.push_back({.context = made_by});
  }
  return links;
}

// The spans of a transfer are made at its end, with the times of its report, so that they cost nothing while
// bytes move.
void RecordSpans(const TransferReport& report) {
  const std::vector<otel::SpanLink> links = LinksOf(report);
  otel::Span span(IngestName(report), report.trace,
                  {{attr::kTransferId, report.transfer_id},
                   {attr::kArtifactId, report.artifact_id},
                   {attr::kReplicaId, report.replica_id},
                   {attr::kLocation, LocationKindName(report.destination.kind)},
                   {attr::kSizeBytes, report.bytes},
                   {attr::kRefetchedChunks, report.refetched_chunks}},
                  {.links = links, .start = report.start, .reserved = &report.span});
  if (report.destination.kind == LocationKind::kGpu) {
    span.SetAttribute(attr::kDeviceId, report.destination.device);
  }
  for (const StageReport& stage : report.stages) RecordStageSpan(stage, report.destination.kind, span);
  // The first source is attempt 1; each change leads to the next.
  int attempt = 1;
  for (const SourceChange& change : report.changes) AddEvents(change, ++attempt, span);
  span.SetError(report.status);
  span.End(report.end);
}

void RecordPull(const StageReport& stage) {
  const std::string_view lane = stage.source.lane;
  const absl::Duration took = stage.end - stage.start;
  metrics::kP2pStageSeconds.Record(absl::ToDoubleSeconds(took), {lane, "receive", StageName(stage.stage)});
  metrics::kP2pStageBusySeconds.Record(absl::ToDoubleSeconds(stage.busy),
                                       {lane, "receive", StageName(stage.stage)});
  if (stage.stage != Stage::kFetch) return;
  metrics::kP2pBytes.Add(stage.bytes, {lane, "receive"});
  metrics::kP2pPulls.Add(1, {lane, "receive", Outcome(stage.status)});
  if (took > absl::ZeroDuration()) {
    metrics::kP2pThroughput.Record(static_cast<double>(stage.bytes) / absl::ToDoubleSeconds(took),
                                   {lane, "receive"});
  }
}

void RecordChange(const SourceChange& change) {
  const std::string_view reason = SourceLossName(change.why);
  if (change.chunks > 0 && FromPeer(change.from)) {
    metrics::kP2pRefetchedChunks.Add(change.chunks, {change.from.lane, reason});
  }
  if (change.from.lane != change.to.lane) {
    metrics::kP2pFallbacks.Add(1, {change.from.lane, change.to.lane, reason});
  }
}

void RecordMetrics(const TransferReport& report) {
  const std::string_view location = LocationKindName(report.destination.kind);
  metrics::kTransfersCompleted.Add(1, {location, Outcome(report.status)});
  metrics::kTransferWaitSeconds.Record(absl::ToDoubleSeconds(report.start - report.queued), {location});
  metrics::kTransferExecutionSeconds.Record(absl::ToDoubleSeconds(report.end - report.start),
                                            {location, Outcome(report.status)});
  for (const StageReport& stage : report.stages) {
    if (FromPeer(stage.source)) RecordPull(stage);
  }
  for (const SourceChange& change : report.changes) RecordChange(change);
  if (report.reassigned_chunks > 0) metrics::kP2pReassignedChunks.Add(report.reassigned_chunks);
  for (const SourceReport& source : report.sources) {
    if (source.source.lane == kEqualLane) metrics::kEqualChunkBytes.Add(source.bytes);
    if (source.source.lane == kDifferenceLane) metrics::kDifferenceBytes.Add(source.bytes);
  }
}

// "tcp from node-1, disk from /models": each source once, in the order in which they were read.
std::string SourcesText(const TransferReport& report) {
  std::vector<std::string> sources;
  for (const StageReport& stage : report.stages) {
    std::string source = absl::StrCat(stage.source.lane, " from ", stage.source.name);
    if (stage.stage == Stage::kFetch && std::ranges::find(sources, source) == sources.end()) {
      sources.push_back(std::move(source));
    }
  }
  return sources.empty() ? "no source" : absl::StrJoin(sources, ", ");
}

}  // namespace

void LogTransfer(const TransferReport& report) {
  // So that the line has the ids of the ingest's span.
  const otel::Scope scope(report.span);
  const std::string artifact = report.artifact_id.empty() ? "a new artifact" : report.artifact_id;
  const std::string line =
      absl::StrCat("transfer ", report.transfer_id, " of ", artifact, " to ", report.destination.ToString(),
                   ": ", report.bytes, " of ", report.bytes_total, " bytes in ",
                   absl::FormatDuration(report.end - report.start), ", ", SourcesText(report));
  if (report.status.ok() || absl::IsCancelled(report.status)) {
    LOG(INFO) << line << ": " << Outcome(report.status);
  } else {
    LOG(WARNING) << line << ": failed: " << absl::Utf8SafeCEscape(report.status.ToString());
  }
}

void RecordTransfer(const TransferReport& report) {
  if (otel::IsTracing()) RecordSpans(report);
  if (otel::IsMeasuring()) RecordMetrics(report);
}

otel::Span JoinSpan(const RequestContext& context, const PendingReplica& pending) {
  if (!otel::IsTracing() || !pending.shared()) return otel::Span();
  // Linked and not below it: the ingest belongs to the trace of the request that started it.
  const otel::SpanLink link{.context = pending.ingest()};
  return otel::Span("StoreEngine/JoinIngest", context, {{attr::kShared, true}}, {.links = {&link, 1}});
}

void RecordServing(const v1::ServeReport& report, const transport::ServeStats& stats, SteadyTime opened,
                   const TraceContext& call, std::string_view outcome, uint64_t filling_bytes) {
  const std::string& lane = report.lane();
  metrics::kP2pBytes.Add(stats.bytes, {lane, "serve"});
  if (filling_bytes > 0) metrics::kP2pServedFillingBytes.Add(filling_bytes, {lane});
  metrics::kP2pPulls.Add(1, {lane, "serve", outcome});
  const absl::Duration took = stats.last_completion - stats.first_request;
  if (stats.bytes > 0 && took > absl::ZeroDuration()) {
    metrics::kP2pThroughput.Record(static_cast<double>(stats.bytes) / absl::ToDoubleSeconds(took),
                                   {lane, "serve"});
  }
  // Links belong to a span's start, and the receiver is known only now.
  const otel::SpanLink link{.context = stats.receiver_trace};
  otel::SpanOptions options{.start = opened};
  if (link.context.IsValid()) options.links = {&link, 1};
  otel::Span span("P2P/Serve", call,
                  {{attr::kLane, lane},
                   {attr::kGrantId, report.grant_id()},
                   {attr::kArtifactId, report.artifact_id()},
                   {attr::kSizeBytes, stats.bytes}},
                  options);
  if (outcome != "ok") span.AddEvent("ended early", {{attr::kReason, outcome}});
  const otel::Scope scope(span.context().IsValid() ? span.context() : call);
  LOG(INFO) << "served grant " << report.grant_id() << " of " << report.artifact_id() << " over " << lane
            << ": " << stats.bytes << " bytes in " << SteadyNow() - opened << ": " << outcome;
}

AttachRecord::AttachRecord(const TraceContext& parent, const TraceContext& receiver,
                           std::string_view grant_id, std::string_view artifact_id, uint64_t image_bytes)
    : parent_(parent), grant_id_(grant_id), artifact_id_(artifact_id), opened_(SteadyNow()) {
  const otel::SpanLink link{.context = receiver};
  otel::SpanOptions options;
  if (receiver.IsValid()) options.links = {&link, 1};
  span_ = otel::Span("P2P/Serve", parent,
                     {{attr::kLane, kLocalLane},
                      {attr::kGrantId, grant_id},
                      {attr::kArtifactId, artifact_id},
                      {attr::kSizeBytes, image_bytes}},
                     options);
}

AttachRecord::~AttachRecord() {
  const otel::Scope scope(span_.context().IsValid() ? span_.context() : parent_);
  LOG(INFO) << "served grant " << grant_id_ << " of " << artifact_id_ << " over " << kLocalLane << ": for "
            << SteadyNow() - opened_;
}

void RecordLoad(std::string_view source, LocationKind location, absl::Duration took, uint64_t bytes,
                const absl::Status& status) {
  const std::string_view where = LocationKindName(location);
  metrics::kArtifactLoads.Add(1, {source, where, Outcome(status)});
  if (!status.ok()) return;
  metrics::kArtifactLoadSeconds.Record(absl::ToDoubleSeconds(took), {source, where});
  metrics::kArtifactLoadBytes.Add(bytes, {source, where});
}

}  // namespace tensorcast::daemon
