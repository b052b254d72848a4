#include "otel/sdk/receiver/received_telemetry.h"

#include <gtest/gtest.h>

#include "otlp_subset.pb.h"

namespace tensorcast::otel {
namespace {

constexpr char kTraces[] = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
constexpr char kMetrics[] = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";
constexpr char kLogs[] = "/opentelemetry.proto.collector.logs.v1.LogsService/Export";
constexpr char kNoMessage[] = "\xff\xff\xff";

std::string OneSpan() {
  otlp::TraceRequest request;
  request.add_resource_spans()->add_scope_spans()->add_spans()->set_name("a");
  return request.SerializeAsString();
}

// A gauge of a process with one point.
std::string OnePoint(const std::string& process, double value) {
  otlp::MetricsRequest request;
  auto* const metrics = request.add_resource_metrics();
  auto* const id = metrics->mutable_resource()->add_attributes();
  id->set_key("service.instance.id");
  id->mutable_value()->set_text(process);
  auto* const metric = metrics->add_scope_metrics()->add_metrics();
  metric->set_name("m");
  metric->mutable_gauge()->add_data_points()->set_as_double(value);
  return request.SerializeAsString();
}

TEST(ReceivedTelemetry, InvalidOtlp_IsRefused) {
  ReceivedTelemetry received;
  for (const char* method : {kTraces, kMetrics, kLogs}) {
    EXPECT_FALSE(received.Take(method, kNoMessage)) << method;
  }
  EXPECT_FALSE(received.Take("/tensorcast.v1.GlobalStore/BindKey", ""));
  EXPECT_TRUE(received.spans().empty());
}

TEST(ReceivedTelemetry, Metrics_LatestPointPerSeriesAndProcessIsKept) {
  ReceivedTelemetry received;
  for (const double value : {1.0, 2.0}) EXPECT_TRUE(received.Take(kMetrics, OnePoint("p", value)));
  EXPECT_TRUE(received.Take(kMetrics, OnePoint("q", 3)));
  const std::vector<ReceivedMetric> metrics = received.metrics();
  ASSERT_EQ(metrics.size(), 2u);
  EXPECT_EQ(metrics[0].value, 2);
  EXPECT_EQ(metrics[1].value, 3);
}

TEST(ReceivedTelemetry, ReceiverOfMetricsOnly_AcceptsAndIgnoresOtherSignals) {
  ReceivedTelemetry all;
  EXPECT_TRUE(all.Take(kTraces, OneSpan()));
  EXPECT_EQ(all.spans().size(), 1u);
  ReceivedTelemetry metrics(ReceivedTelemetry::Keep::kMetrics);
  EXPECT_TRUE(metrics.Take(kTraces, OneSpan()));
  EXPECT_TRUE(metrics.Take(kLogs, kNoMessage));
  EXPECT_TRUE(metrics.spans().empty());
  EXPECT_TRUE(metrics.Take(kMetrics, OnePoint("p", 1)));
  EXPECT_EQ(metrics.metrics().size(), 1u);
}

}  // namespace
}  // namespace tensorcast::otel
