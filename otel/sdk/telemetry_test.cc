#include "otel/sdk/telemetry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/log/log.h"
#include "absl/status/status.h"
#include "base/steady_time.h"
#include "otel/api/metrics_catalogue.h"
#include "otel/api/trace_macros.h"
#include "otel/sdk/testing/collector.h"
#include "otel/sdk/testing/config.h"

namespace tensorcast::otel {
namespace {

using tensorcast::otel::testing::OtelConfig;
using testing::Collector;
using ::testing::ElementsAre;
using ::testing::Pair;

constexpr absl::Duration kLong = absl::Seconds(30);

class TelemetryTest : public ::testing::Test {
 protected:
  TelemetryTest() : collector_(*Collector::Start()) {}

  v1::OtelConfig Config() const {
    v1::OtelConfig config =
        OtelConfig("enabled: true batch_interval: '20ms' metric_interval: '400ms' resource_metrics: false");
    config.set_endpoint(collector_->endpoint());
    return config;
  }
  void Start(const v1::OtelConfig& config) {
    auto telemetry = InitTelemetry(config, "daemon");
    ASSERT_TRUE(telemetry.ok()) << telemetry.status();
    telemetry_ = *std::move(telemetry);
  }
  // The span of this name; waits for it.
  ReceivedSpan Span(const std::string& name) {
    std::optional<ReceivedSpan> found;
    EXPECT_TRUE(collector_->WaitFor(kLong, [&] {
      for (const ReceivedSpan& span : collector_->spans()) {
        if (span.name == name) found = span;
      }
      return found.has_value();
    })) << name;
    return found.value_or(ReceivedSpan());
  }
  ReceivedMetric Metric(const std::string& name, const StringMap& labels, double min) {
    std::optional<ReceivedMetric> found;
    EXPECT_TRUE(collector_->WaitFor(kLong, [&] {
      for (const ReceivedMetric& metric : collector_->metrics()) {
        if (metric.name == name && metric.labels == labels && metric.value >= min) found = metric;
      }
      return found.has_value();
    })) << name;
    return found.value_or(ReceivedMetric());
  }

  std::unique_ptr<Collector> collector_;
  std::unique_ptr<Telemetry> telemetry_;
};

TEST_F(TelemetryTest, Request_BecomesOneTraceWithAttributesLinksAndErrors) {
  Start(Config());
  const RequestContext request = RequestContext::Background();
  const auto other = TraceContext::FromTraceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
  {
    RequestContext context = request;
    otel::Span root("Client/Get", context, {{attr::kLocation, "gpu"}}, {.kind = SpanKind::kClient});
    root.AttachTo(&context);
    const SpanLink links[] = {{*other, {{attr::kReason, "retry"}}}};
    otel::Span child("StoreEngine/P2PIngest", context, {{attr::kSizeBytes, 7}}, {.links = links});
    child.AddEvent("refetch", {{attr::kReason, "timeout"}, {attr::kAttempt, 2}});
    child.SetError(absl::UnavailableError("the peer is gone \xff"));
  }
  const ReceivedSpan root = Span("Client/Get");
  const ReceivedSpan child = Span("StoreEngine/P2PIngest");
  EXPECT_EQ(root.trace_id, request.trace.TraceIdHex()) << "the trace that the request was given";
  EXPECT_EQ(root.parent_span_id, "") << "no phantom above the root";
  EXPECT_EQ(root.kind, 3);
  EXPECT_THAT(root.attributes, ElementsAre(Pair("tc.location", "gpu")));
  EXPECT_FALSE(root.error);
  EXPECT_EQ(child.trace_id, root.trace_id);
  EXPECT_EQ(child.parent_span_id, root.span_id);
  EXPECT_EQ(child.attributes.at("tc.size.bytes"), "7");
  EXPECT_EQ(child.attributes.at("error.type"), "UNAVAILABLE");
  EXPECT_TRUE(child.error);
  EXPECT_EQ(child.status_message, "the peer is gone ?");
  ASSERT_EQ(child.links.size(), 1u);
  EXPECT_EQ(child.links[0].trace_id, other->TraceIdHex());
  EXPECT_EQ(child.links[0].span_id, other->SpanIdHex());
  EXPECT_THAT(child.links[0].attributes, ElementsAre(Pair("tc.reason", "retry")));
  ASSERT_EQ(child.events.size(), 2u);
  EXPECT_EQ(child.events[0].name, "refetch");
  EXPECT_EQ(child.events[0].attributes.at("tc.attempt"), "2");
  EXPECT_EQ(child.events[1].name, "exception");
  EXPECT_LE(child.start, child.end);
}

TEST_F(TelemetryTest, FilePathsInErrors_AreHiddenUnlessConfigured) {
  const absl::Status error = absl::InvalidArgumentError("import /etc/shadow: open /etc/shadow: not a model");
  const auto tell = [&](const v1::OtelConfig& config, const std::string& name) {
    Start(config);
    {
      otel::Span span(name);
      span.SetError(error);
    }
    const ReceivedSpan span = Span(name);
    telemetry_ = nullptr;
    return std::pair(span.status_message, span.events.at(0).attributes.at("exception.message"));
  };
  v1::OtelConfig config = Config();
  const auto hidden = tell(config, "A/Hidden");
  EXPECT_EQ(hidden.first, "import <path>: open <path>: not a model");
  EXPECT_EQ(hidden.second, hidden.first);
  config.set_file_paths(true);
  EXPECT_EQ(tell(config, "A/Shown").second, error.message());
}

TEST_F(TelemetryTest, Resource_NamesServiceAndUserAttributes) {
  v1::OtelConfig config = Config();
  config.set_service_name("my store");
  config.add_resource_attributes("deployment.environment=test");
  config.add_headers("x-team=infra");
  config.set_compression("gzip");
  Start(config);
  otel::Span("A/B").End();
  const StringMap resource = Span("A/B").resource;
  EXPECT_EQ(resource.at("service.name"), "my store");
  EXPECT_EQ(resource.at("tc.role"), "daemon");
  EXPECT_EQ(resource.at("deployment.environment"), "test");
  EXPECT_FALSE(resource.at("service.instance.id").empty());
  EXPECT_EQ(collector_->last_headers().at("x-team"), "infra");
}

TEST_F(TelemetryTest, SpanWithGivenTimes_KeepsThem) {
  Start(Config());
  const absl::Time start = absl::FromUnixMicros(1700000000000001);
  otel::Span span("P2P/Pull", TraceContext(), {}, {.start = FromWallTime(start)});
  span.End(FromWallTime(start + absl::Milliseconds(1500)));
  const ReceivedSpan received = Span("P2P/Pull");
  EXPECT_EQ(received.start, start);
  EXPECT_EQ(received.end, start + absl::Milliseconds(1500));
}

TEST_F(TelemetryTest, TraceMacroScopes_BecomeSpans) {
  Start(Config());
  {
    SC_TRACE_SCOPE("Disk/Read");
    SC_TRACE_ATTRIBUTE(attr::kChunks, 4);
    SC_TRACE_SCOPE("Disk/Inner");
    SC_TRACE_EVENT("hit");
  }
  EXPECT_EQ(Span("Disk/Inner").parent_span_id, Span("Disk/Read").span_id);
  EXPECT_EQ(Span("Disk/Read").attributes.at("tc.chunks"), "4");
  EXPECT_EQ(Span("Disk/Inner").events.at(0).name, "hit");
}

TEST_F(TelemetryTest, SpanLimits_DropAndCountWhatExceedsThem) {
  v1::OtelConfig config = Config();
  config.set_max_span_attributes(2);
  config.set_max_span_events(1);
  config.set_max_attribute_bytes(4);
  config.set_max_span_links(2);
  Start(config);
  {
    const SpanLink links[] = {{TraceContext::NewRoot()}};
    otel::Span span("A/B", TraceContext(), {{attr::kLane, "longer"}}, {.links = links});
    span.AddLink(TraceContext::NewRoot());
    span.AddLink(TraceContext::NewRoot());
    span.SetAttribute(attr::kStage, "fetch");
    span.SetAttribute(attr::kChunks, 1);
    span.AddEvent("one");
    span.AddEvent("two");
  }
  const ReceivedSpan span = Span("A/B");
  EXPECT_THAT(span.attributes, ElementsAre(Pair("tc.lane", "long"), Pair("tc.stage", "fetc")));
  EXPECT_EQ(span.events.size(), 1u);
  EXPECT_EQ(span.links.size(), 2u);
  EXPECT_EQ(span.dropped_attributes, 1u) << "what was cut is counted";
  EXPECT_EQ(span.dropped_events, 1u);
  EXPECT_EQ(span.dropped_links, 1u);
}

TEST_F(TelemetryTest, ReservedSpan_HasItsIdsBeforeItStarts) {
  Start(Config());
  const RequestContext request = RequestContext::Background();
  otel::Span root("Client/Get", request);
  const TraceContext reserved = ReserveSpan(root.context());
  otel::Span("P2P/Connect", reserved).End();
  otel::Span("StoreEngine/P2PIngest", root.context(), {}, {.reserved = &reserved}).End();
  const TraceContext alone = ReserveSpan(TraceContext());
  otel::Span("StoreEngine/Ingest", TraceContext(), {}, {.reserved = &alone}).End();
  root.End();
  const ReceivedSpan ingest = Span("StoreEngine/P2PIngest");
  EXPECT_EQ(ingest.span_id, reserved.SpanIdHex());
  EXPECT_EQ(ingest.parent_span_id, Span("Client/Get").span_id);
  EXPECT_EQ(Span("P2P/Connect").parent_span_id, ingest.span_id);
  EXPECT_EQ(Span("StoreEngine/Ingest").trace_id, alone.TraceIdHex()) << "a root, too";
  EXPECT_EQ(Span("StoreEngine/Ingest").parent_span_id, "");
}

// Whether it is recorded is decided when it is reserved, as for what is made at once.
TEST_F(TelemetryTest, ReservedSpanOfUnsampledTrace_IsNotRecorded) {
  v1::OtelConfig config = Config();
  config.set_sampling_ratio(0);
  Start(config);
  const TraceContext reserved = ReserveSpan(TraceContext::NewRoot());
  EXPECT_FALSE(reserved.IsSampled());
  EXPECT_FALSE(otel::Span("A/B", TraceContext(), {}, {.reserved = &reserved}).recording());
}

TEST(ReservedSpan, ReservedSpanWithoutTracing_IsItsParent) {
  const TraceContext parent = TraceContext::NewRoot();
  EXPECT_EQ(ReserveSpan(parent), parent);
}

TEST_F(TelemetryTest, AllAttributes_ExportsAttributesNotOnList) {
  v1::OtelConfig config = Config();
  config.set_all_attributes(true);
  Start(config);
  otel::Span("A/B", TraceContext(), {{"anything", 1}}).End();
  EXPECT_EQ(Span("A/B").attributes.at("anything"), "1");
}

// With a ratio of 0 only spans with a sampled parent are recorded; one of them ends the wait.
TEST_F(TelemetryTest, ParentRatioSampler_FollowsParentElseRatio) {
  v1::OtelConfig config = Config();
  config.set_sampling_ratio(0);
  Start(config);
  const auto sampled =
      TraceContext::FromTraceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "v=1");
  const auto unsampled =
      TraceContext::FromTraceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00");
  {
    RequestContext context = RequestContext::Background();
    otel::Span root("A/Root", context);
    EXPECT_FALSE(root.recording());
    EXPECT_FALSE(root.context().IsSampled());
    EXPECT_EQ(root.context().trace_id, context.trace.trace_id);
    root.AttachTo(&context);
    EXPECT_FALSE(otel::Span("A/UnderRoot", context).recording()) << "the decision is taken once";
    EXPECT_FALSE(otel::Span("A/Unsampled", *unsampled).recording());
    otel::Span("A/Sampled", *sampled, {}, {.kind = SpanKind::kServer}).End();
  }
  const ReceivedSpan received = Span("A/Sampled");
  EXPECT_EQ(received.parent_span_id, sampled->SpanIdHex());
  EXPECT_EQ(received.trace_state, "v=1");
  EXPECT_EQ(collector_->spans().size(), 1u);
}

TEST_F(TelemetryTest, Metrics_ArriveWithUnitsLabelsAndBuckets) {
  Start(Config());
  metrics::kP2pBytes.Add(100, {"ucx", "receive"});
  metrics::kP2pBytes.Add(50, {"ucx", "receive"});
  metrics::kRpcInFlight.Add(3, {"server", "S/M"});
  metrics::kRpcInFlight.Add(-1, {"server", "S/M"});
  metrics::kTransferWaitSeconds.Record(0.25, {"gpu"});
  metrics::kTransferWaitSeconds.Record(0.5, {"gpu"});
  const GaugeRegistration gauge = metrics::kPoolUsedBytes.Observe([](auto& observer) {
    observer.Observe(42, {"cpu", ""});
    observer.Observe(43, {"gpu", "0"});
  });

  const ReceivedMetric bytes = Metric("tc_p2p_bytes_total", {{"direction", "receive"}, {"lane", "ucx"}}, 150);
  EXPECT_EQ(bytes.value, 150);
  EXPECT_EQ(bytes.unit, "By");
  EXPECT_EQ(bytes.kind, ReceivedMetric::Kind::kCounter);
  EXPECT_FALSE(bytes.description.empty());
  const ReceivedMetric in_flight = Metric("tc_rpc_in_flight", {{"method", "S/M"}, {"side", "server"}}, 2);
  EXPECT_EQ(in_flight.value, 2);
  EXPECT_EQ(in_flight.kind, ReceivedMetric::Kind::kUpDownCounter);
  const ReceivedMetric wait = Metric("tc_transfer_wait_seconds", {{"location", "gpu"}}, 0.75);
  EXPECT_EQ(wait.count, 2u);
  EXPECT_EQ(wait.bounds, std::vector<double>(BucketBounds(Buckets::kSeconds).begin(),
                                             BucketBounds(Buckets::kSeconds).end()));
  EXPECT_EQ(Metric("tc_pool_used_bytes", {{"location", "cpu"}}, 1).value, 42);
  EXPECT_EQ(Metric("tc_pool_used_bytes", {{"device", "0"}, {"location", "gpu"}}, 1).kind,
            ReceivedMetric::Kind::kGauge);
}

TEST_F(TelemetryTest, ExportedAndDroppedSpans_AreCountedInMetrics) {
  Start(Config());
  for (int i = 0; i < 5; ++i) otel::Span("A/B").End();
  EXPECT_EQ(Metric("tc_telemetry_exported_total", {{"signal", "traces"}}, 5).value, 5);
  EXPECT_EQ(Metric("tc_telemetry_dropped_total", {{"reason", "queue_full"}, {"signal", "traces"}}, 0).value,
            0);
}

TEST_F(TelemetryTest, LogLineInSpan_CarriesItsIds) {
  Start(Config());
  std::string trace_id;
  std::string span_id;
  {
    ScopedSpan span("A/B");
    trace_id = span->context().TraceIdHex();
    span_id = span->context().SpanIdHex();
    EXPECT_EQ(CurrentTraceId(), trace_id);
    LOG(WARNING) << "inside";
  }
  LOG(INFO) << "outside";
  std::vector<ReceivedLog> logs;
  ASSERT_TRUE(collector_->WaitFor(kLong, [&] { return (logs = collector_->logs()).size() >= 2; }));
  EXPECT_EQ(logs[0].body, "inside");
  EXPECT_EQ(logs[0].severity, 13);
  EXPECT_EQ(logs[0].trace_id, trace_id);
  EXPECT_EQ(logs[0].span_id, span_id);
  EXPECT_THAT(logs[0].attributes.at("code.file.path"), ::testing::HasSubstr("telemetry_test.cc"));
  EXPECT_FALSE(logs[0].attributes.at("code.line.number").empty());
  EXPECT_EQ(logs[1].severity, 9);
  EXPECT_EQ(logs[1].trace_id, "");
}

TEST_F(TelemetryTest, SignalSwitchedOff_IsNotSent) {
  v1::OtelConfig config = Config();
  config.set_traces(false);
  config.set_logs(false);
  Start(config);
  EXPECT_FALSE(otel::Span("A/B").recording());
  LOG(INFO) << "unsent";
  metrics::kTicketsExpired.Add(1);
  EXPECT_EQ(Metric("tc_tickets_expired_total", {}, 1).value, 1);
  telemetry_->Shutdown();
  EXPECT_TRUE(collector_->spans().empty());
  EXPECT_TRUE(collector_->logs().empty());
}

TEST_F(TelemetryTest, Shutdown_SendsTheRestAndThenNothing) {
  v1::OtelConfig config = Config();
  config.set_batch_interval("1h");
  config.set_metric_interval("1h");
  Start(config);
  otel::Span late("A/Late");
  otel::Span("A/B").End();
  metrics::kTicketsExpired.Add(2);
  LOG(INFO) << "the rest";
  telemetry_->Shutdown();
  EXPECT_FALSE(IsTelemetryEnabled());
  EXPECT_EQ(collector_->spans().size(), 1u);
  EXPECT_EQ(collector_->logs().size(), 1u);
  EXPECT_EQ(Metric("tc_tickets_expired_total", {}, 2).value, 2);
  late.End();
  metrics::kTicketsExpired.Add(1);
  telemetry_->Shutdown();
  EXPECT_TRUE(telemetry_->Flush(absl::Seconds(1)));
  EXPECT_EQ(collector_->spans().size(), 1u);
  EXPECT_EQ(telemetry_->counters().of(sdk::Signal::kTraces).dropped_shutdown, 1u);
}

TEST_F(TelemetryTest, Flush_SendsPendingSpans) {
  v1::OtelConfig config = Config();
  config.set_batch_interval("1h");
  config.set_metric_interval("1h");
  Start(config);
  otel::Span("A/B").End();
  EXPECT_TRUE(telemetry_->Flush(kLong));
  EXPECT_EQ(collector_->spans().size(), 1u);
}

TEST_F(TelemetryTest, SecondInit_FailsUntilTheFirstEnds) {
  Start(Config());
  EXPECT_EQ(InitTelemetry(Config(), "daemon").status().code(), absl::StatusCode::kFailedPrecondition);
  telemetry_ = nullptr;
  Start(Config());
  otel::Span("A/Again").End();
  EXPECT_EQ(Span("A/Again").name, "A/Again");
}

TEST_F(TelemetryTest, ConsoleExporter_WritesToStderr) {
  std::stringstream text;
  std::streambuf* const before = std::cerr.rdbuf(text.rdbuf());
  Start(OtelConfig("enabled: true exporter: 'console' resource_metrics: false"));
  otel::Span("A/OnConsole").End();
  metrics::kTicketsExpired.Add(1);
  LOG(INFO) << "line on the console";
  telemetry_->Shutdown();
  std::cerr.rdbuf(before);
  EXPECT_THAT(text.str(), ::testing::HasSubstr("A/OnConsole"));
  EXPECT_THAT(text.str(), ::testing::HasSubstr("tc_tickets_expired_total"));
  EXPECT_THAT(text.str(), ::testing::HasSubstr("line on the console"));
}

TEST_F(TelemetryTest, EmptyConfig_DisablesTelemetryAndWrongValueFails) {
  Start({});
  EXPECT_FALSE(telemetry_->enabled());
  EXPECT_FALSE(IsTelemetryEnabled());
  EXPECT_FALSE(otel::Span("A/B").recording());
  EXPECT_EQ(InitTelemetry(OtelConfig("sampling_ratio: 2"), "daemon").status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tensorcast::otel
