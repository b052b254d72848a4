#include "cli/commands/telemetry.h"

#include <utility>

#include "absl/log/globals.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/units.h"
#include "otel/sdk/log_sinks.h"
#include "proto/config.pb.h"

namespace tensorcast::cli {
namespace {

// A duration as configured, in the units that the SDK reads: it knows no days.
std::string WithoutDays(const std::string& text) {
  const absl::StatusOr<absl::Duration> duration = ParseDuration(text);
  return duration.ok() ? absl::FormatDuration(*duration) : text;
}

}  // namespace

otel::TelemetryConfig ToTelemetryConfig(const v1::OtelConfig& config) {
  otel::TelemetryConfig out;
  out.enabled = config.enabled();
  out.service_name = config.service_name();
  out.exporter = config.exporter();
  out.endpoint = config.endpoint();
  out.timeout = WithoutDays(config.timeout());
  out.retry_for = WithoutDays(config.retry_for());
  out.compression = config.compression();
  out.sampler = config.sampler();
  out.max_span_attributes = config.max_span_attributes();
  out.max_span_events = config.max_span_events();
  out.max_span_links = config.max_span_links();
  out.max_attribute_bytes = config.max_attribute_bytes();
  out.queue_size = config.queue_size();
  out.batch_size = config.batch_size();
  out.batch_interval = WithoutDays(config.batch_interval());
  out.metric_interval = WithoutDays(config.metric_interval());
  out.shutdown_timeout = WithoutDays(config.shutdown_timeout());
  out.log_level = config.log_level();
  out.all_attributes = config.all_attributes();
  out.resource_attributes = {config.resource_attributes().begin(), config.resource_attributes().end()};
  out.headers = {config.headers().begin(), config.headers().end()};
  out.ca_file = config.tls().ca_file();
  out.cert_file = config.tls().cert_file();
  out.key_file = config.tls().key_file();
  out.insecure_skip_verify = config.tls().insecure_skip_verify();
  if (config.has_sampling_ratio()) out.sampling_ratio = config.sampling_ratio();
  if (config.has_traces()) out.traces = config.traces();
  if (config.has_metrics()) out.metrics = config.metrics();
  if (config.has_logs()) out.logs = config.logs();
  if (config.has_resource_metrics()) out.resource_metrics = config.resource_metrics();
  return out;
}

absl::StatusOr<CommandTelemetry> StartTelemetry(const CommonFlags& flags, std::string_view role) {
  TC_ASSIGN_OR_RETURN(const v1::Config config, LoadConfig(flags));
  CommandTelemetry started;
  TC_ASSIGN_OR_RETURN(started.telemetry,
                      otel::InitTelemetry(ToTelemetryConfig(config.observability().otel()), role));
  if (const std::string& path = config.observability().trace_file(); !path.empty()) {
    absl::StatusOr<std::unique_ptr<otel::TraceFile>> file =
        otel::TraceFile::Open(path, {.process_name = absl::StrCat("tensorcast ", role)});
    if (!file.ok()) return Annotate(file.status(), "observability.trace_file");
    started.trace_file = *std::move(file);
  }
  return started;
}

absl::Status ApplyLogConfig(const v1::LogConfig& config) {
  absl::LogSeverity least = absl::LogSeverity::kInfo;
  if (config.level() == "warning") {
    least = absl::LogSeverity::kWarning;
  } else if (config.level() == "error") {
    least = absl::LogSeverity::kError;
  } else if (config.level() != "info") {
    return absl::InvalidArgumentError(
        absl::StrCat("log.level is \"", config.level(), "\"; it can be info, warning or error"));
  }
  if (config.format() != "text" && config.format() != "json") {
    return absl::InvalidArgumentError(
        absl::StrCat("log.format is \"", config.format(), "\"; it can be text or json"));
  }
  absl::SetMinLogLevel(static_cast<absl::LogSeverityAtLeast>(least));
  otel::InstallStderrLog(config.format() == "json" ? otel::LogFormat::kJson : otel::LogFormat::kText, least);
  return absl::OkStatus();
}

}  // namespace tensorcast::cli
