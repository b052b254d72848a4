#include "otel/sdk/metric_bridge.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "opentelemetry/common/key_value_iterable.h"
#include "opentelemetry/context/context.h"
#include "opentelemetry/metrics/async_instruments.h"
#include "opentelemetry/metrics/observer_result.h"
#include "opentelemetry/metrics/sync_instruments.h"
#include "opentelemetry/sdk/metrics/aggregation/aggregation_config.h"
#include "opentelemetry/sdk/metrics/view/instrument_selector_factory.h"
#include "opentelemetry/sdk/metrics/view/meter_selector_factory.h"
#include "opentelemetry/sdk/metrics/view/view_factory.h"
#include "otel/api/metrics_catalogue.h"
#include "otel/sdk/counter_cells.h"
#include "otel/sdk/values.h"

namespace tensorcast::otel::sdk {
namespace {

namespace metrics_api = opentelemetry::metrics;
namespace sdk_metrics = opentelemetry::sdk::metrics;
using opentelemetry::nostd::shared_ptr;
using opentelemetry::nostd::unique_ptr;

// The catalogue's keys with a caller's values; those that are empty do not apply and are left out.
class LabelView final : public opentelemetry::common::KeyValueIterable {
 public:
  LabelView(const MetricInfo& info, LabelValues values) : info_(info), values_(values) {}

  bool ForEachKeyValue(opentelemetry::nostd::function_ref<bool(opentelemetry::nostd::string_view,
                                                               opentelemetry::common::AttributeValue)>
                           callback) const noexcept override {
    for (size_t i = 0; i < values_.size() && i < info_.label_count; ++i) {
      if (values_[i].empty()) continue;
      if (!callback(ToNostd(info_.label_keys[i]), ToNostd(values_[i]))) return false;
    }
    return true;
  }
  size_t size() const noexcept override { return values_.size(); }

 private:
  const MetricInfo& info_;
  LabelValues values_;
};

class Observer final : public GaugeObserver {
 public:
  Observer(const MetricInfo& info, metrics_api::ObserverResultT<double>& result)
      : info_(info), result_(result) {}
  void Report(double value, LabelValues labels) override { result_.Observe(value, LabelView(info_, labels)); }

 private:
  const MetricInfo& info_;
  metrics_api::ObserverResultT<double>& result_;
};

// Callbacks of the SDK, which passes back a pointer: in the first, to an entry of the catalogue.
void Collect(metrics_api::ObserverResult result, void* metric) {
  using Doubles = shared_ptr<metrics_api::ObserverResultT<double>>;
  const auto& info = *static_cast<const MetricInfo*>(metric);
  if (!opentelemetry::nostd::holds_alternative<Doubles>(result)) return;
  Observer observer(info, *opentelemetry::nostd::get<Doubles>(result));
  // A metric's id is its place in the catalogue.
  CollectGauge(static_cast<MetricId>(&info - MetricsCatalogue().data()), observer);
}

// What callers add to.
struct Counted {
  explicit Counted(const MetricInfo& of) : info(of) {}
  const MetricInfo& info;
  CounterCells cells;
};

void CollectCounted(metrics_api::ObserverResult result, void* counted) {
  using Integers = shared_ptr<metrics_api::ObserverResultT<int64_t>>;
  if (!opentelemetry::nostd::holds_alternative<Integers>(result)) return;
  const auto& to = opentelemetry::nostd::get<Integers>(result);
  const auto& from = *static_cast<const Counted*>(counted);
  from.cells.ForEach(
      [&](int64_t total, LabelValues labels) { to->Observe(total, LabelView(from.info, labels)); });
}

struct Instrument {
  std::unique_ptr<Counted> counted;  // observed by `observable`
  unique_ptr<metrics_api::Histogram<double>> histogram;
  shared_ptr<metrics_api::ObservableInstrument> observable;
};

// Instruments by the metric's place in the catalogue: a look-up is an index. Counters are observed ones to
// the SDK, read from our cells when it collects.
class Sink final : public MetricSink {
 public:
  explicit Sink(shared_ptr<metrics_api::Meter> meter) : meter_(std::move(meter)) {
    for (size_t i = 0; i < MetricsCatalogue().size(); ++i) instruments_.push_back(Make(i));
  }

  void Add(MetricId metric, int64_t value, LabelValues labels) override {
    const Instrument& instrument = instruments_[static_cast<size_t>(metric)];
    // A metric of another kind takes no counts: the catalogue decides.
    if (instrument.counted != nullptr) instrument.counted->cells.Add(value, labels);
  }

  void Record(MetricId metric, double value, LabelValues labels) override {
    const Instrument& instrument = instruments_[static_cast<size_t>(metric)];
    if (instrument.histogram == nullptr) return;
    instrument.histogram->Record(value, LabelView(InfoOf(metric), labels), opentelemetry::context::Context());
  }

 private:
  Instrument Make(size_t index) {
    const MetricInfo& info = MetricsCatalogue()[index];
    const auto name = ToNostd(info.name);
    const auto text = ToNostd(info.description);
    const auto unit = ToNostd(info.unit);
    Instrument made;
    switch (info.kind) {
      case MetricKind::kCounter:
        made.counted = std::make_unique<Counted>(info);
        made.observable = meter_->CreateInt64ObservableCounter(name, text, unit);
        break;
      case MetricKind::kUpDownCounter:
        made.counted = std::make_unique<Counted>(info);
        made.observable = meter_->CreateInt64ObservableUpDownCounter(name, text, unit);
        break;
      case MetricKind::kHistogram:
        made.histogram = meter_->CreateDoubleHistogram(name, text, unit);
        break;
      case MetricKind::kGauge:
        made.observable = meter_->CreateDoubleObservableGauge(name, text, unit);
        break;
      case MetricKind::kObservedCounter:
        made.observable = meter_->CreateDoubleObservableCounter(name, text, unit);
        break;
    }
    if (made.counted != nullptr) {
      // The SDK keeps these pointers: into what this sink owns, and into the catalogue, which is static.
      made.observable->AddCallback(&CollectCounted, made.counted.get());
    } else if (made.observable != nullptr) {
      made.observable->AddCallback(&Collect, const_cast<MetricInfo*>(&info));
    }
    return made;
  }

  const shared_ptr<metrics_api::Meter> meter_;
  std::vector<Instrument> instruments_;
};

}  // namespace

// The SDK takes a histogram's buckets from views alone, by the instrument's name.
void AddViews(sdk_metrics::MeterProvider& provider) {
  for (const MetricInfo& info : MetricsCatalogue()) {
    if (info.kind != MetricKind::kHistogram) continue;
    auto config = std::make_shared<sdk_metrics::HistogramAggregationConfig>();
    const std::span<const double> bounds = BucketBounds(info.buckets);
    config->boundaries_.assign(bounds.begin(), bounds.end());
    const std::string name(info.name);
    const std::string unit(info.unit);
    provider.AddView(
        sdk_metrics::InstrumentSelectorFactory::Create(sdk_metrics::InstrumentType::kHistogram, name, unit),
        sdk_metrics::MeterSelectorFactory::Create(kScopeName, "", ""),
        sdk_metrics::ViewFactory::Create(name, std::string(info.description), unit,
                                         sdk_metrics::AggregationType::kHistogram, config));
  }
}

std::unique_ptr<MetricSink> MakeMetricSink(shared_ptr<metrics_api::Meter> meter) {
  return std::make_unique<Sink>(std::move(meter));
}

}  // namespace tensorcast::otel::sdk
