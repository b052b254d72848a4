// Received OTLP telemetry, decoded into plain structs. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tensorcast::otel {

using StringMap = std::map<std::string, std::string>;  // values as text, whatever their type

struct ReceivedEvent {
  std::string name;
  StringMap attributes;
};

struct ReceivedLink {
  std::string trace_id;  // in hexadecimal digits, like all ids here
  std::string span_id;
  StringMap attributes;
};

struct ReceivedSpan {
  StringMap resource;
  std::string name;
  std::string trace_id;
  std::string span_id;
  std::string parent_span_id;  // "": a root
  std::string trace_state;
  int kind = 0;  // OTLP's: 1 internal, 2 server, 3 client, 4 producer, 5 consumer
  absl::Time start;
  absl::Time end;
  StringMap attributes;
  std::vector<ReceivedEvent> events;
  std::vector<ReceivedLink> links;
  uint32_t dropped_attributes = 0;  // these three count items that the span's limits dropped
  uint32_t dropped_events = 0;
  uint32_t dropped_links = 0;
  bool error = false;
  std::string status_message;
};

// The latest point of one time series.
struct ReceivedMetric {
  StringMap resource;
  std::string name;
  std::string unit;
  std::string description;
  enum class Kind { kGauge, kCounter, kUpDownCounter, kHistogram } kind = Kind::kGauge;
  StringMap labels;
  double value = 0;    // for a histogram: the sum
  uint64_t count = 0;  // for a histogram
  std::vector<double> bounds;
};

struct ReceivedLog {
  StringMap resource;
  int severity = 0;  // OTLP's: 9 info, 13 warning, 17 error, 21 fatal
  std::string body;
  StringMap attributes;
  std::string trace_id;
  std::string span_id;
};

class ReceivedTelemetry {
 public:
  // kMetrics: accepts spans and log records without decoding them.
  enum class Keep { kAll, kMetrics };
  explicit ReceivedTelemetry(Keep keep = Keep::kAll) : keep_(keep) {}

  // Adds the content of `request`, the bytes of one export call to `method` (gRPC's name). The service
  // in this name identifies the signal. False if the bytes are not such a message.
  bool Take(std::string_view method, const std::string& request) ABSL_LOCKS_EXCLUDED(mutex_);

  std::vector<ReceivedSpan> spans() const ABSL_LOCKS_EXCLUDED(mutex_);
  // The latest point of each series of each process.
  std::vector<ReceivedMetric> metrics() const ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<ReceivedLog> logs() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits until `condition` holds; false after `timeout`. Checks the condition again after each Take and
  // Wake. `condition` may call the functions above.
  bool WaitFor(absl::Duration timeout, absl::FunctionRef<bool()> condition) ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes waiting threads check their conditions again.
  void Wake() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  bool TakeSpans(const std::string& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool TakeMetrics(const std::string& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakePoint(ReceivedMetric point) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool TakeLogs(const std::string& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Keep keep_;
  mutable absl::Mutex mutex_;
  uint64_t revision_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<ReceivedSpan> spans_ ABSL_GUARDED_BY(mutex_);
  std::vector<ReceivedLog> logs_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, ReceivedMetric> metrics_ ABSL_GUARDED_BY(mutex_);  // by series
};

}  // namespace tensorcast::otel
