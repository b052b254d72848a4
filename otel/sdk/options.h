// The options of telemetry: the section observability.otel of the configuration, resolved with the
// environment. The keys, their help, limits and defaults are in proto/config.proto. An unset key has its
// default.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/log_severity.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "otel/sdk/bridge.h"
#include "proto/config.pb.h"

namespace tensorcast::otel {

// Key and value of each resource attribute of a process.
using ResourceAttributes = std::vector<std::pair<std::string, std::string>>;

namespace sdk {

struct Options {
  bool enabled = false;
  BridgeOptions bridge;
  absl::Duration shutdown_timeout;
  absl::LogSeverity log_level = absl::LogSeverity::kInfo;
  bool all_attributes = false;
  bool resource_metrics = true;
};

// Combines the configuration with the environment:
// - TENSORCAST_OTEL_DEBUG=1 turns telemetry on, to the console, whatever the configuration says.
// - OTEL_SDK_DISABLED=true turns telemetry off.
// - The configuration overrides TENSORCAST_OTLP_ENDPOINT and the other OTEL_* variables.
// INVALID_ARGUMENT, with the key or the variable, for an invalid or unavailable value. While telemetry is
// off, the variables are not checked. `resource` overrides the attributes that every process has; the
// environment and the configuration override `resource`.
absl::StatusOr<Options> ResolveOptions(const v1::OtelConfig& config, std::string_view role,
                                       const ResourceAttributes& resource = {});

}  // namespace sdk
}  // namespace tensorcast::otel
