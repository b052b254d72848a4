#include "otel/api/flight_recorder.h"

#include <algorithm>
#include <deque>
#include <set>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/log/log_entry.h"
#include "absl/log/log_sink.h"
#include "absl/log/log_sink_registry.h"
#include "absl/synchronization/mutex.h"
#include "base/upkeep.h"
#include "otel/api/span.h"

namespace tensorcast::otel {
namespace {

// Longer log lines are cut.
constexpr size_t kMaxLineBytes = size_t{4} << 10;

// All that these components do moves bytes.
constexpr std::string_view kComponents[] = {"P2P",    "StoreEngine", "Disk",   "Device",
                                            "Memory", "Nccl",        "Replica"};
// Of the other components, the calls that make or end a transfer; on both of their ends.
constexpr std::string_view kOperations[] = {
    "Get",
    "Put",
    "MaterializeReplica",
    "AttachReplica",
    "PutArtifact",
    "ImportArtifact",
    "FulfilTask",
    "OpenPull",
    "ClosePull",
    "RequestReplicaTransport",
    "CompleteReplicaTransport",
    "RequestEviction",
    "PublishArtifact",
    "ClaimImport",
};

// The newest items of a kind, within a number of bytes. Not thread-safe.
template <class Item>
class Ring {
 public:
  explicit Ring(size_t max_bytes) : max_bytes_(max_bytes) {}

  void Add(Item item) {
    const size_t bytes = item.bytes();
    // An item that is larger than the ring would drive out all others, and then itself.
    if (bytes > max_bytes_) return;
    bytes_ += bytes;
    items_.push_back(std::move(item));
    while (bytes_ > max_bytes_) {
      bytes_ -= items_.front().bytes();
      items_.pop_front();
    }
  }

  // The newest that are `wanted`, oldest first; counts those that did not fit.
  template <class Wanted>
  std::vector<Item> Newest(const Wanted& wanted, size_t max_bytes, uint64_t* left_out) const {
    std::vector<Item> newest;
    size_t bytes = 0;
    for (auto item = items_.rbegin(); item != items_.rend(); ++item) {
      if (!wanted(*item)) continue;
      bytes += item->bytes();
      if (bytes > max_bytes) {
        ++*left_out;
      } else {
        // `bytes` counts what did not fit, too, so that nothing older follows a gap.
        newest.push_back(*item);
      }
    }
    std::ranges::reverse(newest);
    return newest;
  }

  void Clear() {
    items_.clear();
    bytes_ = 0;
  }

 private:
  const size_t max_bytes_;
  size_t bytes_ = 0;
  std::deque<Item> items_;
};

}  // namespace

bool IsTransferSpan(std::string_view name) {
  const size_t slash = name.find('/');
  if (slash == std::string_view::npos) return false;
  const std::string_view operation = name.substr(slash + 1);
  if (std::ranges::find(kComponents, name.substr(0, slash)) != std::end(kComponents)) return true;
  return std::ranges::find(kOperations, operation) != std::end(kOperations);
}

// Never destroyed, as every sink; inert once its recorder ended.
class FlightRecorder::Sink final : public TraceSink {
 public:
  // Each has half of the memory, so that many log lines cannot drive out the spans.
  explicit Sink(size_t max_bytes) : spans_(max_bytes / 2), lines_(max_bytes / 2) {}

  std::unique_ptr<SpanRecord> Start(const SpanStart& start, TraceContext& context) override;
  TraceContext Reserve(const TraceContext& parent) override { return ChildOf(parent); }

  void Add(KeptSpan span) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    // A span may end after its recorder did. The sink is still there, and takes nothing.
    if (!ended_) spans_.Add(std::move(span));
  }
  void Add(KeptLine line) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (!ended_) lines_.Add(std::move(line));
  }
  RecordedSlice Read(const std::optional<TraceId>& trace, size_t max_bytes) const
      ABSL_LOCKS_EXCLUDED(mutex_) {
    RecordedSlice slice;
    absl::MutexLock lock(&mutex_);
    slice.spans = spans_.Newest(
        [&](const KeptSpan& span) { return !trace.has_value() || span.context.trace_id == *trace; },
        max_bytes, &slice.left_out);
    slice.lines = lines_.Newest(
        [&](const KeptLine& line) { return !trace.has_value() || line.trace.trace_id == *trace; }, max_bytes,
        &slice.left_out);
    return slice;
  }
  void End() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
    spans_.Clear();
    lines_.Clear();
  }

 private:
  // Flags and state stay the parent's: whether the trace is sampled, and whether a span of it was recorded
  // yet, is decided as without the recorder.
  static TraceContext ChildOf(const TraceContext& parent) {
    return (parent.IsValid() ? parent : TraceContext::NewRoot()).NewChild();
  }

  mutable absl::Mutex mutex_;
  Ring<KeptSpan> spans_ ABSL_GUARDED_BY(mutex_);
  Ring<KeptLine> lines_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

class FlightRecorder::Record final : public KeptSpanRecord {
 public:
  Record(Sink& sink, const SpanStart& start, const TraceContext& context)
      : KeptSpanRecord(start), sink_(sink) {
    span_.context = context;
    // Whether telemetry exports this span anyway: then an export of the trace later on leaves it out.
    span_.exported = context.IsSampled() && internal::InstalledSink(SinkKind::kTelemetry) != nullptr;
  }
  void End(SpanTime time) override {
    span_.end = OrNow(time);
    sink_.Add(std::move(span_));
  }

 private:
  Sink& sink_;
};

std::unique_ptr<SpanRecord> FlightRecorder::Sink::Start(const SpanStart& start, TraceContext& context) {
  const TraceContext& parent = *start.parent;
  if (!IsTransferSpan(start.name)) {
    // What is below a span that is not kept belongs to the span above it.
    if (!context.IsValid()) context = parent;
    return nullptr;
  }
  if (!context.IsValid() || context.span_id == parent.span_id) context = ChildOf(parent);
  return std::make_unique<Record>(*this, start, context);
}

class FlightRecorder::Lines final : public absl::LogSink {
 public:
  explicit Lines(FlightRecorder::Sink& sink) : sink_(sink) { absl::AddLogSink(this); }
  // Abseil's removal waits for a Send that is under way.
  ~Lines() override { absl::RemoveLogSink(this); }

  // Abseil calls sinks on the thread that logs, so its current span is the line's.
  void Send(const absl::LogEntry& entry) override {
    const TraceContext& current = CurrentContext();
    // Upkeep has traces that no request could ask for.
    sink_.Add(KeptLine{.severity = entry.log_severity(),
                       .time = entry.timestamp(),
                       .message = std::string(entry.text_message().substr(0, kMaxLineBytes)),
                       .file = std::string(entry.source_basename()),
                       .line = entry.source_line(),
                       .trace = IsUpkeep(current) ? TraceContext() : current});
  }

 private:
  FlightRecorder::Sink& sink_;
};

FlightRecorder::FlightRecorder(const FlightRecorderOptions& options)
    : sink_(KeepForever(std::make_unique<Sink>(options.max_bytes))), lines_(std::make_unique<Lines>(*sink_)) {
  // The sink is never destroyed, as a thread may be in it at any time (trace_sink.h).
  InstallTraceSink(SinkKind::kRecorder, sink_);
}

FlightRecorder::~FlightRecorder() {
  // Another recorder may have been installed meanwhile; it stays.
  if (internal::InstalledSink(SinkKind::kRecorder) == sink_) InstallTraceSink(SinkKind::kRecorder, nullptr);
  sink_->End();
}

std::optional<RecordedSlice> ReadRecorder(const std::optional<TraceId>& trace, size_t max_bytes) {
  TraceSink* const installed = internal::InstalledSink(SinkKind::kRecorder);
  if (installed == nullptr) return std::nullopt;
  // Only FlightRecorder installs a sink of this kind.
  return static_cast<FlightRecorder::Sink*>(installed)->Read(trace, max_bytes);
}

size_t ExportSpans(const std::vector<KeptSpan>& spans) {
  TraceSink* const telemetry = internal::InstalledSink(SinkKind::kTelemetry);
  if (telemetry == nullptr) return 0;
  std::set<std::array<uint8_t, 8>> known;
  for (const KeptSpan& span : spans) known.insert(span.context.span_id);
  // Sampled and begun, whatever the process thought of it that recorded the span.
  const auto sampled = [](TraceContext context) {
    // The bridge records what is sampled only, and these spans are wanted however they came out.
    context.flags |= TraceContext::kSampled;
    context.trace_state.clear();
    return context;
  };
  size_t exported = 0;
  for (const KeptSpan& span : spans) {
    if (span.exported) continue;
    TraceContext context = sampled(span.context);
    // A span with a parent that is not exported with it becomes a root.
    const TraceContext parent = known.contains(span.parent.span_id) ? sampled(span.parent) : TraceContext();
    exported += span.TellTo(*telemetry, parent, context) ? 1 : 0;
  }
  return exported;
}

}  // namespace tensorcast::otel
