// Turns reports of ended transfers into metrics, spans and log lines. Thread-safe.
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

// Logs an ended transfer as one line, with its trace.
void LogTransfer(const TransferReport& report);

// Records an ended ingest as spans, one for each stage and source. The spans are children of the request that
// started the ingest. Links lead to the ingests that made the source replicas.
void RecordTransfer(const TransferReport& report);

// Returns a span over the time that a request waits for an ingest of another request, with a link to that
// ingest. The span is empty if the request started its own ingest, or needs no ingest.
otel::Span JoinSpan(const RequestContext& context, const PendingReplica& pending);

// Records a pull that this node served since `opened`: a span, metrics, and a line in the log. The span is a
// child of `call`, which opened the pull, and is linked to the span that the receiver's transport named.
// `outcome`: "ok", "failed" or "cancelled". `filling_bytes`: bytes served while the replica filled.
void RecordServing(const v1::ServeReport& report, const transport::ServeStats& stats, SteadyTime opened,
                   const TraceContext& call, std::string_view outcome, uint64_t filling_bytes);

// The span of a copy from a replica of this node by another daemon of this host. The span lasts as long as
// this object.
class AttachRecord {
 public:
  // `parent`: the span of the call that attached. `receiver`: the receiver's span, to which the new span is
  // linked; may be invalid. `image_bytes`: the bytes that the receiver may copy.
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

// Records an ended request for a replica. `source`: attached, local, remote, disk, import, put or unknown.
void RecordLoad(std::string_view source, LocationKind location, absl::Duration took, uint64_t bytes,
                const absl::Status& status);

}  // namespace tensorcast::daemon
