// What telemetry can be told, as the configuration file writes it: field by field the keys of
// observability.otel (proto/config.proto). Empty and unset mean the default that stands beside.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/log_severity.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "otel/sdk/bridge.h"

namespace tensorcast::otel {

struct TelemetryConfig {
  bool enabled = false;
  std::string service_name;                      // OTEL_SERVICE_NAME, else tensorcast-<role>
  std::vector<std::string> resource_attributes;  // "key=value"
  std::string
      exporter;  // otlp_grpc (default), otlp_http, console, jaeger (otlp_grpc), none; else
                 // OTEL_EXPORTER_OTLP_PROTOCOL, and OTEL_{TRACES,METRICS,LOGS}_EXPORTER for each signal
  // Else TENSORCAST_OTLP_ENDPOINT, else OTEL_EXPORTER_OTLP_*, else the SDK's default (localhost).
  std::string endpoint;
  std::vector<std::string> headers;  // "key=value"
  std::string ca_file;
  std::string cert_file;  // with key_file; otlp_http only
  std::string key_file;
  bool insecure_skip_verify = false;  // otlp_http only
  std::string timeout;                // else OTEL_EXPORTER_OTLP_TIMEOUT, else 3s
  std::string retry_for;              // 10s: an export that a collector refuses for now is tried again
  std::string compression;            // none, gzip (otlp_grpc only); else OTEL_EXPORTER_OTLP_COMPRESSION
  std::string sampler;                // parent_ratio, ratio, always_on, always_off; else OTEL_TRACES_SAMPLER
  std::optional<double> sampling_ratio;  // else OTEL_TRACES_SAMPLER_ARG, else 1
  int32_t max_span_attributes = 0;       // 64
  int32_t max_span_events = 0;           // 128
  int32_t max_span_links = 0;            // 32
  int32_t max_attribute_bytes = 0;       // 1024
  std::optional<bool> traces;            // true
  std::optional<bool> metrics;           // true
  std::optional<bool> logs;              // true
  int32_t queue_size = 0;                // 2048
  int32_t batch_size = 0;                // 512
  std::string batch_interval;            // 1s
  std::string metric_interval;           // 10s
  std::string shutdown_timeout;          // 5s
  std::string log_level;                 // info (default), warning, error
  bool all_attributes = false;
  std::optional<bool> resource_metrics;  // true
};

namespace sdk {

struct Options {
  bool enabled = false;
  BridgeOptions bridge;
  absl::Duration shutdown_timeout = absl::Seconds(5);
  absl::LogSeverity log_level = absl::LogSeverity::kInfo;
  bool all_attributes = false;
  bool resource_metrics = true;
};

// INVALID_ARGUMENT, naming the key or the variable, for what makes no sense or cannot be had. Reads the
// environment: TENSORCAST_OTLP_ENDPOINT, TENSORCAST_OTEL_DEBUG=1 (on, to the console, whatever is
// configured), OTEL_SDK_DISABLED=true (off), and the OTEL_* variables named above, which the configuration
// overrides; with telemetry off those may say what they like, since they may be meant for others.
absl::StatusOr<Options> ResolveOptions(const TelemetryConfig& config, std::string_view role);

}  // namespace sdk
}  // namespace tensorcast::otel
