// Keeps spans and metrics as plain values, for tests of telemetry.
//
//   testing::RecordedTelemetry recorded;             // from here to its end
//   ... a call ...
//   const auto span = recorded.AwaitSpan("GlobalStore/BindKey");
//   EXPECT_EQ(recorded.Sum(metrics::kRpcErrors.id(), {"server", "GlobalStore/BindKey", "ABORTED"}), 1);
//
// One at a time in a process; it replaces the telemetry sinks. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "otel/api/metrics_catalogue.h"
#include "otel/api/trace_sink.h"

namespace tensorcast::otel::testing {

using StringMap = std::map<std::string, std::string>;  // values as text, whatever their type

std::string TextOf(const AttributeValue& value);

struct RecordedEvent {
  std::string name;
  StringMap attributes;
  SpanTime time;
};

struct RecordedSpan {
  std::string name;
  SpanKind kind = SpanKind::kInternal;
  TraceContext context;
  TraceContext parent;  // invalid: a root
  StringMap attributes;
  std::vector<RecordedEvent> events;
  std::vector<TraceContext> links;
  std::string error;  // its type; "": none

  // "": the span has no such attribute.
  std::string attribute(const AttributeKey& key) const;
  // The events with this name.
  std::vector<RecordedEvent> EventsNamed(std::string_view event) const;
};

using SpanPredicate = std::function<bool(const RecordedSpan&)>;

class RecordedTelemetry {
 public:
  RecordedTelemetry();
  ~RecordedTelemetry();
  RecordedTelemetry(const RecordedTelemetry&) = delete;
  RecordedTelemetry& operator=(const RecordedTelemetry&) = delete;

  // The ended spans, in the order of their ends.
  std::vector<RecordedSpan> spans() const;
  // Waits until `count` spans with this name have ended, and returns them; fewer after a time that only a
  // hang takes.
  std::vector<RecordedSpan> AwaitSpans(std::string_view name, size_t count) const;
  // Waits for a span with this name for which `like` is true, and returns the first; a span without a name if
  // none came.
  RecordedSpan AwaitSpan(std::string_view name, const SpanPredicate& like = nullptr) const;

  // The sum, and the number, of the values added or recorded with these labels.
  double Sum(MetricId metric, const std::vector<std::string>& labels) const;
  uint64_t Count(MetricId metric, const std::vector<std::string>& labels) const;
  // Waits until Sum is at least `min`; false after a time that only a hang takes.
  bool AwaitSum(MetricId metric, const std::vector<std::string>& labels, double min) const;
};

// The current value of a gauge or observed counter with these labels, summed over its callbacks; 0 when no
// callback reports it.
double ReadGauge(MetricId metric, const std::vector<std::string>& labels);

}  // namespace tensorcast::otel::testing
