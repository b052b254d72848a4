#include "otel/sdk/receiver/received_telemetry.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "otlp_subset.pb.h"

namespace tensorcast::otel {
namespace {

using KeyValues = google::protobuf::RepeatedPtrField<otlp::KeyValue>;

std::string Text(const otlp::Value& value) {
  switch (value.value_case()) {
    case otlp::Value::kText:
      return value.text();
    case otlp::Value::kFlag:
      return value.flag() ? "true" : "false";
    case otlp::Value::kInteger:
      return absl::StrCat(value.integer());
    case otlp::Value::kNumber:
      return absl::StrCat(value.number());
    case otlp::Value::VALUE_NOT_SET:
      return "";
  }
  return "";
}

StringMap ToMap(const KeyValues& pairs) {
  StringMap map;
  for (const otlp::KeyValue& pair : pairs) map[pair.key()] = Text(pair.value());
  return map;
}

absl::Time ToTime(uint64_t nanos) { return absl::FromUnixNanos(static_cast<int64_t>(nanos)); }

ReceivedSpan ToSpan(const otlp::Span& from, const StringMap& resource) {
  ReceivedSpan span{.resource = resource,
                    .name = from.name(),
                    .trace_id = absl::BytesToHexString(from.trace_id()),
                    .span_id = absl::BytesToHexString(from.span_id()),
                    .parent_span_id = absl::BytesToHexString(from.parent_span_id()),
                    .trace_state = from.trace_state(),
                    .kind = from.kind(),
                    .start = ToTime(from.start_time_unix_nano()),
                    .end = ToTime(from.end_time_unix_nano()),
                    .attributes = ToMap(from.attributes()),
                    .dropped_attributes = from.dropped_attributes_count(),
                    .dropped_events = from.dropped_events_count(),
                    .dropped_links = from.dropped_links_count(),
                    .error = from.status().code() == 2,
                    .status_message = from.status().message()};
  for (const auto& event : from.events()) span.events.push_back({event.name(), ToMap(event.attributes())});
  for (const auto& link : from.links()) {
    span.links.push_back({absl::BytesToHexString(link.trace_id()), absl::BytesToHexString(link.span_id()),
                          ToMap(link.attributes())});
  }
  return span;
}

std::vector<ReceivedMetric> ToMetrics(const otlp::Metric& from, const StringMap& resource) {
  using Kind = ReceivedMetric::Kind;
  std::vector<ReceivedMetric> metrics;
  const auto add = [&](Kind kind, const KeyValues& labels) -> ReceivedMetric& {
    return metrics.emplace_back(ReceivedMetric{.resource = resource,
                                               .name = from.name(),
                                               .unit = from.unit(),
                                               .description = from.description(),
                                               .kind = kind,
                                               .labels = ToMap(labels)});
  };
  const auto add_numbers = [&](Kind kind, const auto& points) {
    for (const otlp::NumberPoint& point : points) {
      add(kind, point.attributes()).value = point.value_case() == otlp::NumberPoint::kAsInt
                                                ? static_cast<double>(point.as_int())
                                                : point.as_double();
    }
  };
  add_numbers(Kind::kGauge, from.gauge().data_points());
  add_numbers(from.sum().is_monotonic() ? Kind::kCounter : Kind::kUpDownCounter, from.sum().data_points());
  for (const otlp::HistogramPoint& point : from.histogram().data_points()) {
    ReceivedMetric& metric = add(Kind::kHistogram, point.attributes());
    metric.value = point.sum();
    metric.count = point.count();
    metric.bounds.assign(point.explicit_bounds().begin(), point.explicit_bounds().end());
  }
  return metrics;
}

ReceivedLog ToLog(const otlp::LogRecord& from, const StringMap& resource) {
  return {.resource = resource,
          .severity = from.severity_number(),
          .body = Text(from.body()),
          .attributes = ToMap(from.attributes()),
          .trace_id = absl::BytesToHexString(from.trace_id()),
          .span_id = absl::BytesToHexString(from.span_id())};
}

}  // namespace

bool ReceivedTelemetry::Take(std::string_view method, const std::string& request) {
  absl::MutexLock lock(&mutex_);
  ++revision_;
  if (absl::StrContains(method, "MetricsService")) return TakeMetrics(request);
  // The service in the method's path tells the signal. Where metrics alone are kept the others are taken and
  // dropped, so that their senders do not try again.
  if (absl::StrContains(method, "TraceService")) return keep_ == Keep::kMetrics || TakeSpans(request);
  if (absl::StrContains(method, "LogsService")) return keep_ == Keep::kMetrics || TakeLogs(request);
  return false;
}

std::vector<ReceivedSpan> ReceivedTelemetry::spans() const {
  absl::MutexLock lock(&mutex_);
  return spans_;
}

std::vector<ReceivedMetric> ReceivedTelemetry::metrics() const {
  absl::MutexLock lock(&mutex_);
  std::vector<ReceivedMetric> metrics;
  metrics.reserve(metrics_.size());
  for (const auto& [series, metric] : metrics_) metrics.push_back(metric);
  return metrics;
}

std::vector<ReceivedLog> ReceivedTelemetry::logs() const {
  absl::MutexLock lock(&mutex_);
  return logs_;
}

bool ReceivedTelemetry::WaitFor(absl::Duration timeout, absl::FunctionRef<bool()> condition) {
  const SteadyTime deadline = SteadyNow() + timeout;
  while (true) {
    uint64_t seen = 0;
    {
      absl::MutexLock lock(&mutex_);
      seen = revision_;
    }
    // Called without the lock, since the condition reads through the functions above. `seen` was read before,
    // so a change during the call ends the wait below at once.
    if (condition()) return true;
    absl::MutexLock lock(&mutex_);
    auto changed = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return revision_ != seen; };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&changed), TimeLeft(deadline))) break;
  }
  return condition();
}

void ReceivedTelemetry::Wake() {
  absl::MutexLock lock(&mutex_);
  ++revision_;
}

bool ReceivedTelemetry::TakeSpans(const std::string& request) {
  otlp::TraceRequest message;
  if (!message.ParseFromString(request)) return false;
  for (const auto& resource : message.resource_spans()) {
    const StringMap attributes = ToMap(resource.resource().attributes());
    for (const auto& scope : resource.scope_spans()) {
      for (const auto& span : scope.spans()) spans_.push_back(ToSpan(span, attributes));
    }
  }
  return true;
}

bool ReceivedTelemetry::TakeMetrics(const std::string& request) {
  otlp::MetricsRequest message;
  if (!message.ParseFromString(request)) return false;
  for (const auto& resource : message.resource_metrics()) {
    const StringMap attributes = ToMap(resource.resource().attributes());
    for (const auto& scope : resource.scope_metrics()) {
      for (const auto& metric : scope.metrics()) {
        for (ReceivedMetric& point : ToMetrics(metric, attributes)) TakePoint(std::move(point));
      }
    }
  }
  return true;
}

void ReceivedTelemetry::TakePoint(ReceivedMetric point) {
  std::string series = absl::StrCat(point.resource["service.instance.id"], " ", point.name);
  for (const auto& [key, value] : point.labels) absl::StrAppend(&series, " ", key, "=", value);
  // Each series counts with its last point: counters are cumulative.
  metrics_.insert_or_assign(std::move(series), std::move(point));
}

bool ReceivedTelemetry::TakeLogs(const std::string& request) {
  otlp::LogsRequest message;
  if (!message.ParseFromString(request)) return false;
  for (const auto& resource : message.resource_logs()) {
    const StringMap attributes = ToMap(resource.resource().attributes());
    for (const auto& scope : resource.scope_logs()) {
      for (const auto& record : scope.log_records()) logs_.push_back(ToLog(record, attributes));
    }
  }
  return true;
}

}  // namespace tensorcast::otel
