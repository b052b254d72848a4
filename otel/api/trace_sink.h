// Sinks record the spans that otel/api describes. There is at most one sink of each kind: the OpenTelemetry
// bridge (otel/sdk), the trace file and the flight recorder.
//
// Sinks are called from any thread. An installed sink must live as long as the process, since a thread may
// still call a sink that was just replaced. A replaced sink records nothing. Standard library only.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "base/trace_context.h"
#include "otel/api/attributes.h"

namespace tensorcast::otel {

enum class SpanKind : uint8_t { kInternal, kServer, kClient, kProducer, kConsumer };

// A relation to a span that is not the parent, such as a span of another request.
struct SpanLink {
  TraceContext context;
  AttributeList attributes = {};
};

using SpanTime = std::chrono::system_clock::time_point;

// A time equal to the epoch means now.
inline SpanTime OrNow(SpanTime time) { return time == SpanTime() ? std::chrono::system_clock::now() : time; }

// Borrowed for one call.
struct SpanStart {
  std::string_view name;  // "<Component>/<Operation>"
  SpanKind kind = SpanKind::kInternal;
  // Not valid: a root. Unstarted (see TraceContext): a root with this trace id. The parent of kServer and
  // kConsumer spans is in another process.
  const TraceContext* parent = nullptr;
  std::span<const Attribute> attributes;
  std::span<const SpanLink> links;
  SpanTime time;        // the epoch: now
  bool scoped = false;  // a ScopedSpan: on one thread, nested in that thread's other scoped spans
};

// A sink's record of one span from its start to its end. Used by one thread at a time; its destructor does
// not end the span.
class SpanRecord {
 public:
  virtual ~SpanRecord() = default;
  virtual void SetAttribute(std::string_view key, const AttributeValue& value) = 0;
  // `time` as in SpanStart.
  virtual void AddEvent(std::string_view name, std::span<const Attribute> attributes, SpanTime time) = 0;
  virtual void AddLink(const SpanLink& link) = 0;
  virtual void SetError(std::string_view type, std::string_view message) = 0;
  // The last call. `time` as in SpanStart.
  virtual void End(SpanTime time) = 0;
};

class TraceSink {
 public:
  virtual ~TraceSink() = default;

  // Starts a span; null if the sink does not record it. `context` is for the span's children and other
  // processes. If Reserve made `context`, it is valid; if not, the first sink sets it. Must not block.
  virtual std::unique_ptr<SpanRecord> Start(const SpanStart& start, TraceContext& context) = 0;
  // The context for a span that is started later under this parent.
  virtual TraceContext Reserve(const TraceContext& parent) = 0;
};

// The sinks see the start of a span in this order. Telemetry assigns the ids if it is on. The
// recorder gives ids only to spans that it keeps and that have none from another sink.
enum class SinkKind : uint8_t { kTelemetry, kTraceFile, kRecorder };
inline constexpr size_t kSinkKinds = 3;

// Replaces the sink of that kind; null: no sink.
void InstallTraceSink(SinkKind kind, TraceSink* sink);

// For sinks: owns the object for the rest of the process, and keeps it reachable for leak checkers.
// Thread-safe.
template <class T>
T* KeepForever(std::unique_ptr<T> object) {
  struct Kept {
    std::unique_ptr<T> object;
    Kept* next;
  };
  static std::atomic<Kept*> kept{nullptr};
  auto* node = new Kept{std::move(object), kept.load()};
  while (!kept.compare_exchange_weak(node->next, node)) {
  }
  return node->object.get();
}

namespace internal {
// Bit k: a sink of kind k is installed.
inline std::atomic<uint32_t> installed_sinks{0};
TraceSink* InstalledSink(SinkKind kind);
}  // namespace internal

// Whether a sink records spans.
inline bool IsTracing() { return internal::installed_sinks.load(std::memory_order_relaxed) != 0; }

}  // namespace tensorcast::otel
