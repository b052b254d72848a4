// What telemetry is told by the section observability.otel of the configuration, resolved with the
// environment. The keys, their help, limits and defaults are in proto/config.proto; a key that is not set
// (tests and the client library set few) means its default.
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

// Key and value of what all items of a process say about it.
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

// INVALID_ARGUMENT, naming the key or the variable, for what makes no sense or cannot be had. Reads the
// environment: TENSORCAST_OTLP_ENDPOINT, TENSORCAST_OTEL_DEBUG=1 (on, to the console, whatever is
// configured), OTEL_SDK_DISABLED=true (off), and the OTEL_* variables named above, which the configuration
// overrides; with telemetry off those may say what they like, since they may be meant for others. `resource`
// stands above the attributes that every process has, and below the environment and the configuration.
absl::StatusOr<Options> ResolveOptions(const v1::OtelConfig& config, std::string_view role,
                                       const ResourceAttributes& resource = {});

}  // namespace sdk
}  // namespace tensorcast::otel
