// A trace file in the Chrome trace event format (a JSON array, which Perfetto and chrome://tracing read): the
// TraceSink behind --trace-file. Needs no SDK, no collector and no sampling.
// Format: "Trace Event Format", The Chromium Project.
//
// Events are formatted by the thread that ends a span and written by a thread of the file's own. What waits
// to be written is bounded: when the disk does not follow, events are dropped and counted. The file is
// complete once it is closed; after a crash it lacks the closing bracket, which readers accept.
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
  // Creates the file (INVALID_ARGUMENT or what open() says), and installs the sink. One at a time: a second
  // takes the spans from the first.
  static absl::StatusOr<std::unique_ptr<TraceFile>> Open(const std::string& path,
                                                         const TraceFileOptions& options = {});
  // Closes; a failure is logged.
  ~TraceFile();

  // Uninstalls the sink, writes what is buffered and closes the file. The first error of any write.
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
