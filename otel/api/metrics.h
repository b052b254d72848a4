// The handles of the catalogue's metrics (otel/api/metrics_catalogue.h), and the sink for their values.
//
//   metrics::kTransfersCreated.Add(1, {"disk", "gpu"});       // labels in the catalogue's order
//   metrics::kTransferWaitSeconds.Record(seconds, {"gpu"});
//   GaugeRegistration pools = metrics::kPoolUsedBytes.Observe([this](auto& o) {
//     o.Observe(pool_->stats().used, {"cpu", ""});
//   });
//
// Thread-safe. With metrics off, a call costs a load and a branch. Labels have few values and are never ids:
// each combination is a time series of its own. Standard library only.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

namespace tensorcast::otel {

// The position of a metric in the catalogue.
enum class MetricId : uint16_t {};

using LabelValues = std::span<const std::string_view>;

// Receives counts and measurements; the OpenTelemetry bridge implements it. An installed sink must live as
// long as the process. A sink must not block.
class MetricSink {
 public:
  virtual ~MetricSink() = default;
  virtual void Add(MetricId metric, int64_t value, LabelValues labels) = 0;
  virtual void Record(MetricId metric, double value, LabelValues labels) = 0;
};

void InstallMetricSink(MetricSink* sink);  // null for none

namespace internal {
inline std::atomic<MetricSink*> metric_sink{nullptr};

inline MetricSink* CurrentMetricSink() {
  // With metrics off only this branch runs, and it needs no ordering.
  if (metric_sink.load(std::memory_order_relaxed) == nullptr) [[likely]]
    return nullptr;
  return metric_sink.load(std::memory_order_acquire);
}
}  // namespace internal

inline bool IsMeasuring() { return internal::metric_sink.load(std::memory_order_relaxed) != nullptr; }

template <size_t kLabels>
using Labels = std::array<std::string_view, kLabels>;

template <size_t kLabels, class Value>
class Adder {
 public:
  constexpr explicit Adder(MetricId id) : id_(id) {}
  void Add(Value value, const Labels<kLabels>& labels) const {
    if (MetricSink* sink = internal::CurrentMetricSink()) [[unlikely]]
      sink->Add(id_, static_cast<int64_t>(value), labels);
  }
  void Add(Value value) const
    requires(kLabels == 0)
  {
    Add(value, {});
  }
  constexpr MetricId id() const { return id_; }

 private:
  MetricId id_;
};
// Only grows. The reader computes rates.
template <size_t kLabels>
using Counter = Adder<kLabels, uint64_t>;
// The sum of the values that callers add; may go down.
template <size_t kLabels>
using UpDownCounter = Adder<kLabels, int64_t>;

// A distribution in the catalogue's buckets.
template <size_t kLabels>
class Histogram {
 public:
  constexpr explicit Histogram(MetricId id) : id_(id) {}
  void Record(double value, const Labels<kLabels>& labels) const {
    if (MetricSink* sink = internal::CurrentMetricSink()) [[unlikely]]
      sink->Record(id_, value, labels);
  }
  void Record(double value) const
    requires(kLabels == 0)
  {
    Record(value, {});
  }
  constexpr MetricId id() const { return id_; }

 private:
  MetricId id_;
};

// Receives the values of one collection from the callbacks.
class GaugeObserver {
 public:
  virtual ~GaugeObserver() = default;
  virtual void Report(double value, LabelValues labels) = 0;
};

// Keeps a callback registered. The destructor waits for a running call of the callback. While telemetry is
// on, the destructor then calls the callback a last time; the values of this call stay until telemetry ends.
// Do not destroy a registration while holding a lock that its callback takes. Movable.
class GaugeRegistration {
 public:
  struct Entry;
  GaugeRegistration() = default;
  explicit GaugeRegistration(std::shared_ptr<Entry> entry);
  GaugeRegistration(GaugeRegistration&&) noexcept = default;
  GaugeRegistration& operator=(GaugeRegistration&&) noexcept;
  ~GaugeRegistration();

 private:
  std::shared_ptr<Entry> entry_;
};

namespace internal {
[[nodiscard]] GaugeRegistration RegisterGauge(MetricId id, std::function<void(GaugeObserver&)> callback);
}

// A metric that callbacks report when metrics are collected. Each of its callbacks has its own label values.
// An observed counter reports its total since the process began.
template <size_t kLabels>
class Gauge {
 public:
  class Observer {
   public:
    explicit Observer(GaugeObserver& to) : to_(to) {}
    void Observe(double value, const Labels<kLabels>& labels) { to_.Report(value, labels); }
    void Observe(double value)
      requires(kLabels == 0)
    {
      Observe(value, {});
    }

   private:
    GaugeObserver& to_;
  };

  constexpr explicit Gauge(MetricId id) : id_(id) {}
  [[nodiscard]] GaugeRegistration Observe(std::function<void(Observer&)> callback) const {
    return internal::RegisterGauge(id_, [callback = std::move(callback)](GaugeObserver& to) {
      Observer observer(to);
      callback(observer);
    });
  }
  constexpr MetricId id() const { return id_; }

 private:
  MetricId id_;
};
template <size_t kLabels>
using ObservedCounter = Gauge<kLabels>;

// Calls the callbacks of one metric. For the sink's collection and for tests.
void CollectGauge(MetricId id, GaugeObserver& to);

}  // namespace tensorcast::otel
