// What the bridge passes to the SDK, seen through in-memory exporters. Includes OpenTelemetry, so it must not
// include a header that uses our Abseil (see bridge.h).
#include "otel/sdk/bridge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "opentelemetry/exporters/memory/in_memory_metric_data.h"
#include "opentelemetry/exporters/memory/in_memory_metric_exporter_factory.h"
#include "opentelemetry/exporters/memory/in_memory_span_data.h"
#include "opentelemetry/exporters/memory/in_memory_span_exporter_factory.h"
#include "opentelemetry/sdk/trace/span_data.h"
#include "otel/api/metrics_catalogue.h"
#include "otel/sdk/exporters.h"

namespace tensorcast::otel::sdk::bridge_test {
namespace {

namespace memory = opentelemetry::exporter::memory;
using opentelemetry::sdk::trace::SpanData;
using ::testing::ElementsAre;

std::string Hex(opentelemetry::nostd::span<const uint8_t> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const uint8_t byte : bytes) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

// The latest collection, from whichever of the SDK's threads: the first is made as soon as there is a bridge.
class LatestPoints final : public memory::InMemoryMetricData {
 public:
  using Series = memory::SimpleAggregateInMemoryMetricData::AttributeToPoint;

  void Add(std::unique_ptr<opentelemetry::sdk::metrics::ResourceMetrics> collection) override {
    std::map<std::string, Series> by_name;
    for (const auto& scope : collection->scope_metric_data_) {
      for (const auto& metric : scope.metric_data_) {
        Series& series = by_name[metric.instrument_descriptor.name_];
        for (const auto& point : metric.point_data_attr_) series.emplace(point.attributes, point.point_data);
      }
    }
    const std::lock_guard lock(mutex_);
    by_name_ = std::move(by_name);
  }
  Series Get(const std::string& metric) const {
    const std::lock_guard lock(mutex_);
    const auto found = by_name_.find(metric);
    return found == by_name_.end() ? Series() : found->second;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, Series> by_name_;
};

class BridgeTest : public ::testing::Test {
 protected:
  // Counters live as long as the process, as bridge.h asks.
  BridgeTest() : counters_(*new Counters) { Restart(SamplerKind::kParentRatio); }
  ~BridgeTest() override { bridge_->Shutdown(); }

  void Restart(SamplerKind sampler) {
    if (bridge_ != nullptr) bridge_->Shutdown();
    Exporters exporters;
    exporters.spans = memory::InMemorySpanExporterFactory::Create(spans_);
    exporters.metrics = memory::InMemoryMetricExporterFactory::Create(points_);
    BridgeOptions options;
    options.counters = &counters_;
    options.sampler = sampler;
    options.complain = [](std::string_view) {};
    options.limits = {.max_attributes = 64, .max_events = 128, .max_links = 32, .max_attribute_bytes = 1024};
    options.queue_size = 2048;
    options.batch_size = 512;
    options.batch_interval = std::chrono::milliseconds(10);
    options.metric_interval = std::chrono::hours(1);
    bridge_ = MakeBridge(options, std::move(exporters));
  }

  std::vector<std::unique_ptr<SpanData>> Spans() {
    bridge_->Shutdown();
    return spans_->GetSpans();
  }

  static int64_t SumOf(const opentelemetry::sdk::metrics::PointType& point) {
    return opentelemetry::nostd::get<int64_t>(
        opentelemetry::nostd::get<opentelemetry::sdk::metrics::SumPointData>(point).value_);
  }
  // As last exported, one for each combination of labels.
  std::vector<int64_t> Sums(const std::string& metric) {
    std::vector<int64_t> sums;
    for (const auto& [labels, point] : points_->Get(metric)) sums.push_back(SumOf(point));
    return sums;
  }

  Counters& counters_;
  std::shared_ptr<memory::InMemorySpanData> spans_;
  std::shared_ptr<LatestPoints> points_ = std::make_shared<LatestPoints>();
  std::shared_ptr<Bridge> bridge_;
};

TEST_F(BridgeTest, BridgedSpan_HasParentKindAttributesAndLinks) {
  const auto parent =
      TraceContext::FromTraceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "v=1");
  const Attribute attributes[] = {{attr::kLane, "ucx"}, {attr::kSizeBytes, 3}, {attr::kShared, true}};
  const SpanLink links[] = {{*parent}};
  TraceContext context;
  const SpanStart start{.name = "P2P/Pull",
                        .kind = SpanKind::kServer,
                        .parent = &*parent,
                        .attributes = attributes,
                        .links = links};
  const auto record = bridge_->traces()->Start(start, context);
  ASSERT_NE(record, nullptr);
  record->SetError("UNAVAILABLE", "gone");
  record->End({});
  EXPECT_EQ(context.trace_id, parent->trace_id);
  EXPECT_NE(context.span_id, parent->span_id);
  EXPECT_EQ(context.trace_state, "v=1");

  const auto spans = Spans();
  ASSERT_EQ(spans.size(), 1u);
  const SpanData& span = *spans[0];
  EXPECT_EQ(span.GetName(), "P2P/Pull");
  EXPECT_EQ(span.GetSpanKind(), opentelemetry::trace::SpanKind::kServer);
  EXPECT_EQ(Hex(span.GetParentSpanId().Id()), "b7ad6b7169203331");
  EXPECT_EQ(Hex(span.GetTraceId().Id()), "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(Hex(span.GetSpanId().Id()), context.SpanIdHex());
  namespace nostd = opentelemetry::nostd;
  EXPECT_EQ(nostd::get<std::string>(span.GetAttributes().at("tc.lane")), "ucx");
  EXPECT_EQ(nostd::get<int64_t>(span.GetAttributes().at("tc.size.bytes")), 3);
  EXPECT_EQ(nostd::get<bool>(span.GetAttributes().at("tc.shared")), true);
  EXPECT_EQ(span.GetStatus(), opentelemetry::trace::StatusCode::kError);
  EXPECT_EQ(span.GetDescription(), "gone");
  ASSERT_EQ(span.GetLinks().size(), 1u);
  EXPECT_EQ(Hex(span.GetLinks()[0].GetSpanContext().span_id().Id()), "b7ad6b7169203331");
  ASSERT_EQ(span.GetEvents().size(), 1u);
  EXPECT_EQ(span.GetEvents()[0].GetName(), "exception");
}

TEST_F(BridgeTest, SpansEndedDuringShutdown_AreAllAccountedFor) {
  constexpr size_t kThreads = 4, kSpans = 500;
  const TraceContext none;
  TraceSink* const sink = bridge_->traces();
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (size_t i = 0; i < kSpans; ++i) {
        TraceContext context;
        sink->Start({.name = "A/B", .parent = &none}, context)->End({});
        if (i % 100 == 0) bridge_->Flush(std::chrono::seconds(20));
      }
    });
  }
  bridge_->Shutdown();
  for (std::thread& thread : threads) thread.join();
  const SignalCounters& traces = counters_.of(Signal::kTraces);
  EXPECT_EQ(traces.exported + traces.dropped() + static_cast<uint64_t>(traces.pending), kThreads * kSpans);
}

TEST_F(BridgeTest, LinkAddedAfterStart_IsExported) {
  const TraceContext none;
  TraceContext context;
  const auto record = bridge_->traces()->Start({.name = "A/B", .parent = &none}, context);
  const TraceContext other = TraceContext::NewRoot();
  record->AddLink({other});
  record->End({});
  const auto spans = Spans();
  ASSERT_EQ(spans.size(), 1u);
  ASSERT_EQ(spans[0]->GetLinks().size(), 1u);
  EXPECT_EQ(Hex(spans[0]->GetLinks()[0].GetSpanContext().trace_id().Id()), other.TraceIdHex());
}

TEST_F(BridgeTest, EveryMetricOfCatalogue_BecomesSeries) {
  std::vector<GaugeRegistration> registrations;
  for (size_t i = 0; i < MetricsCatalogue().size(); ++i) {
    const MetricInfo& info = MetricsCatalogue()[i];
    const auto id = static_cast<MetricId>(i);
    const std::vector<std::string_view> labels(info.label_count, "x");
    if (info.kind == MetricKind::kHistogram) {
      bridge_->metrics()->Record(id, 1.5, labels);
    } else if (info.kind == MetricKind::kGauge || info.kind == MetricKind::kObservedCounter) {
      registrations.push_back(
          internal::RegisterGauge(id, [labels](GaugeObserver& to) { to.Report(2.5, labels); }));
    } else {
      bridge_->metrics()->Add(id, 3, labels);
    }
  }
  bridge_->Shutdown();
  for (const MetricInfo& info : MetricsCatalogue()) {
    const LatestPoints::Series series = points_->Get(std::string(info.name));
    ASSERT_EQ(series.size(), 1u) << info.name;
    EXPECT_EQ(series.begin()->first.size(), info.label_count) << info.name;
    if (info.kind == MetricKind::kHistogram) {
      const auto& point =
          opentelemetry::nostd::get<opentelemetry::sdk::metrics::HistogramPointData>(series.begin()->second);
      EXPECT_EQ(point.boundaries_.size(), BucketBounds(info.buckets).size()) << info.name;
      EXPECT_EQ(opentelemetry::nostd::get<double>(point.sum_), 1.5) << info.name;
    } else if (info.kind == MetricKind::kCounter || info.kind == MetricKind::kUpDownCounter) {
      EXPECT_EQ(SumOf(series.begin()->second), 3) << info.name;
    }
  }
}

TEST_F(BridgeTest, Totals_ContinueAcrossCollections) {
  const std::string requests = "tc_rpc_requests_total", in_flight = "tc_rpc_in_flight";
  MetricSink& sink = *bridge_->metrics();
  const auto add = [&](int64_t calls, int64_t under_way) {
    sink.Add(metrics::kRpcRequests.id(), calls, Labels<3>{"server", "A/B", "OK"});
    sink.Add(metrics::kRpcInFlight.id(), under_way, Labels<2>{"server", ""});
    EXPECT_TRUE(bridge_->Flush(std::chrono::seconds(20)));
  };
  add(3, 2);
  EXPECT_THAT(Sums(requests), ElementsAre(3));
  EXPECT_THAT(Sums(in_flight), ElementsAre(2));
  add(2, -1);
  EXPECT_THAT(Sums(requests), ElementsAre(5));
  EXPECT_THAT(Sums(in_flight), ElementsAre(1));
  add(0, -1);
  EXPECT_THAT(Sums(requests), ElementsAre(5));
  EXPECT_THAT(Sums(in_flight), ElementsAre(0));
  EXPECT_EQ(points_->Get(in_flight).begin()->first.size(), 1u);  // without the empty label
}

// Past what the SDK keeps apart a total would grow with every collection.
TEST_F(BridgeTest, MoreSeriesThanLimit_AreCountedOnce) {
  constexpr int kSeries = 2100;
  for (int i = 0; i < kSeries; ++i) {
    const std::string label = std::to_string(i);
    bridge_->metrics()->Add(metrics::kTransfersCreated.id(), 1, Labels<1>{label});
  }
  for (int collection = 0; collection < 3; ++collection) {
    EXPECT_TRUE(bridge_->Flush(std::chrono::seconds(20)));
  }
  const std::vector<int64_t> sums = Sums("tc_transfers_created_total");
  EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), int64_t{0}), kSeries);
}

// `always_on` records whatever the parent says, `always_off` nothing.
TEST_F(BridgeTest, SamplerNotParentBased_DecidesForChildrenToo) {
  const auto sampled =
      TraceContext::FromTraceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "v=1");
  const auto unsampled =
      TraceContext::FromTraceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", "v=1");
  TraceContext context;
  Restart(SamplerKind::kAlwaysOn);
  EXPECT_NE(bridge_->traces()->Start({.name = "A/B", .parent = &*unsampled}, context), nullptr);
  EXPECT_TRUE(context.IsSampled());
  EXPECT_EQ(context.TraceIdHex(), unsampled->TraceIdHex());
  EXPECT_EQ(context.trace_state, "v=1");
  Restart(SamplerKind::kAlwaysOff);
  context = {};
  EXPECT_EQ(bridge_->traces()->Start({.name = "A/B", .parent = &*sampled}, context), nullptr);
  EXPECT_FALSE(context.IsSampled());
  EXPECT_EQ(context.TraceIdHex(), sampled->TraceIdHex());
  context = {};
  EXPECT_EQ(bridge_->traces()->Start({.name = "A/B", .parent = &*unsampled}, context), nullptr);
  EXPECT_EQ(context.SpanIdHex(), unsampled->SpanIdHex());  // passed on
}

}  // namespace
}  // namespace tensorcast::otel::sdk::bridge_test
