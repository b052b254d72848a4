// Exports the trace of a failed or slow transfer to this node, even if the trace was not sampled. Collects
// the trace's spans from the flight recorders of this daemon, the global store and the sources, and exports
// them as one trace through this daemon's telemetry. Spans of other processes carry their node's name.
//
// At most kMaxWaiting failed or slow transfers wait; further transfers are left out. One trace is exported at
// a time. Each export asks at most kMaxSources nodes, and waits at most kTimeOfOne for each. Nothing is
// exported while telemetry or the recorder is off. Thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "base/task_loop.h"
#include "core/replica/transfer_report.h"
#include "otel/api/flight_recorder.h"

namespace tensorcast::daemon {

class TraceExporter {
 public:
  static constexpr size_t kMaxWaiting = 16;
  static constexpr size_t kMaxSources = 8;
  static constexpr absl::Duration kTimeOfOne = absl::Seconds(2);

  using Answer = absl::StatusOr<otel::RecordedSlice>;
  struct Options {
    absl::Duration slow_transfer = absl::Seconds(30);  // min duration of a slow transfer, from request to end
    // The time from a transfer's end to its export, in which its last calls and its request can end.
    absl::Duration settle = absl::Seconds(2);
    absl::Duration pause = absl::Seconds(1);  // between two exports
    // `ask_store` asks the global store, and `ask_node` asks the node `node`. Both may block.
    std::function<Answer(const RequestContext&, const otel::TraceId&)> ask_store;
    std::function<Answer(const RequestContext&, const std::string& node, const otel::TraceId&)> ask_node;
  };

  explicit TraceExporter(Options options) : options_(std::move(options)), loop_("trace export") {}

  // Called for each ended transfer. Does not block.
  void OnTransfer(const TransferReport& report) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Wanted {
    otel::TraceId trace{};
    std::vector<std::string> nodes;  // the sources of the transfer
  };
  using SpanId = std::array<uint8_t, 8>;

  // Runs on the loop.
  void Export(const Wanted& wanted);
  void Add(Answer answer, const std::string& node, const otel::TraceId& trace,
           std::vector<otel::KeptSpan>& spans);

  const Options options_;
  absl::Mutex mutex_;
  std::set<otel::TraceId> waiting_ ABSL_GUARDED_BY(mutex_);
  SteadyTime next_ ABSL_GUARDED_BY(mutex_) = SteadyTime::InfinitePast();
  std::set<SpanId> exported_;  // used on the loop only; these spans are not exported again
  TaskLoop loop_;              // last: its tasks use the other members
};

}  // namespace tensorcast::daemon
