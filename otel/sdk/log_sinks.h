// Writes log lines with their span's ids: to stderr as text or JSON, and to the OpenTelemetry log pipeline.
// Both are absl::LogSinks; the program's other sinks are not changed.
//
// The ids are those of the logging thread's otel::Scope; a line logged outside every scope has none.
#pragma once

#include <memory>
#include <string>

#include "absl/base/log_severity.h"
#include "absl/log/log_entry.h"
#include "absl/log/log_sink.h"
#include "base/trace_context.h"

namespace tensorcast::otel {

namespace sdk {
class Bridge;
}

enum class LogFormat { kText, kJson };

// One line, with the newline: "<absl's prefix><message> trace=<id> span=<id>", or
// {"time":…,"severity":…,"message":…,"file":…,"line":…,"thread":…,"stack":…,"trace_id":…,"span_id":…}; the
// last three only if they are set.
std::string FormatLogLine(const absl::LogEntry& entry, const TraceContext& trace, LogFormat format);

// From now on stderr shows lines of `min_severity` or above in this format, one write each. A FATAL line is
// written twice, first without and then with the stack. The last call counts. Thread-safe.
void InstallStderrLog(LogFormat format, absl::LogSeverity min_severity);

// Sends lines to the bridge; never blocks. Lines about telemetry itself are not sent.
class TelemetryLogSink final : public absl::LogSink {
 public:
  TelemetryLogSink(std::shared_ptr<sdk::Bridge> bridge, absl::LogSeverity min_severity);
  ~TelemetryLogSink() override;
  void Send(const absl::LogEntry& entry) override;

 private:
  const std::shared_ptr<sdk::Bridge> bridge_;
  const absl::LogSeverity min_;
};

// While an object of this class lives, lines that its thread logs count as lines about telemetry.
class AboutTelemetry {
 public:
  AboutTelemetry();
  ~AboutTelemetry();
  AboutTelemetry(const AboutTelemetry&) = delete;
  AboutTelemetry& operator=(const AboutTelemetry&) = delete;

 private:
  const bool outer_;
};

}  // namespace tensorcast::otel
