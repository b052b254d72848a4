#include "otel/api/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "otel/api/metrics_catalogue.h"

namespace tensorcast::otel::metrics_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class NotingSink final : public MetricSink {
 public:
  void Add(MetricId metric, int64_t value, LabelValues labels) override {
    Note(metric, std::to_string(value), labels);
  }
  void Record(MetricId metric, double value, LabelValues labels) override {
    Note(metric, std::to_string(value), labels);
  }
  std::vector<std::string> lines;

 private:
  void Note(MetricId metric, const std::string& value, LabelValues labels) {
    std::string line = std::string(InfoOf(metric).name) + " " + value;
    for (std::string_view label : labels) line += " " + std::string(label);
    lines.push_back(line);
  }
};

class NotingObserver final : public GaugeObserver {
 public:
  void Report(double value, LabelValues labels) override {
    seen.push_back(std::to_string(static_cast<int>(value)) + (labels.empty() ? "" : std::string(labels[0])));
  }
  std::vector<std::string> seen;
};

std::vector<std::string> Read(MetricId metric) {
  NotingObserver observer;
  CollectGauge(metric, observer);
  return observer.seen;
}

TEST(Metrics, MetricsWithSink_ReachItOnlyWhileInstalled) {
  NotingSink sink;
  metrics::kTransfersCreated.Add(1, {"gpu"});
  InstallMetricSink(&sink);
  metrics::kTransfersCreated.Add(2, {"cpu"});
  metrics::kTicketsExpired.Add(3);
  metrics::kRpcInFlight.Add(-1, {"server", "S/M"});
  metrics::kTransferWaitSeconds.Record(0.5, {"disk"});
  InstallMetricSink(nullptr);
  metrics::kTransfersCreated.Add(4, {"gpu"});
  EXPECT_THAT(sink.lines,
              ElementsAre("tc_transfers_created_total 2 cpu", "tc_tickets_expired_total 3",
                          "tc_rpc_in_flight -1 server S/M", "tc_transfer_wait_seconds 0.500000 disk"));
}

TEST(Gauges, CollectGauge_ReadsEveryRegisteredCallback) {
  GaugeRegistration one = metrics::kTransferQueueLength.Observe([](auto& observer) { observer.Observe(1); });
  GaugeRegistration two = metrics::kTransferQueueLength.Observe([](auto& observer) { observer.Observe(2); });
  NotingObserver both;
  CollectGauge(metrics::kTransferQueueLength.id(), both);
  EXPECT_THAT(both.seen, ElementsAre("1", "2"));

  GaugeRegistration moved = std::move(one);
  two = GaugeRegistration();
  NotingObserver first;
  CollectGauge(metrics::kTransferQueueLength.id(), first);
  EXPECT_THAT(first.seen, ElementsAre("1"));
}

TEST(Gauges, GaugeRegistrationDestroyedDuringCollect_IsNotCalledAfter) {
  std::atomic<bool> stop = false;
  std::thread collector([&] {
    NotingObserver observer;
    while (!stop) CollectGauge(metrics::kPoolUsedBytes.id(), observer);
  });
  for (int i = 0; i < 500; ++i) {
    auto value = std::make_unique<double>(i);
    GaugeRegistration registration = metrics::kPoolUsedBytes.Observe(
        [pointer = value.get()](auto& observer) { observer.Observe(*pointer, {"cpu", ""}); });
    registration = {};
    value.reset();  // a callback that still ran would touch freed memory
  }
  stop = true;
  collector.join();
}

// A process takes its parts down before telemetry exports for the last time.
TEST(Gauges, GaugeOfDestroyedPart_KeepsLastValueUntilTelemetryEnds) {
  NotingSink kept;
  InstallMetricSink(&kept);
  {
    const GaugeRegistration gone = metrics::kTransfersActive.Observe([](auto& to) { to.Observe(3); });
  }
  EXPECT_THAT(Read(metrics::kTransfersActive.id()), ElementsAre("3"));
  {
    const GaugeRegistration next = metrics::kTransfersActive.Observe([](auto& to) { to.Observe(4); });
    EXPECT_THAT(Read(metrics::kTransfersActive.id()), ElementsAre("4")) << "the living speak for themselves";
  }
  InstallMetricSink(nullptr);
  EXPECT_THAT(Read(metrics::kTransfersActive.id()), ElementsAre("4")) << "collected once more at the end";
  InstallMetricSink(&kept);
  EXPECT_THAT(Read(metrics::kTransfersActive.id()), IsEmpty()) << "telemetry that began anew";
  InstallMetricSink(nullptr);
}

TEST(Catalogue, MetricNames_AreUniqueAndEndWithTheirUnit) {
  std::set<std::string_view> names;
  for (const MetricInfo& info : MetricsCatalogue()) {
    SCOPED_TRACE(info.name);
    EXPECT_TRUE(names.insert(info.name).second) << "declared twice";
    EXPECT_TRUE(info.name.starts_with("tc_"));
    EXPECT_FALSE(info.description.empty());
    const bool counts = info.kind == MetricKind::kCounter || info.kind == MetricKind::kObservedCounter;
    EXPECT_EQ(counts, info.name.ends_with("_total"));
    EXPECT_EQ(info.kind == MetricKind::kHistogram, info.buckets != Buckets::kNone);
    // Any other unit is spelt into the name by a Collector; one in braces is not.
    const std::string_view stem = info.name.substr(0, info.name.size() - (counts ? 6 : 0));  // "_total"
    if (info.unit == "By") {
      EXPECT_TRUE(stem.ends_with("_bytes"));
    } else if (info.unit == "s") {
      EXPECT_TRUE(stem.ends_with("_seconds"));
    } else if (info.unit == "1") {
      EXPECT_TRUE(stem.ends_with("_ratio"));
    } else {
      EXPECT_TRUE(info.unit.starts_with('{') && info.unit.ends_with('}')) << info.unit;
    }
    for (std::string_view key : info.labels()) {
      EXPECT_FALSE(key.empty());
      EXPECT_FALSE(key.ends_with("id")) << "metrics carry no ids";
    }
  }
  EXPECT_GE(names.size(), 50u);
}

TEST(Catalogue, BucketBounds_Increase) {
  for (Buckets buckets : {Buckets::kSeconds, Buckets::kRate}) {
    const std::span<const double> bounds = BucketBounds(buckets);
    ASSERT_GT(bounds.size(), 10u);
    for (size_t i = 1; i < bounds.size(); ++i) EXPECT_LT(bounds[i - 1], bounds[i]);
  }
}

}  // namespace
}  // namespace tensorcast::otel::metrics_test
