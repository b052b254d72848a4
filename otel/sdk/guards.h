// Bounds and counts around queues and exporters: an item that finds its queue full is dropped here, where it
// is counted; the SDK would drop it silently. Includes OpenTelemetry.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

#include "opentelemetry/sdk/logs/exporter.h"
#include "opentelemetry/sdk/logs/processor.h"
#include "opentelemetry/sdk/logs/recordable.h"
#include "opentelemetry/sdk/metrics/push_metric_exporter.h"
#include "opentelemetry/sdk/trace/exporter.h"
#include "opentelemetry/sdk/trace/processor.h"
#include "opentelemetry/sdk/trace/recordable.h"
#include "otel/sdk/counters.h"

namespace tensorcast::otel::sdk {

namespace otel_common = opentelemetry::sdk::common;
namespace otel_logs = opentelemetry::sdk::logs;
namespace otel_metrics = opentelemetry::sdk::metrics;
namespace otel_trace = opentelemetry::sdk::trace;

using Complain = std::function<void(std::string_view)>;
using Timeout = std::chrono::microseconds;

// Errors that the SDK logged on this thread. Its HTTP exporters report failures nowhere else: they return
// success.
inline thread_local uint64_t sdk_errors_on_this_thread = 0;

// The state that a signal's processor and exporter share.
class Guard {
 public:
  Guard(SignalCounters& counters, size_t queue_size, Complain complain)
      : counters_(counters), queue_size_(static_cast<int64_t>(queue_size)), complain_(std::move(complain)) {}

  // Whether one more item may be queued.
  bool Admit() {
    if (counters_.pending.fetch_add(1, std::memory_order_relaxed) < queue_size_) return true;
    counters_.pending.fetch_sub(1, std::memory_order_relaxed);
    counters_.dropped_queue_full.fetch_add(1, std::memory_order_relaxed);
    complain_("the export queue is full");
    return false;
  }

  // For items that were admitted when nothing is exported any more.
  void DropAtShutdown(size_t count) {
    counters_.dropped_shutdown += count;
    counters_.pending.fetch_sub(static_cast<int64_t>(count), std::memory_order_relaxed);
  }

  void GiveUpAt(std::chrono::steady_clock::time_point when) { give_up_at_.store(when.time_since_epoch()); }

  // Runs one export of `count` items, unless it is too late for it.
  template <class Export>
  otel_common::ExportResult Run(size_t count, const Export& do_export) {
    const uint64_t errors_before = sdk_errors_on_this_thread;
    otel_common::ExportResult result = otel_common::ExportResult::kFailure;
    if (std::chrono::steady_clock::now().time_since_epoch() >= give_up_at_.load()) {
      counters_.dropped_shutdown += count;
    } else if (result = do_export();
               result == otel_common::ExportResult::kSuccess && sdk_errors_on_this_thread == errors_before) {
      counters_.exported += count;
    } else {
      ++counters_.export_failures;
      counters_.dropped_export_failed += count;
      complain_("an export failed");
    }
    counters_.pending.fetch_sub(static_cast<int64_t>(count), std::memory_order_relaxed);
    return result;
  }

  // For items that were not admitted one by one.
  void CountIn(size_t count) { counters_.pending += static_cast<int64_t>(count); }

 private:
  SignalCounters& counters_;
  const int64_t queue_size_;
  const Complain complain_;
  std::atomic<std::chrono::steady_clock::duration> give_up_at_{std::chrono::steady_clock::duration::max()};
};

class GuardedLogExporter final : public otel_logs::LogRecordExporter {
 public:
  GuardedLogExporter(std::unique_ptr<otel_logs::LogRecordExporter> inner, std::shared_ptr<Guard> guard)
      : inner_(std::move(inner)), guard_(std::move(guard)) {}

  std::unique_ptr<otel_logs::Recordable> MakeRecordable() noexcept override {
    return inner_->MakeRecordable();
  }
  otel_common::ExportResult Export(
      const opentelemetry::nostd::span<std::unique_ptr<otel_logs::Recordable>>& records) noexcept override {
    return guard_->Run(records.size(), [&] { return inner_->Export(records); });
  }
  bool ForceFlush(Timeout timeout) noexcept override { return inner_->ForceFlush(timeout); }
  bool Shutdown(Timeout timeout) noexcept override { return inner_->Shutdown(timeout); }

 private:
  const std::unique_ptr<otel_logs::LogRecordExporter> inner_;
  const std::shared_ptr<Guard> guard_;
};

class GuardedLogProcessor final : public otel_logs::LogRecordProcessor {
 public:
  GuardedLogProcessor(std::unique_ptr<otel_logs::LogRecordProcessor> inner, std::shared_ptr<Guard> guard)
      : inner_(std::move(inner)), guard_(std::move(guard)) {}

  std::unique_ptr<otel_logs::Recordable> MakeRecordable() noexcept override {
    return inner_->MakeRecordable();
  }
  void OnEmit(std::unique_ptr<otel_logs::Recordable>&& record) noexcept override {
    if (guard_->Admit()) inner_->OnEmit(std::move(record));
  }
  bool ForceFlush(Timeout timeout) noexcept override { return inner_->ForceFlush(timeout); }
  bool Shutdown(Timeout timeout) noexcept override { return inner_->Shutdown(timeout); }

 private:
  const std::unique_ptr<otel_logs::LogRecordProcessor> inner_;
  const std::shared_ptr<Guard> guard_;
};

class GuardedMetricExporter final : public otel_metrics::PushMetricExporter {
 public:
  GuardedMetricExporter(std::unique_ptr<otel_metrics::PushMetricExporter> inner, std::shared_ptr<Guard> guard)
      : inner_(std::move(inner)), guard_(std::move(guard)) {}

  otel_common::ExportResult Export(const otel_metrics::ResourceMetrics& data) noexcept override {
    const std::lock_guard lock(mutex_);  // the reader's thread and a flush
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
