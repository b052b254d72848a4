// Limits the queues and counts the items of the exporters. An item for a full queue is dropped and counted
// here; the SDK would drop it silently. Includes OpenTelemetry.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <utility>

#include "opentelemetry/sdk/logs/exporter.h"
#include "opentelemetry/sdk/logs/recordable.h"
#include "opentelemetry/sdk/metrics/export/metric_producer.h"
#include "opentelemetry/sdk/metrics/push_metric_exporter.h"
#include "opentelemetry/sdk/trace/exporter.h"
#include "opentelemetry/sdk/trace/recordable.h"
#include "otel/sdk/counters.h"

namespace tensorcast::otel::sdk {

namespace otel_common = opentelemetry::sdk::common;
namespace otel_logs = opentelemetry::sdk::logs;
namespace otel_metrics = opentelemetry::sdk::metrics;
namespace otel_trace = opentelemetry::sdk::trace;

using Complain = std::function<void(std::string_view)>;
using Timeout = std::chrono::microseconds;

// Facts about the export that runs on this thread. The SDK's HTTP exporter of metrics only logs a failure, so
// bridge.cc reads the SDK's log. A failed export of metrics over gRPC is always retried, because the SDK does
// not say why it failed.
struct ExportTrouble {
  bool failed = false;
  bool final = false;                        // a retry cannot succeed
  std::chrono::milliseconds retry_after{0};  // min time before a retry, as the collector asks
  std::string error;                         // the last message of the SDK's log or of our exporter
};
inline thread_local ExportTrouble export_trouble;

// State shared by a signal's processor and exporter.
class Guard {
 public:
  // `retry_for`: how long a failed export is retried, from its first attempt on.
  Guard(SignalCounters& counters, size_t queue_size, std::chrono::milliseconds retry_for, Complain complain)
      : counters_(counters),
        queue_size_(static_cast<int64_t>(queue_size)),
        retry_for_(retry_for),
        complain_(std::move(complain)) {}

  // Counts one more item if it may be queued; otherwise counts it as dropped and returns false.
  bool Admit() {
    if (ended_) {
      ++counters_.dropped_shutdown;
      return false;
    }
    // `pending` never exceeds the size, even for a moment: a refused item must not take another item's place,
    // and DropRest must not count it.
    int64_t pending = counters_.pending.load(std::memory_order_relaxed);
    while (pending < queue_size_) {
      if (counters_.pending.compare_exchange_weak(pending, pending + 1, std::memory_order_relaxed)) {
        return true;
      }
    }
    counters_.dropped_queue_full.fetch_add(1, std::memory_order_relaxed);
    complain_("the export queue is full");
    return false;
  }

  // From now on no item is admitted.
  void End() { ended_ = true; }
  bool ended() const { return ended_; }
  // Call this after End and the last export. Counts as dropped the items that were admitted and not exported.
  void DropRest() {
    // `left` is negative if a running export has already subtracted its items.
    if (const int64_t left = counters_.pending.exchange(0); left > 0) {
      counters_.dropped_shutdown += static_cast<uint64_t>(left);
    }
  }

  // Sets the time after which no export begins. Also ends retries, so a shutdown tries each export once.
  void GiveUpAt(std::chrono::steady_clock::time_point when) {
    const std::lock_guard lock(mutex_);
    give_up_at_ = when;
    giving_up_.notify_all();
  }

  // Runs one export of `count` items, unless GiveUpAt's time has passed. Repeats it with growing pauses while
  // a retry may succeed.
  template <class Export>
  otel_common::ExportResult Run(size_t count, const Export& do_export) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point retry_until = Clock::now() + retry_for_;
    std::chrono::milliseconds pause = kFirstPause;
    otel_common::ExportResult result = otel_common::ExportResult::kFailure;
    while (true) {
      if (Clock::now() >= give_up_at()) {
        counters_.dropped_shutdown += count;
        break;
      }
      export_trouble = {};
      result = do_export();
      if (result == otel_common::ExportResult::kSuccess && !export_trouble.failed) {
        counters_.exported += count;
        counters_.last_error.Set("");
        break;
      }
      ++counters_.export_failures;
      counters_.last_error.Set(export_trouble.error.empty() ? "an export failed" : export_trouble.error);
      const std::chrono::milliseconds length = std::max(Jittered(pause), export_trouble.retry_after);
      const bool again = !export_trouble.final && Clock::now() + length < retry_until && Pause(length);
      if (!again) {
        counters_.dropped_export_failed += count;
        complain_("an export failed");
        break;
      }
      pause = std::min(2 * pause, kLongestPause);
    }
    counters_.pending.fetch_sub(static_cast<int64_t>(count), std::memory_order_relaxed);
    return result;
  }

  // Counts items as pending without a call of Admit.
  void CountIn(size_t count) { counters_.pending += static_cast<int64_t>(count); }

 private:
  static constexpr std::chrono::milliseconds kFirstPause{100};
  static constexpr std::chrono::milliseconds kLongestPause{2000};

  // Adds jitter, so that processes that a collector refused at the same time do not retry at the same time.
  static std::chrono::milliseconds Jittered(std::chrono::milliseconds pause) {
    thread_local std::minstd_rand random(std::random_device{}());
    return pause / 2 + std::chrono::milliseconds(random() % (pause.count() / 2 + 1));
  }

  std::chrono::steady_clock::time_point give_up_at() {
    const std::lock_guard lock(mutex_);
    return give_up_at_;
  }
  // False, at once, when GiveUpAt was called.
  bool Pause(std::chrono::milliseconds length) {
    std::unique_lock lock(mutex_);
    return !giving_up_.wait_for(lock, length, [this] { return give_up_at_ != kNever; });
  }

  static constexpr std::chrono::steady_clock::time_point kNever =
      std::chrono::steady_clock::time_point::max();

  SignalCounters& counters_;
  const int64_t queue_size_;
  const std::chrono::milliseconds retry_for_;
  const Complain complain_;
  std::atomic<bool> ended_ = false;
  std::mutex mutex_;
  std::condition_variable giving_up_;
  std::chrono::steady_clock::time_point give_up_at_ = kNever;
};

// Exports admitted spans or log records.
template <class Exporter, class Recordable>
class GuardedExporter final : public Exporter {
 public:
  GuardedExporter(std::unique_ptr<Exporter> inner, std::shared_ptr<Guard> guard)
      : inner_(std::move(inner)), guard_(std::move(guard)) {}

  std::unique_ptr<Recordable> MakeRecordable() noexcept override { return inner_->MakeRecordable(); }
  otel_common::ExportResult Export(
      const opentelemetry::nostd::span<std::unique_ptr<Recordable>>& items) noexcept override {
    return guard_->Run(items.size(), [&] { return inner_->Export(items); });
  }
  bool ForceFlush(Timeout timeout) noexcept override { return inner_->ForceFlush(timeout); }
  bool Shutdown(Timeout timeout) noexcept override { return inner_->Shutdown(timeout); }

 private:
  const std::unique_ptr<Exporter> inner_;
  const std::shared_ptr<Guard> guard_;
};
using GuardedSpanExporter = GuardedExporter<otel_trace::SpanExporter, otel_trace::Recordable>;
using GuardedLogExporter = GuardedExporter<otel_logs::LogRecordExporter, otel_logs::Recordable>;

class GuardedMetricExporter final : public otel_metrics::PushMetricExporter {
 public:
  GuardedMetricExporter(std::unique_ptr<otel_metrics::PushMetricExporter> inner, std::shared_ptr<Guard> guard)
      : inner_(std::move(inner)), guard_(std::move(guard)) {}

  otel_common::ExportResult Export(const otel_metrics::ResourceMetrics& data) noexcept override {
    // The SDK's HTTP exporter does not post an empty collection, so an empty one does not count as an export.
    if (data.scope_metric_data_.empty()) return otel_common::ExportResult::kSuccess;
    const std::lock_guard lock(mutex_);  // the reader's thread and a flush may both call it
    guard_->CountIn(1);
    return guard_->Run(1, [&] { return inner_->Export(data); });
  }
  otel_metrics::AggregationTemporality GetAggregationTemporality(
      otel_metrics::InstrumentType type) const noexcept override {
    return inner_->GetAggregationTemporality(type);
  }
  bool ForceFlush(Timeout timeout) noexcept override { return inner_->ForceFlush(timeout); }
  bool Shutdown(Timeout timeout) noexcept override { return inner_->Shutdown(timeout); }

 private:
  const std::unique_ptr<otel_metrics::PushMetricExporter> inner_;
  const std::shared_ptr<Guard> guard_;
  std::mutex mutex_;
};

}  // namespace tensorcast::otel::sdk
