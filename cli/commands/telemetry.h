// Starts and ends the telemetry and logs of a command, as the configuration's sections `observability` and
// `log` say.
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

// The telemetry of a running command. The destructor flushes within observability.otel.shutdown_timeout. A
// command that is not a server waits at most half a second for a collector.
struct CommandTelemetry {
  std::unique_ptr<otel::Telemetry> telemetry;
  std::unique_ptr<otel::TraceFile> trace_file;     // null: none was requested
  std::unique_ptr<otel::FlightRecorder> recorder;  // null: it is off
};

// `role` and `resource`: see otel::InitTelemetry. Role "client" sends only traces and logs, because the
// metrics of each run would be new series.
absl::StatusOr<CommandTelemetry> StartTelemetry(const CommonFlags& flags, std::string_view role,
                                                const otel::ResourceAttributes& resource = {});

// Ends telemetry. If spans or log lines of a command did not reach the collector, prints one line on stderr
// with their number and the cause.
void EndCommandTelemetry(CommandTelemetry& started);

// Applies log.level and log.format, for the servers.
void ApplyLogConfig(const v1::LogConfig& config);

}  // namespace tensorcast::cli
