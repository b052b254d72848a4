#include "cli/commands/telemetry.h"

#include "absl/log/globals.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/units.h"
#include "otel/sdk/log_sinks.h"
#include "proto/config.pb.h"

namespace tensorcast::cli {

// The trace file is a second sink beside OpenTelemetry: it needs no collector, and has the spans of this
// process alone.
absl::StatusOr<CommandTelemetry> StartTelemetry(const CommonFlags& flags, std::string_view role) {
  TC_ASSIGN_OR_RETURN(const v1::Config config, LoadConfig(flags));
  CommandTelemetry started;
  TC_ASSIGN_OR_RETURN(started.telemetry, otel::InitTelemetry(config.observability().otel(), role));
  if (const std::string& path = config.observability().trace_file(); !path.empty()) {
    absl::StatusOr<std::unique_ptr<otel::TraceFile>> file =
        otel::TraceFile::Open(path, {.process_name = absl::StrCat("tensorcast ", role)});
    if (!file.ok()) return Annotate(file.status(), "observability.trace_file");
    started.trace_file = *std::move(file);
  }
  const v1::RecorderConfig& recorder = config.observability().recorder();
  if (recorder.has_enabled() ? recorder.enabled() : started.telemetry->enabled()) {
    TC_ASSIGN_OR_RETURN(const uint64_t max_bytes, ParseSize(recorder.max_bytes()));
    started.recorder = std::make_unique<otel::FlightRecorder>(otel::FlightRecorderOptions{max_bytes});
  }
  return started;
}

void ApplyLogConfig(const v1::LogConfig& config) {
  // config.proto lists the values; a configuration with others was refused when it was read.
  const absl::LogSeverity min_severity = config.level() == "error"     ? absl::LogSeverity::kError
                                         : config.level() == "warning" ? absl::LogSeverity::kWarning
                                                                       : absl::LogSeverity::kInfo;
  absl::SetMinLogLevel(static_cast<absl::LogSeverityAtLeast>(min_severity));
  otel::InstallStderrLog(config.format() == "json" ? otel::LogFormat::kJson : otel::LogFormat::kText,
                         min_severity);
}

}  // namespace tensorcast::cli
