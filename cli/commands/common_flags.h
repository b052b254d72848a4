// The flags that every command has, and the configuration that they select.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tensorcast::v1 {
class Config;
}

namespace tensorcast::cli {

struct CommonFlags {
  std::string config;             // YAML file; empty: defaults
  std::vector<std::string> sets;  // a.b.c=value
  std::string daemon;             // overrides client.daemon and TENSORCAST_DAEMON
  bool json = false;
  bool tracing = false;       // sets observability.otel.enabled
  std::string otlp_endpoint;  // sets observability.otel.enabled and observability.otel.endpoint
  std::string trace_file;     // sets observability.trace_file

  // The result of LoadConfig; null before its first call. Private to LoadConfig.
  mutable std::shared_ptr<const absl::StatusOr<v1::Config>> loaded;
};

// Loads the configuration once per `flags` and keeps the result, since a pipe can only be read once. Not
// thread-safe.
absl::StatusOr<v1::Config> LoadConfig(const CommonFlags& flags);

}  // namespace tensorcast::cli
