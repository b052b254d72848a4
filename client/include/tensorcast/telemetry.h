// OpenTelemetry for programs that link the client library: traces, metrics and logs of what it does, sent to
// a collector.
//
//   auto telemetry = StartTelemetry({.endpoint = "http://localhost:4317"});
//   if (!telemetry.ok()) return telemetry.status();
//   auto client = Client::Connect({.daemon = "unix:/run/tensorcast/client.sock", .telemetry = *telemetry});
//
// Nothing that is instrumented ever waits for an exporter: what cannot be sent is dropped and counted.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tensorcast::client {

// What is left empty is as the environment says (OTEL_SERVICE_NAME, OTEL_EXPORTER_OTLP_*,
// OTEL_TRACES_SAMPLER and its argument, ...), else the OpenTelemetry SDK's default.
struct TelemetryOptions {
  std::string endpoint;              // of the collector
  std::string exporter;              // "otlp_grpc" (default), "otlp_http", "console", "none"
  std::vector<std::string> headers;  // "key=value", sent with each export
  std::string service_name;          // "tensorcast-client" by default
};

// Turns telemetry on for this process, from now until the last copy of what it returns is gone: then what is
// left is sent, within five seconds, and telemetry is off. INVALID_ARGUMENT names what is wrong in the
// options or the environment; FAILED_PRECONDITION when it is on already. Thread-safe.
absl::StatusOr<std::shared_ptr<void>> StartTelemetry(const TelemetryOptions& options);

}  // namespace tensorcast::client
