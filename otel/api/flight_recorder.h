// The flight recorder keeps the last minutes of this process in bounded memory, even if telemetry is off or
// the traces are not sampled. It keeps the finished spans of transfers (not of every call) and the log lines;
// the newest replace the oldest. The spans of a failed or slow transfer are exported from the recorder
// (daemon/telemetry). `tensorcast debug bundle` reads the recorder (rpc/records.h).
//
// Ids: a span that telemetry samples keeps telemetry's ids. The recorder gives every other kept span an id.
// The recorder changes neither the sampling decision nor the mark TraceContext::IsUnstarted of a trace.
//
// Thread-safe. Recording takes a lock only to move a record, and blocks on nothing else.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/log_severity.h"
#include "absl/time/time.h"
#include "otel/api/kept_span.h"

namespace tensorcast::otel {

using TraceId = std::array<uint8_t, 16>;

struct KeptLine {
  absl::LogSeverity severity = absl::LogSeverity::kInfo;
  absl::Time time;
  std::string message;  // cut if it is long
  std::string file;
  int line = 0;
  TraceContext trace;  // invalid if the line was logged outside every otel::Scope

  size_t bytes() const { return sizeof(*this) + message.size() + file.size() + trace.trace_state.size(); }
};

struct FlightRecorderOptions {
  size_t max_bytes = size_t{4} << 20;  // half of it for spans, half for log lines
};

// Whether a span with this name belongs to a transfer.
bool IsTransferSpan(std::string_view name);

class FlightRecorder {
 public:
  // Becomes the process's recorder, and replaces an earlier recorder.
  explicit FlightRecorder(const FlightRecorderOptions& options = {});
  // Stops recording, and discards the recorded spans and lines.
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

 private:
  class Sink;
  class Lines;
  class Record;
  friend std::optional<struct RecordedSlice> ReadRecorder(const std::optional<TraceId>& trace,
                                                          size_t max_bytes);

  Sink* const sink_;
  const std::unique_ptr<Lines> lines_;
};

// Spans and lines, oldest first.
struct RecordedSlice {
  std::vector<KeptSpan> spans;
  std::vector<KeptLine> lines;
  uint64_t left_out = 0;  // spans and lines that did not fit into the slice
};

// The newest spans and lines of the process's recorder, of one trace or of all traces. Returns at most
// `max_bytes` of spans and `max_bytes` of lines, or nullopt if no recorder is installed.
std::optional<RecordedSlice> ReadRecorder(const std::optional<TraceId>& trace, size_t max_bytes);

// Passes spans, of one or several processes, to this process's telemetry as if their trace were sampled.
// Leaves out spans that telemetry already has. Removes a parent that is not among the spans, so that no trace
// waits for a missing span. Returns the number of spans passed: 0 if telemetry is off.
size_t ExportSpans(const std::vector<KeptSpan>& spans);

}  // namespace tensorcast::otel
