#include "cli/commands/telemetry.h"

#include "absl/log/globals.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "otel/sdk/log_sinks.h"
#include "proto/config.pb.h"

namespace tensorcast::cli {
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
  return started;
}

absl::Status ApplyLogConfig(const v1::LogConfig& config) {
  absl::LogSeverity min_severity = absl::LogSeverity::kInfo;
  if (config.level() == "warning") {
    min_severity = absl::LogSeverity::kWarning;
  } else if (config.level() == "error") {
    min_severity = absl::LogSeverity::kError;
  } else if (config.level() != "info") {
    return absl::InvalidArgumentError(
        absl::StrCat("log.level is \"", config.level(), "\"; it can be info, warning or error"));
  }
  if (config.format() != "text" && config.format() != "json") {
    return absl::InvalidArgumentError(
        absl::StrCat("log.format is \"", config.format(), "\"; it can be text or json"));
  }
  absl::SetMinLogLevel(static_cast<absl::LogSeverityAtLeast>(min_severity));
  otel::InstallStderrLog(config.format() == "json" ? otel::LogFormat::kJson : otel::LogFormat::kText,
                         min_severity);
  return absl::OkStatus();
}

}  // namespace tensorcast::cli
