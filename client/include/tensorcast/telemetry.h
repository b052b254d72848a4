// OpenTelemetry for programs that link the client library: sends the library's traces, metrics and logs to a
// collector.
//
//   auto telemetry = StartTelemetry({.endpoint = "http://localhost:4317"});
//   if (!telemetry.ok()) return telemetry.status();
//   auto client = Client::Connect({.daemon = "unix:/run/tensorcast/client.sock", .telemetry = *telemetry});
//
// Instrumented code never waits for an exporter: records that cannot be sent are dropped and counted.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tensorcast::client {

// An empty field takes its value from the environment (OTEL_SERVICE_NAME, OTEL_EXPORTER_OTLP_*,
// OTEL_TRACES_SAMPLER and its argument, ...), else its default: here, or that of the SDK.
struct TelemetryOptions {
  std::string endpoint;              // of the collector
  std::string exporter;              // "otlp_grpc" (default), "otlp_http", "console", "none"
  std::vector<std::string> headers;  // "key=value", sent with each export
  std::string service_name;          // "tensorcast-client" by default
};

// Turns telemetry on for this process. When the last copy of the returned pointer is destroyed, telemetry
// sends the remaining records within five seconds and turns off. INVALID_ARGUMENT names the wrong value in
// the options or the environment. FAILED_PRECONDITION if telemetry is on already. Thread-safe.
absl::StatusOr<std::shared_ptr<void>> StartTelemetry(const TelemetryOptions& options);

}  // namespace tensorcast::client
