#include "daemon/telemetry/trace_export.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/log/log.h"
#include "base/upkeep.h"
#include "otel/api/attributes.h"

namespace tensorcast::daemon {
namespace {

// Of one process: what a peer sends is not to fill the export queue.
constexpr size_t kMaxSpansOfOne = 1000;
constexpr size_t kMaxExportedIds = 4096;

std::vector<std::string> SourcesOf(const TransferReport& report) {
  std::vector<std::string> nodes;
  for (const SourceReport& source : report.sources) {
    const SourceInfo& info = source.source;
    if (info.type == SourceType::kDisk || (info.grant_id.empty() && !source.loss.has_value())) continue;
    if (nodes.size() == TraceExporter::kMaxSources) break;
    if (std::ranges::find(nodes, info.name) == nodes.end()) nodes.push_back(info.name);
  }
  return nodes;
}

}  // namespace

void TraceExporter::OnTransfer(const TransferReport& report) {
  // A transfer that was cancelled has not failed, though it may have been slow.
  const bool failed = !report.status.ok() && !absl::IsCancelled(report.status);
  const bool slow = report.end - report.queued >= options_.slow_transfer;
  if ((!failed && !slow) || !report.trace.IsValid()) return;
  const bool exports = otel::internal::InstalledSink(otel::SinkKind::kTelemetry) != nullptr &&
                       otel::internal::InstalledSink(otel::SinkKind::kRecorder) != nullptr;
  if (!exports) return;
  SteadyTime when = SteadyNow() + options_.settle;
  {
    absl::MutexLock lock(&mutex_);
    if (waiting_.size() >= kMaxWaiting || !waiting_.insert(report.trace.trace_id).second) return;
    // There is at most one export in a pause, however many transfers fail at once.
    when = std::max(when, next_);
    next_ = when + options_.pause;
  }
  // Only the loop may touch its queue, so the timer is set there.
  loop_.Post([this, when, wanted = Wanted{report.trace.trace_id, SourcesOf(report)}] {
    loop_.queue().At(when, [this, wanted] { Export(wanted); });
  });
}

void TraceExporter::Add(Answer answer, const std::string& node, const otel::TraceId& trace,
                        std::vector<otel::KeptSpan>& spans) {
  // A node that cannot be asked, or may not be, leaves its part out.
  if (!answer.ok()) {
    VLOG(1) << "No records of a trace from " << node << ": " << answer.status();
    return;
  }
  size_t taken = 0;
  for (otel::KeptSpan& span : answer->spans) {
    // A peer cannot bring spans of a trace that it was not asked for.
    if (span.context.trace_id != trace || taken == kMaxSpansOfOne) continue;
    if (!exported_.insert(span.context.span_id).second) continue;
    ++taken;
    if (!node.empty()) span.attributes.emplace_back(otel::attr::kNodeName.name(), node);
    spans.push_back(std::move(span));
  }
}

void TraceExporter::Export(const Wanted& wanted) {
  {
    absl::MutexLock lock(&mutex_);
    waiting_.erase(wanted.trace);
  }
  // The memory of what was exported is bounded; at worst a span is exported twice.
  if (exported_.size() > kMaxExportedIds) exported_.clear();
  std::optional<otel::RecordedSlice> own = otel::ReadRecorder(wanted.trace, size_t{1} << 20);
  // A trace that is sampled is with the collector already, and so are the parts of the others.
  if (!own.has_value() || std::ranges::all_of(own->spans, &otel::KeptSpan::exported)) return;
  std::vector<otel::KeptSpan> spans;
  Add(*std::move(own), "", wanted.trace, spans);
  // Upkeep: the calls do not belong to the trace that they ask for.
  if (options_.ask_store) {
    Add(options_.ask_store(UpkeepContext(kTimeOfOne), wanted.trace), "global-store", wanted.trace, spans);
  }
  for (const std::string& node : wanted.nodes) {
    if (!options_.ask_node) break;
    Add(options_.ask_node(UpkeepContext(kTimeOfOne), node, wanted.trace), node, wanted.trace, spans);
  }
  const size_t exported = otel::ExportSpans(spans);
  TraceContext named;
  named.trace_id = wanted.trace;
  LOG(INFO) << "exported " << exported << " spans of trace " << named.TraceIdHex()
            << ", which was not sampled: its transfer failed or was slow";
}

}  // namespace tensorcast::daemon
