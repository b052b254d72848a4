// The telemetry and logs of a command, by the configuration's `observability` section.
#pragma once

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "cli/commands/common_flags.h"
#include "otel/api/flight_recorder.h"
#include "otel/api/trace_file.h"
#include "otel/sdk/telemetry.h"

namespace tensorcast::v1 {
class LogConfig;
}  // namespace tensorcast::v1

namespace tensorcast::cli {

// Lives as long as the command. Its end flushes, within observability.otel.shutdown_timeout; a command that
// is not a server waits at most half a second for a collector.
struct CommandTelemetry {
  std::unique_ptr<otel::Telemetry> telemetry;
  std::unique_ptr<otel::TraceFile> trace_file;     // null: none was requested
  std::unique_ptr<otel::FlightRecorder> recorder;  // null: it is off
};

// `role` and `resource` as for otel::InitTelemetry. A "client" only sends traces and logs: each run is a new
// process, so its metrics would be new series that end at once.
absl::StatusOr<CommandTelemetry> StartTelemetry(const CommonFlags& flags, std::string_view role,
                                                const otel::ResourceAttributes& resource = {});

// Ends telemetry. If spans or log lines of a command did not reach the collector, one line on stderr says how
// many and why, since a command's log lines are not shown.
void EndCommandTelemetry(CommandTelemetry& started);

// Applies log.level and log.format, for the servers.
void ApplyLogConfig(const v1::LogConfig& config);

}  // namespace tensorcast::cli
