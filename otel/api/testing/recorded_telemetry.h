// Spans and metrics kept as plain values, for tests of what code says about itself.
//
//   testing::RecordedTelemetry recorded;             // from here to its end
//   ... a call ...
//   const auto span = recorded.AwaitSpan("GlobalStore/BindKey");
//   EXPECT_EQ(recorded.Sum(metrics::kRpcErrors.id(), {"server", "GlobalStore/BindKey", "ABORTED"}), 1);
//
// One at a time in a process; it takes the place of the telemetry sinks. Thread-safe.
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

  // "": there is none of this name.
  std::string attribute(const AttributeKey& key) const;
  // The events of this name.
  std::vector<RecordedEvent> EventsNamed(std::string_view event) const;
};

using SpanPredicate = std::function<bool(const RecordedSpan&)>;

class RecordedTelemetry {
 public:
  RecordedTelemetry();
  ~RecordedTelemetry();
  RecordedTelemetry(const RecordedTelemetry&) = delete;
  RecordedTelemetry& operator=(const RecordedTelemetry&) = delete;

  // Those that have ended, in that order.
  std::vector<RecordedSpan> spans() const;
  // Waits until so many spans of this name have ended, and returns them; fewer when a time is over that only
  // a hang takes.
  std::vector<RecordedSpan> AwaitSpans(std::string_view name, size_t count) const;
  // The first one of this name that is `like` that; waits for it. One without a name when none came.
  RecordedSpan AwaitSpan(std::string_view name, const SpanPredicate& like = nullptr) const;

  // What was added or recorded with these labels, summed; the times that it was.
  double Sum(MetricId metric, const std::vector<std::string>& labels) const;
  uint64_t Count(MetricId metric, const std::vector<std::string>& labels) const;
  // Waits until Sum is at least `min`; false when a time is over that only a hang takes.
  bool AwaitSum(MetricId metric, const std::vector<std::string>& labels, double min) const;
};

// What a gauge or observed counter reports with these labels at this moment, summed over its callbacks; 0
// when no callback reports it.
double ReadGauge(MetricId metric, const std::vector<std::string>& labels);

}  // namespace tensorcast::otel::testing
