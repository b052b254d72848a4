// What every command is told, whichever it is, and the configuration that this comes to.
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
  bool tracing = false;       // observability.otel.enabled
  std::string otlp_endpoint;  // the same, and observability.otel.endpoint
  std::string trace_file;     // observability.trace_file

  // What LoadConfig read; null before. Private to it.
  mutable std::shared_ptr<const absl::StatusOr<v1::Config>> loaded;
};

// Reads it the first time, since a pipe has nothing the second time.
absl::StatusOr<v1::Config> LoadConfig(const CommonFlags& flags);

}  // namespace tensorcast::cli
