#include "otel/api/metrics.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tensorcast::otel {

struct GaugeRegistration::Entry {
  MetricId id;
  absl::Mutex mutex;  // held during a call, so that clearing the callback waits for it
  std::function<void(GaugeObserver&)> callback ABSL_GUARDED_BY(mutex);
};

namespace {

using Entries = std::vector<std::weak_ptr<GaugeRegistration::Entry>>;
using Values = std::map<std::vector<std::string>, double>;  // by label values

// Two kinds of locks: the registry's, held for moments, and one of each entry, held while its callback runs.
// The code here never holds both at once, since callbacks take locks of their own.
struct Registry {
  absl::Mutex mutex;
  std::map<MetricId, Entries> entries ABSL_GUARDED_BY(mutex);
  // What callbacks that are gone said last. A process takes its parts down before telemetry exports for the
  // last time.
  std::map<MetricId, Values> last_words ABSL_GUARDED_BY(mutex);
};

// Keeps what is reported, and passes it on where there is an observer to pass it on to.
class KeepingObserver final : public GaugeObserver {
 public:
  explicit KeepingObserver(GaugeObserver* to) : to_(to) {}
  void Report(double value, LabelValues labels) override {
    values_[{labels.begin(), labels.end()}] = value;
    if (to_ != nullptr) to_->Report(value, labels);
  }
  Values& values() { return values_; }

 private:
  GaugeObserver* const to_;
  Values values_;
};

// Never destroyed: parts of the process unregister their gauges as late as in exit handlers.
Registry& registry() {
  static auto* const registry = new Registry;
  return *registry;
}

void Unregister(const std::shared_ptr<GaugeRegistration::Entry>& entry) {
  KeepingObserver last_words(nullptr);
  // The last call of the callback, so that its values are exported after the part that it tells of has gone.
  {
    absl::MutexLock lock(&entry->mutex);
    if (entry->callback != nullptr && IsMeasuring()) entry->callback(last_words);
    entry->callback = nullptr;
  }
  // Between the two locks a collection on another thread sees neither the callback nor the last values; the
  // next one has the values.
  absl::MutexLock lock(&registry().mutex);
  // Entries that were never taken out (expired) go by the way.
  std::erase_if(registry().entries[entry->id],
                [&](const auto& other) { return other.expired() || other.lock() == entry; });
  for (const auto& [labels, value] : last_words.values()) registry().last_words[entry->id][labels] = value;
}

}  // namespace

void InstallMetricSink(MetricSink* sink) {
  if (sink != nullptr) {
    absl::MutexLock lock(&registry().mutex);
    registry().last_words.clear();  // these were for the previous sink
  }
  // The sink is set last: from here on other threads use it.
  internal::metric_sink.store(sink, std::memory_order_release);
}

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
  // The entries are copied, so that callbacks run without the registry's lock: they take locks of their own.
  Entries entries;
  Values last_words;
  {
    absl::MutexLock lock(&registry().mutex);
    if (auto found = registry().entries.find(id); found != registry().entries.end()) entries = found->second;
    if (auto found = registry().last_words.find(id); found != registry().last_words.end()) {
      last_words = found->second;
    }
  }
  KeepingObserver living(&to);
  for (const auto& weak : entries) {
    const auto entry = weak.lock();
    if (entry == nullptr) continue;
    absl::MutexLock lock(&entry->mutex);
    if (entry->callback != nullptr) entry->callback(living);
  }
  for (const auto& [labels, value] : last_words) {
    // A callback that lives knows better than one that has gone.
    if (living.values().contains(labels)) continue;
    const std::vector<std::string_view> views(labels.begin(), labels.end());
    to.Report(value, views);
  }
}

}  // namespace tensorcast::otel
