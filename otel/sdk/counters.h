// The counters of telemetry about itself. Standard library only, because sources on both sides of the bridge
// use them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

namespace tensorcast::otel::sdk {

enum class Signal : uint8_t { kTraces, kMetrics, kLogs };
inline constexpr size_t kSignals = 3;
inline constexpr const char* kSignalNames[kSignals] = {"traces", "metrics", "logs"};

// The error of a signal's last export; empty: none. Thread-safe.
class LastError {
 public:
  void Set(std::string what) {
    const std::lock_guard lock(mutex_);
    what_ = std::move(what);
  }
  std::string Get() const {
    const std::lock_guard lock(mutex_);
    return what_;
  }

 private:
  mutable std::mutex mutex_;
  std::string what_;
};

// Counts spans or log records; for metrics, whole collections.
struct SignalCounters {
  std::atomic<int64_t> pending{0};  // queued or being exported
  std::atomic<uint64_t> exported{0};
  std::atomic<uint64_t> dropped_queue_full{0};
  std::atomic<uint64_t> dropped_export_failed{0};
  std::atomic<uint64_t> dropped_shutdown{0};
  std::atomic<uint64_t> export_failures{0};
  LastError last_error;

  uint64_t dropped() const { return dropped_queue_full + dropped_export_failed + dropped_shutdown; }
};

// Thread-safe. Lives as long as the process (see telemetry.cc).
struct Counters {
  std::array<SignalCounters, kSignals> signals;
  std::atomic<uint64_t> sdk_errors{0};
  std::atomic<uint64_t> sdk_warnings{0};

  SignalCounters& of(Signal signal) { return signals[static_cast<size_t>(signal)]; }
  const SignalCounters& of(Signal signal) const { return signals[static_cast<size_t>(signal)]; }
};

}  // namespace tensorcast::otel::sdk
