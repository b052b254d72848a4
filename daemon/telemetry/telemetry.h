// Turns a transfer's report into telemetry: spans (one for each stage and source) and metrics. The
// engine reports once, at the end; nothing here runs while bytes move. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/steady_time.h"
#include "core/engine/engine.h"
#include "core/replica/transfer_report.h"
#include "otel/api/span.h"
#include "proto/daemon.pb.h"
#include "transport/transport.h"

namespace tensorcast::daemon {

// A transfer that ended is one line in the log, with its trace.
void LogTransfer(const TransferReport& report);

// A finished ingest: a child of the request that started it, over the time that it took, with the ids that
// were reserved for it; linked to the ingests that made the replicas which it read.
void RecordTransfer(const TransferReport& report);

// Over the time that a request waits for an ingest that another one started, with a link to it. No span for
// a request that started its own, or that needs none.
otel::Span JoinSpan(const RequestContext& context, const PendingReplica& pending);

// A pull that this node has served since `opened`: a span, metrics, and a line in the log. The span is a
// child of `call`, which opened it, and is linked to what the receiver's transport said it pulls for.
// `outcome`: "ok", "failed" or "cancelled". `filling_bytes`: of those served, while the replica filled.
void RecordServing(const v1::ServeReport& report, const transport::ServeStats& stats, SteadyTime opened,
                   const TraceContext& call, std::string_view outcome, uint64_t filling_bytes);

// A replica of this node that another daemon of this host copies from, for as long as this lives. This daemon
// does not do that work, so there is a span, and no count of bytes.
class AttachRecord {
 public:
  // `parent`: the call that asked for it; `receiver`: the span that reads, for a link; may be invalid.
  // `image_bytes`: what the receiver may copy.
  AttachRecord(const TraceContext& parent, const TraceContext& receiver, std::string_view grant_id,
               std::string_view artifact_id, uint64_t image_bytes);
  AttachRecord(const AttachRecord&) = delete;
  AttachRecord& operator=(const AttachRecord&) = delete;
  ~AttachRecord();

 private:
  const TraceContext parent_;
  const std::string grant_id_;
  const std::string artifact_id_;
  const SteadyTime opened_;
  otel::Span span_;
};

// A request for a replica that ended (source: attached, local, remote, disk, import, put; or unknown).
void RecordLoad(std::string_view source, LocationKind location, absl::Duration took, uint64_t bytes,
                const absl::Status& status);

}  // namespace tensorcast::daemon
