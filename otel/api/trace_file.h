// A trace file in the Chrome trace event format (a JSON array, which Perfetto and chrome://tracing read): the
// TraceSink of --trace-file. Needs no SDK, no collector and no sampling. Format: "Trace Event Format", The
// Chromium Project.
//
// The thread that ends a span formats its event, and a thread of the TraceFile writes the event. Events that
// the bounded buffer cannot hold are dropped and counted. After a crash the closing bracket is missing;
// readers accept such a file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "otel/api/trace_sink.h"

namespace tensorcast::otel {

struct TraceFileOptions {
  std::string process_name = "tensorcast";
  size_t max_buffered_bytes = 8 << 20;
};

// Thread-safe. Spans that end after Close are not written.
class TraceFile {
 public:
  // Makes the file and installs its sink, which replaces the sink of an earlier TraceFile. Returns the error
  // of open() if that fails.
  static absl::StatusOr<std::unique_ptr<TraceFile>> Open(const std::string& path,
                                                         const TraceFileOptions& options = {});
  // Closes the file; logs a failure.
  ~TraceFile();

  // Uninstalls the sink, writes the buffer and closes the file. Returns the first error of any write.
  // Idempotent.
  absl::Status Close();

  uint64_t dropped_events() const;

 private:
  class Writer;
  class Sink;
  class Record;
  explicit TraceFile(std::shared_ptr<Writer> writer);

  const std::shared_ptr<Writer> writer_;
  TraceSink* const sink_;
};

}  // namespace tensorcast::otel
