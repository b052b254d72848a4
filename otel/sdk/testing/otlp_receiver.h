// A real OTLP gRPC receiver in this process, which keeps what it is sent: for tests and for
// `tensorcast otel-smoke`. It can also misbehave in the ways that collectors do.
//
// Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tensorcast::otel::testing {

using StringMap = std::map<std::string, std::string>;  // values as text, whatever their type

struct ReceivedEvent {
  std::string name;
  StringMap attributes;
};

struct ReceivedLink {
  std::string trace_id;  // hex, as all ids here
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
  uint32_t dropped_attributes = 0;  // which the span's limits cut, like the two below
  uint32_t dropped_events = 0;
  uint32_t dropped_links = 0;
  bool error = false;
  std::string status_message;
};

// One time series' latest point.
struct ReceivedMetric {
  StringMap resource;
  std::string name;
  std::string unit;
  std::string description;
  enum class Kind { kGauge, kCounter, kUpDownCounter, kHistogram } kind = Kind::kGauge;
  StringMap labels;
  double value = 0;    // of a histogram: the sum
  uint64_t count = 0;  // of a histogram
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

enum class Behaviour {
  kAccept,
  kHang,       // never answers, until this changes or the caller gives up
  kRefuse,     // answers UNAVAILABLE: may be asked again
  kReject,     // answers INVALID_ARGUMENT: may not
  kCountOnly,  // accepts, but keeps only metrics: spans and log records are not even read
};

class OtlpReceiver {
 public:
  // `listen`: host:port; port 0 picks one.
  static absl::StatusOr<std::unique_ptr<OtlpReceiver>> Start(const std::string& listen = "127.0.0.1:0");
  // Calls that hang are ended.
  virtual ~OtlpReceiver() = default;

  virtual std::string endpoint() const = 0;  // http://host:port
  virtual void SetBehaviour(Behaviour behaviour) = 0;

  virtual std::vector<ReceivedSpan> spans() const = 0;
  // The latest point of each series of each process.
  virtual std::vector<ReceivedMetric> metrics() const = 0;
  virtual std::vector<ReceivedLog> logs() const = 0;
  virtual StringMap last_headers() const = 0;  // metadata of the latest call
  virtual int calls() const = 0;               // begun, answered or not

  // Waits until `condition`, which is asked again after each call that arrives, holds. It may call the
  // functions above.
  virtual bool WaitFor(absl::Duration timeout, absl::FunctionRef<bool()> condition) = 0;
};

}  // namespace tensorcast::otel::testing
