#include "cli/commands/common_flags.h"

#include "cli/config/config.h"
#include "proto/config.pb.h"

namespace tensorcast::cli {
namespace {

// The flags for telemetry are keys of the configuration like any other, with the same checks. They come last,
// so that they win over --set and the file.
absl::StatusOr<v1::Config> ReadConfig(const CommonFlags& flags) {
  std::vector<std::string> sets = flags.sets;
  if (flags.tracing || !flags.otlp_endpoint.empty()) sets.push_back("observability.otel.enabled=true");
  if (!flags.otlp_endpoint.empty()) sets.push_back("observability.otel.endpoint=" + flags.otlp_endpoint);
  if (!flags.trace_file.empty()) sets.push_back("observability.trace_file=" + flags.trace_file);
  return config::Load({.path = flags.config, .sets = sets});
}

}  // namespace

// Read once: telemetry and the command get the same answer, also where the file changes between them or is a
// pipe, which can be read only once.
absl::StatusOr<v1::Config> LoadConfig(const CommonFlags& flags) {
  if (flags.loaded == nullptr) {
    flags.loaded = std::make_shared<const absl::StatusOr<v1::Config>>(ReadConfig(flags));
  }
  return *flags.loaded;
}

}  // namespace tensorcast::cli
