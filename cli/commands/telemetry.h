// What a command tells the outside about itself: the configuration's `observability` section made true.
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

// Lives as long as the command. Its end flushes, within observability.otel.shutdown_timeout.
struct CommandTelemetry {
  std::unique_ptr<otel::Telemetry> telemetry;
  std::unique_ptr<otel::TraceFile> trace_file;     // null: none was asked for
  std::unique_ptr<otel::FlightRecorder> recorder;  // null: it is off
};

// `role` as for otel::InitTelemetry.
absl::StatusOr<CommandTelemetry> StartTelemetry(const CommonFlags& flags, std::string_view role);

// log.level and log.format, for the servers.
void ApplyLogConfig(const v1::LogConfig& config);

}  // namespace tensorcast::cli
