// The queue between the threads that end spans and the exporter. Includes OpenTelemetry.
//
// The SDK has such a processor, too. Under the load of a control plane it made every thread spin while one
// that was adding was interrupted, and once a batch was full it exported what had come meanwhile in ever
// smaller pieces, a hundred spans a call where 512 were asked for; and it noticed a flush only at the end of
// an interval.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "opentelemetry/sdk/trace/processor.h"
#include "otel/sdk/guards.h"

namespace tensorcast::otel::sdk {

// Exports full batches as they come, and every `interval` what there is. Thread-safe. A span that finds the
// queue full is dropped and counted (see Guard), so no span waits for an exporter.
class SpanBatcher final : public otel_trace::SpanProcessor {
 public:
  SpanBatcher(std::unique_ptr<otel_trace::SpanExporter> exporter, std::shared_ptr<Guard> guard,
              size_t batch_size, std::chrono::milliseconds interval);
  ~SpanBatcher() override;

  std::unique_ptr<otel_trace::Recordable> MakeRecordable() noexcept override;
  void OnStart(otel_trace::Recordable&, const opentelemetry::trace::SpanContext&) noexcept override {}
  void OnEnd(std::unique_ptr<otel_trace::Recordable>&& span) noexcept override;

  // Waits until what had ended before is exported or lost; false when `timeout` came first. An export has
  // ended when the exporter returns, so that is not asked to flush.
  bool ForceFlush(Timeout timeout) noexcept override;
  // Exports the rest, however long that takes, and ends the thread. Idempotent.
  bool Shutdown(Timeout timeout) noexcept override;

 private:
  using Spans = std::vector<std::unique_ptr<otel_trace::Recordable>>;

  void Work();
  // Waits until there is something to do. False: the last was taken.
  bool Take(Spans& batch);

  const std::unique_ptr<otel_trace::SpanExporter> exporter_;
  const std::shared_ptr<Guard> guard_;
  const size_t batch_size_;
  const std::chrono::milliseconds interval_;

  std::mutex mutex_;  // of what follows
  std::condition_variable work_;
  std::condition_variable progress_;
  Spans queue_;
  uint64_t taken_ = 0;        // spans, since the beginning
  uint64_t done_ = 0;         // of these, exported or lost
  uint64_t flush_up_to_ = 0;  // what a flush waits for
  bool ending_ = false;

  std::mutex joining_;
  std::thread worker_;
};

}  // namespace tensorcast::otel::sdk
