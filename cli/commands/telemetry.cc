#include "cli/commands/telemetry.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>

#include "absl/log/globals.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/text.h"
#include "base/units.h"
#include "otel/sdk/log_sinks.h"
#include "proto/config.pb.h"

namespace tensorcast::cli {
namespace {

// With what telemetry adds for an export that is given up, half a second.
constexpr absl::Duration kLongestFlush = absl::Milliseconds(300);

void FitToCommand(v1::OtelConfig& config) {
  config.set_metrics(false);
  // A duration that cannot be read is refused below.
  const absl::Duration flush = ParseDuration(config.shutdown_timeout()).value_or(absl::ZeroDuration());
  if (flush > kLongestFlush) config.set_shutdown_timeout(DurationText(kLongestFlush));
}

}  // namespace

// The trace file is a second sink beside OpenTelemetry: it needs no collector, and has the spans of this
// process alone.
absl::StatusOr<CommandTelemetry> StartTelemetry(const CommonFlags& flags, std::string_view role,
                                                const otel::ResourceAttributes& resource) {
  TC_ASSIGN_OR_RETURN(v1::Config config, LoadConfig(flags));
  v1::OtelConfig& otel = *config.mutable_observability()->mutable_otel();
  if (role == "client") FitToCommand(otel);
  CommandTelemetry started;
  TC_ASSIGN_OR_RETURN(started.telemetry, otel::InitTelemetry(otel, role, resource));
  if (const std::string& path = config.observability().trace_file(); !path.empty()) {
    absl::StatusOr<std::unique_ptr<otel::TraceFile>> file =
        otel::TraceFile::Open(path, {.process_name = absl::StrCat("tensorcast ", role)});
    if (!file.ok()) return Annotate(file.status(), "observability.trace_file");
    started.trace_file = *std::move(file);
  }
  const v1::RecorderConfig& recorder = config.observability().recorder();
  // Where the configuration does not say, the recorder follows telemetry: an operator that exports spans
  // expects them in a bundle, too.
  if (recorder.has_enabled() ? recorder.enabled() : started.telemetry->enabled()) {
    TC_ASSIGN_OR_RETURN(const uint64_t max_bytes, ParseSize(recorder.max_bytes()));
    started.recorder = std::make_unique<otel::FlightRecorder>(otel::FlightRecorderOptions{max_bytes});
  }
  return started;
}

void EndCommandTelemetry(CommandTelemetry& started) {
  // Shutdown flushes first, within shutdown_timeout, so what is pending afterwards was given up.
  started.telemetry->Shutdown();
  uint64_t lost = 0;
  for (const otel::sdk::SignalCounters& signal : started.telemetry->counters().signals) {
    // Those that are pending now are in an export that was given up.
    lost += signal.dropped() + static_cast<uint64_t>(std::max<int64_t>(signal.pending, 0));
  }
  if (lost == 0) return;
  std::fprintf(stderr, "tensorcast: warning: telemetry: %s spans and log lines were not sent: %s\n",
               absl::StrCat(lost).c_str(), Printable(started.telemetry->Advice()).c_str());
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
