#include "otel/sdk/log_sinks.h"

#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/log/globals.h"
#include "absl/log/log_sink_registry.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/text.h"
#include "base/upkeep.h"
#include "otel/api/json_text.h"
#include "otel/api/span.h"
#include "otel/sdk/bridge.h"

namespace tensorcast::otel {
namespace {

// Set while this thread speaks of telemetry itself, or hands a line to it: such lines go to stderr only. Else
// a collector that is away would make a line for each line that it does not take.
thread_local bool about_telemetry = false;

// A line for a line: text from outside (a file's name, a peer's error) begins none of its own, and sends
// nothing to a terminal but characters.
void AppendOneLine(std::string& line, std::string_view text) {
  unsigned char last = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    // U+0080 to U+009F, of which a terminal takes one for the beginning of a command.
    const bool c1 = last == 0xc2 && byte >= 0x80 && byte < 0xa0;
    if (c1) line.pop_back();
    if (c == '\n') {
      line += "\\n";
    } else if (c1) {
      absl::StrAppend(&line, "\\xc2\\x", absl::Hex(byte, absl::kZeroPad2));
    } else if ((byte < 0x20 && c != '\t') || byte == 0x7f) {
      absl::StrAppend(&line, "\\x", absl::Hex(byte, absl::kZeroPad2));
    } else {
      line += c;
    }
    last = byte;
  }
}

// The thread's current span; none where that is upkeep, since most spans of upkeep are not recorded.
TraceContext ContextOfLine() {
  const TraceContext& current = CurrentContext();
  return IsUpkeep(current) ? TraceContext() : current;
}

std::string TextLine(const absl::LogEntry& entry, const TraceContext& trace) {
  std::string line;
  AppendOneLine(line, entry.text_message_with_prefix());
  if (trace.IsValid()) absl::StrAppend(&line, " trace=", trace.TraceIdHex(), " span=", trace.SpanIdHex());
  line += '\n';
  return line;
}

std::string JsonLine(const absl::LogEntry& entry, const TraceContext& trace) {
  std::string storage;
  std::string line = "{\"time\":\"";
  absl::StrAppend(&line, absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", entry.timestamp(), absl::UTCTimeZone()),
                  "\",\"severity\":\"", absl::LogSeverityName(entry.log_severity()), "\",\"message\":");
  AppendJsonString(line, ValidUtf8(entry.text_message(), storage));
  absl::StrAppend(&line, ",\"file\":");
  AppendJsonString(line, entry.source_basename());
  absl::StrAppend(&line, ",\"line\":", entry.source_line(), ",\"thread\":", entry.tid());
  if (!entry.stacktrace().empty()) {
    absl::StrAppend(&line, ",\"stack\":");
    AppendJsonString(line, entry.stacktrace());
  }
  if (trace.IsValid()) {
    absl::StrAppend(&line, ",\"trace_id\":\"", trace.TraceIdHex(), "\",\"span_id\":\"", trace.SpanIdHex(),
                    "\"");
  }
  line += "}\n";
  return line;
}

// Abseil calls Send on any thread that logs, several at a time. The settings are atomic, and the line is
// built on the caller's stack, so no lock is needed.
class StderrSink final : public absl::LogSink {
 public:
  void Configure(LogFormat format, absl::LogSeverity min_severity) {
    format_ = format;
    min_ = min_severity;
  }
  void Send(const absl::LogEntry& entry) override {
    const LogFormat format = format_.load();
    if (entry.log_severity() < min_.load()) return;
    // Abseil writes that one itself, with the stack.
    if (entry.log_severity() == absl::LogSeverity::kFatal && format == LogFormat::kText) return;
    // A line is one write, so that lines of several threads and processes do not mix.
    const std::string line = FormatLogLine(entry, ContextOfLine(), format);
    std::string_view rest = line;
    while (!rest.empty()) {
      const ssize_t written = write(STDERR_FILENO, rest.data(), rest.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return;  // there is nowhere left to complain to
      rest.remove_prefix(static_cast<size_t>(written));
    }
  }

 private:
  std::atomic<LogFormat> format_{LogFormat::kText};
  std::atomic<absl::LogSeverity> min_{absl::LogSeverity::kInfo};
};

}  // namespace

std::string FormatLogLine(const absl::LogEntry& entry, const TraceContext& trace, LogFormat format) {
  return format == LogFormat::kJson ? JsonLine(entry, trace) : TextLine(entry, trace);
}

void InstallStderrLog(LogFormat format, absl::LogSeverity min_severity) {
  static auto* const sink = [] {
    auto* made = new StderrSink;  // never destroyed: exit handlers may log
    absl::AddLogSink(made);
    return made;
  }();
  sink->Configure(format, min_severity);
  // What Abseil shows itself: in text, FATAL with its stack; beside JSON nothing, so that every line parses.
  absl::SetStderrThreshold(format == LogFormat::kJson ? absl::LogSeverityAtLeast::kInfinity
                                                      : absl::LogSeverityAtLeast::kFatal);
}

TelemetryLogSink::TelemetryLogSink(std::shared_ptr<sdk::Bridge> bridge, absl::LogSeverity min_severity)
    : bridge_(std::move(bridge)), min_(min_severity) {
  absl::AddLogSink(this);
}

TelemetryLogSink::~TelemetryLogSink() { absl::RemoveLogSink(this); }

void TelemetryLogSink::Send(const absl::LogEntry& entry) {
  // Abseil calls sinks on the thread that logs, so its current span is the line's.
  if (about_telemetry || entry.log_severity() < min_) return;
  // A line that the bridge itself logs, such as the warning about a full queue, must not come back here.
  const AboutTelemetry guard;
  bridge_->EmitLog({.severity = static_cast<int>(entry.log_severity()),
                    .message = entry.text_message(),
                    .file = entry.source_filename(),
                    .line = entry.source_line(),
                    .thread = static_cast<int64_t>(entry.tid()),
                    .time = absl::ToChronoTime(entry.timestamp()),
                    .trace = ContextOfLine()});
}

AboutTelemetry::AboutTelemetry() : outer_(std::exchange(about_telemetry, true)) {}
AboutTelemetry::~AboutTelemetry() { about_telemetry = outer_; }

}  // namespace tensorcast::otel
