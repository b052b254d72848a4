// OTLP over HTTP, against a collector that knows just enough of HTTP/1.1 to take the posts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "absl/log/log.h"
#include "base/steady_time.h"
#include "otel/api/metrics_catalogue.h"
#include "otel/api/span.h"
#include "otel/sdk/telemetry.h"
#include "otel/sdk/testing/collector.h"
#include "otel/sdk/testing/config.h"
#include "otel/sdk/testing/http_collector.h"
#include "otlp_subset.pb.h"

namespace tensorcast::otel {
namespace {

using tensorcast::otel::testing::Collector;
using tensorcast::otel::testing::HttpCollector;
using tensorcast::otel::testing::OtelConfig;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::unique_ptr<Telemetry> Start(const std::string& endpoint, const std::string& more = "") {
  v1::OtelConfig config = OtelConfig(
      "enabled: true exporter: 'otlp_http' headers: 'x-team=infra' metric_interval: '1h' shutdown_timeout: "
      "'60s' resource_metrics: false " +
      more);
  config.set_endpoint(endpoint);
  auto telemetry = InitTelemetry(config, "daemon");
  EXPECT_TRUE(telemetry.ok()) << telemetry.status();
  return *std::move(telemetry);
}

TEST(HttpExporter, HttpExporter_PostsEachSignalToItsPath) {
  HttpCollector server({"200 OK"});
  auto telemetry = Start(server.endpoint() + "/base/");
  Span("A/B").End();
  LOG(INFO) << "over HTTP";
  telemetry->Shutdown();
  auto posts = server.posts();
  EXPECT_EQ(posts["/base/v1/traces"].headers["content-type"], "application/x-protobuf");
  EXPECT_EQ(posts["/base/v1/traces"].headers["x-team"], "infra");
  otlp::TraceRequest traces;
  ASSERT_TRUE(traces.ParseFromString(posts["/base/v1/traces"].body));
  EXPECT_EQ(traces.resource_spans(0).scope_spans(0).spans(0).name(), "A/B");
  otlp::LogsRequest logs;
  ASSERT_TRUE(logs.ParseFromString(posts["/base/v1/logs"].body));
  EXPECT_EQ(logs.resource_logs(0).scope_logs(0).log_records(0).body().text(), "over HTTP");
  EXPECT_EQ(posts.count("/base/v1/metrics"), 1u);
  EXPECT_EQ(telemetry->counters().of(sdk::Signal::kTraces).exported, 1u);
}

TEST(HttpExporter, ErrorResponse_CountsAsLossAndIsNotRetried) {
  HttpCollector server({"400 Bad Request"});
  auto telemetry = Start(server.endpoint());
  Span("A/B").End();
  const sdk::SignalCounters& traces = telemetry->counters().of(sdk::Signal::kTraces);
  EXPECT_FALSE(telemetry->Flush(absl::ZeroDuration()));
  while (traces.pending > 0) std::this_thread::yield();
  EXPECT_EQ(traces.exported, 0u);
  EXPECT_EQ(traces.dropped_export_failed, 1u);
  EXPECT_EQ(server.count("/v1/traces"), 1u);
}

TEST(HttpExporter, MetricsRefusedForTheMoment_AreSentAgain) {
  HttpCollector server({"503 Service Unavailable", "429 Too Many Requests", "200 OK"});
  auto telemetry = Start(server.endpoint());
  EXPECT_TRUE(telemetry->Flush(absl::Seconds(60)));
  // The reader collects once when it starts and once at its end, too: after it nothing is on its way.
  telemetry->Shutdown();
  const sdk::SignalCounters& metrics = telemetry->counters().of(sdk::Signal::kMetrics);
  EXPECT_GE(metrics.exported, 1u);
  EXPECT_EQ(metrics.export_failures, 2u);
  EXPECT_EQ(metrics.dropped(), 0u);
  EXPECT_EQ(server.count("/v1/metrics"), metrics.exported + 2);
}

TEST(HttpExporter, SpansAndLogsRefusedForTheMoment_AreSentAgain) {
  HttpCollector server({"503 Service Unavailable", "429 Too Many Requests", "200 OK"});
  auto telemetry = Start(server.endpoint());
  Span("A/B").End();
  LOG(INFO) << "sent again";
  EXPECT_TRUE(telemetry->Flush(absl::Seconds(60)));
  for (const sdk::Signal signal : {sdk::Signal::kTraces, sdk::Signal::kLogs}) {
    const sdk::SignalCounters& counters = telemetry->counters().of(signal);
    EXPECT_EQ(counters.exported, 1u);
    EXPECT_EQ(counters.export_failures, 2u);
    EXPECT_EQ(counters.dropped(), 0u);
  }
  EXPECT_EQ(server.count("/v1/traces"), 3u);
  EXPECT_EQ(server.count("/v1/logs"), 3u);
  otlp::TraceRequest traces;
  ASSERT_TRUE(traces.ParseFromString(server.posts()["/v1/traces"].body));
  EXPECT_EQ(traces.resource_spans(0).scope_spans(0).spans(0).name(), "A/B") << "whole at the last try, too";
}

TEST(HttpExporter, RetryAfter_DelaysTheRetry) {
  HttpCollector server({"503 Service Unavailable\r\nRetry-After: 1", "200 OK"});
  auto telemetry = Start(server.endpoint());
  const SteadyTime start = SteadyNow();
  Span("A/B").End();
  EXPECT_TRUE(telemetry->Flush(absl::Seconds(60)));
  EXPECT_GE(SteadyNow() - start, absl::Seconds(1));
  EXPECT_EQ(telemetry->counters().of(sdk::Signal::kTraces).exported, 1u);
}

// retry_for is 10 s.
TEST(HttpExporter, RetryAfterBeyondRetryTime_DropsAtOnce) {
  HttpCollector server({"503 Service Unavailable\r\nRetry-After: Wed, 01 Jan 2300 00:00:00 GMT"});
  auto telemetry = Start(server.endpoint(), "metrics: false");
  Span("A/B").End();
  (void)telemetry->Flush(absl::Seconds(60));
  EXPECT_EQ(telemetry->counters().of(sdk::Signal::kTraces).dropped_export_failed, 1u);
  EXPECT_EQ(server.count("/v1/traces"), 1u);
}

TEST(HttpExporter, Shutdown_ExportsOnceWithoutRetry) {
  HttpCollector server({"503 Service Unavailable", "200 OK"});
  auto telemetry = Start(server.endpoint());
  Span("A/B").End();
  telemetry->Shutdown();
  EXPECT_EQ(telemetry->counters().of(sdk::Signal::kTraces).dropped(), 1u);
  EXPECT_EQ(server.count("/v1/traces"), 1u);
}

TEST(HttpExporter, CollectorAway_CountsAsLossAfterRetryTime) {
  std::string endpoint;
  {
    endpoint = HttpCollector({"200 OK"}).endpoint();
  }
  auto telemetry = Start(endpoint, "retry_for: '300ms'");
  Span("A/B").End();
  (void)telemetry->Flush(absl::Seconds(60));
  const sdk::SignalCounters& traces = telemetry->counters().of(sdk::Signal::kTraces);
  EXPECT_EQ(traces.dropped_export_failed, 1u);
  EXPECT_GE(traces.export_failures, 2u);
}

// What is wrong is the protocol, not the collector: the error names the setting.
TEST(HttpExporter, GrpcToHttpCollector_NamesTheSettingToChange) {
  HttpCollector http({"200 OK"});
  v1::OtelConfig config = OtelConfig("enabled: true exporter: 'otlp_grpc' metrics: false logs: false");
  config.set_endpoint(http.endpoint());
  auto telemetry = *InitTelemetry(config, "daemon");
  Span("A/B").End();
  telemetry->Shutdown();
  EXPECT_EQ(telemetry->counters().of(sdk::Signal::kTraces).dropped(), 1u);
  EXPECT_THAT(telemetry->Advice(),
              AllOf(HasSubstr("over gRPC"), HasSubstr("set observability.otel.exporter to otlp_http"),
                    HasSubstr("OTEL_EXPORTER_OTLP_PROTOCOL to http/protobuf")));
}

TEST(HttpExporter, HttpToGrpcCollector_NamesTheSettingToChange) {
  const auto grpc = *Collector::Start();
  auto telemetry = Start(grpc->endpoint(), "metrics: false logs: false");
  Span("A/B").End();
  telemetry->Shutdown();
  EXPECT_EQ(telemetry->counters().of(sdk::Signal::kTraces).dropped(), 1u);
  EXPECT_THAT(telemetry->Advice(),
              AllOf(HasSubstr("over HTTP"), HasSubstr("set observability.otel.exporter to otlp_grpc"),
                    HasSubstr("OTEL_EXPORTER_OTLP_PROTOCOL to grpc")));
}

TEST(HttpExporter, AcceptingCollector_GivesNoAdvice) {
  HttpCollector http({"200 OK"});
  auto telemetry = Start(http.endpoint());
  Span("A/B").End();
  telemetry->Shutdown();
  EXPECT_EQ(telemetry->Advice(), "");
}

// The SDK as it is packaged cannot, says so in its log with each export, and sends what it has as it is.
TEST(HttpExporter, CompressionOverHttp_IsRefusedAtInit) {
  const v1::OtelConfig config = OtelConfig("enabled: true exporter: 'otlp_http' compression: 'gzip'");
  const absl::Status refused = InitTelemetry(config, "daemon").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("observability.otel.compression"));
}

}  // namespace
}  // namespace tensorcast::otel
