// From otel/api to the OpenTelemetry SDK. Private to this folder.
//
// Sources that include OpenTelemetry's headers see the distribution's Abseil (cmake/README.md), so nothing
// here mentions Abseil: this header is the border between the two.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "otel/api/metrics.h"
#include "otel/api/trace_sink.h"
#include "otel/sdk/counters.h"

namespace tensorcast::otel::sdk {

enum class ExporterKind : uint8_t { kOtlpGrpc, kOtlpHttp, kConsole };
// kParentRatio: a child as its parent, a root by the ratio. kRatio: all by the ratio.
enum class SamplerKind : uint8_t { kParentRatio, kRatio, kAlwaysOn, kAlwaysOff };

// Of one span; what is beyond them is dropped or, of a text, cut.
struct SpanLimits {
  size_t max_attributes = 0;
  size_t max_events = 0;
  size_t max_links = 0;
  size_t max_attribute_bytes = 0;
};

// The limits, sizes and times that are 0 here are to be set: their defaults are those of the configuration
// (options.h).
struct BridgeOptions {
  ExporterKind exporter = ExporterKind::kOtlpGrpc;
  std::array<bool, kSignals> on_console{};  // these instead of where `exporter` sends the others
  std::string endpoint;  // http(s)://host:port[/path]; empty: what the SDK takes from OTEL_* or its default
  std::vector<std::pair<std::string, std::string>> headers;
  std::string ca_file;
  std::string cert_file;
  std::string key_file;
  bool insecure_skip_verify = false;
  std::chrono::milliseconds timeout{0};  // 0: the SDK's
  std::chrono::milliseconds retry_for{0};
  std::string compression;  // "none", "gzip"; empty: the SDK's

  std::vector<std::pair<std::string, std::string>> resource;

  SamplerKind sampler = SamplerKind::kParentRatio;
  double sampling_ratio = 1.0;
  SpanLimits limits;
  bool file_paths = false;  // in error messages of spans

  bool traces = true;
  bool metrics = true;
  bool logs = true;

  size_t queue_size = 0;
  size_t batch_size = 0;  // at most queue_size
  std::chrono::milliseconds batch_interval{0};
  std::chrono::milliseconds metric_interval{0};

  ExporterKind ExporterOf(Signal signal) const {
    return on_console[static_cast<size_t>(signal)] ? ExporterKind::kConsole : exporter;
  }

  Counters* counters = nullptr;  // must live as long as the process
  // Told of what the SDK complains about and of what is dropped, from any thread, possibly often.
  std::function<void(std::string_view)> complain;
};

struct LogLine {
  int severity = 0;  // absl::LogSeverity as a number: info, warning, error, fatal
  std::string_view message;
  std::string_view file;
  int line = 0;
  int64_t thread = 0;
  std::chrono::system_clock::time_point time;
  TraceContext trace;
};

// One set of providers. Thread-safe.
class Bridge {
 public:
  static std::shared_ptr<Bridge> Create(const BridgeOptions& options);
  virtual ~Bridge() = default;

  // Null where the signal is off. Both live as long as the process.
  virtual TraceSink* traces() = 0;
  virtual MetricSink* metrics() = 0;

  // Does nothing where logs are off. Never blocks.
  virtual void EmitLog(const LogLine& line) = 0;

  // Exports what is there. May take as long as the exporters' timeouts, whatever `timeout` says.
  virtual bool Flush(std::chrono::milliseconds timeout) = 0;

  // From `when` on exports are not tried any more; what is left is counted as dropped.
  virtual void GiveUpAt(std::chrono::steady_clock::time_point when) = 0;
  // Exports the rest and ends the threads. May take as long as an export that is stuck. Idempotent.
  virtual void Shutdown() = 0;
};

}  // namespace tensorcast::otel::sdk
