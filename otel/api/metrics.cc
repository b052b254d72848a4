#include "otel/api/metrics.h"

#include <algorithm>
#include <map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tensorcast::otel {

struct GaugeRegistration::Entry {
  MetricId id;
  absl::Mutex mutex;  // held during a call, so that whoever clears the callback waits for it
  std::function<void(GaugeObserver&)> callback ABSL_GUARDED_BY(mutex);
};

namespace {

using Entries = std::vector<std::weak_ptr<GaugeRegistration::Entry>>;

struct Registry {
  absl::Mutex mutex;
  std::map<MetricId, Entries> entries ABSL_GUARDED_BY(mutex);
};

Registry& registry() {
  static auto* const registry = new Registry;
  return *registry;
}

void Unregister(const std::shared_ptr<GaugeRegistration::Entry>& entry) {
  {
    absl::MutexLock lock(&registry().mutex);
    std::erase_if(registry().entries[entry->id],
                  [&](const auto& other) { return other.expired() || other.lock() == entry; });
  }
  absl::MutexLock lock(&entry->mutex);
  entry->callback = nullptr;
}

}  // namespace

void InstallMetricSink(MetricSink* sink) { internal::metric_sink.store(sink, std::memory_order_release); }

GaugeRegistration::GaugeRegistration(std::shared_ptr<Entry> entry) : entry_(std::move(entry)) {}

GaugeRegistration& GaugeRegistration::operator=(GaugeRegistration&& other) noexcept {
  if (this != &other) {
    if (entry_ != nullptr) Unregister(entry_);
    entry_ = std::move(other.entry_);
  }
  return *this;
}

GaugeRegistration::~GaugeRegistration() {
  if (entry_ != nullptr) Unregister(entry_);
}

GaugeRegistration internal::RegisterGauge(MetricId id, std::function<void(GaugeObserver&)> callback) {
  auto entry = std::make_shared<GaugeRegistration::Entry>();
  entry->id = id;
  {
    absl::MutexLock lock(&entry->mutex);
    entry->callback = std::move(callback);
  }
  absl::MutexLock lock(&registry().mutex);
  registry().entries[id].push_back(entry);
  return GaugeRegistration(std::move(entry));
}

void CollectGauge(MetricId id, GaugeObserver& to) {
  Entries entries;
  {
    absl::MutexLock lock(&registry().mutex);
    auto found = registry().entries.find(id);
    if (found == registry().entries.end()) return;
    entries = found->second;
  }
  for (const auto& weak : entries) {
    const auto entry = weak.lock();
    if (entry == nullptr) continue;
    absl::MutexLock lock(&entry->mutex);
    if (entry->callback != nullptr) entry->callback(to);
  }
}

}  // namespace tensorcast::otel
