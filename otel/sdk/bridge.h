// The bridge from otel/api to the OpenTelemetry SDK. Private to this folder.
//
// Sources that include OpenTelemetry's headers see the distribution's Abseil (cmake/README.md); other sources
// see TensorCast's. This header is between the two, so it uses neither.
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
// kParentRatio: a child follows its parent, and a root follows the ratio. kRatio: all spans follow the ratio.
enum class SamplerKind : uint8_t { kParentRatio, kRatio, kAlwaysOn, kAlwaysOff };

// The limits of one span: further items are dropped, and longer texts are cut.
struct SpanLimits {
  size_t max_attributes = 0;
  size_t max_events = 0;
  size_t max_links = 0;
  size_t max_attribute_bytes = 0;
};

// Callers must set the limits, sizes and times that are 0 here, except `timeout`. ResolveOptions
// (options.h) sets their defaults.
struct BridgeOptions {
  ExporterKind exporter = ExporterKind::kOtlpGrpc;
  std::array<bool, kSignals> on_console{};  // signals that go to the console instead of `exporter`
  std::string endpoint;  // http(s)://host:port[/path]; empty: from OTEL_*, else the SDK's default
  std::vector<std::pair<std::string, std::string>> headers;
  std::string ca_file;
  std::string cert_file;
  std::string key_file;
  bool insecure_skip_verify = false;
  std::chrono::milliseconds timeout{0};  // 0: the SDK's default
  std::chrono::milliseconds retry_for{0};
  std::string compression;  // "none", "gzip"; empty: the SDK's default

  std::vector<std::pair<std::string, std::string>> resource;

  SamplerKind sampler = SamplerKind::kParentRatio;
  double sampling_ratio = 1.0;
  SpanLimits limits;
  bool file_paths = false;  // keep file paths in error messages of spans

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
  // Called with the SDK's complaints and with losses, from any thread, possibly often.
  std::function<void(std::string_view)> complain;
};

struct LogLine {
  int severity = 0;  // absl::LogSeverity as a number: 0 info, 1 warning, 2 error, 3 fatal
  std::string_view message;
  std::string_view file;
  int line = 0;
  int64_t thread = 0;
  std::chrono::system_clock::time_point time;
  TraceContext trace;
};

// The SDK's providers of traces, metrics and logs. Thread-safe.
class Bridge {
 public:
  static std::shared_ptr<Bridge> Create(const BridgeOptions& options);
  virtual ~Bridge() = default;

  // The sinks for otel/api; null if the signal is off. Both live as long as the process.
  virtual TraceSink* traces() = 0;
  virtual MetricSink* metrics() = 0;

  // Does nothing if logs are off. Never blocks.
  virtual void EmitLog(const LogLine& line) = 0;

  // Exports the queued items; false if that failed. May take longer than `timeout`, up to the exporters'
  // timeouts.
  virtual bool Flush(std::chrono::milliseconds timeout) = 0;

  // No export begins after `when`. The items that remain then count as dropped.
  virtual void GiveUpAt(std::chrono::steady_clock::time_point when) = 0;
  // Exports the rest and ends the threads. May take as long as a stuck export. Idempotent.
  virtual void Shutdown() = 0;
};

}  // namespace tensorcast::otel::sdk
