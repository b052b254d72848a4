// A cluster in one process with telemetry through the OpenTelemetry SDK to a real OTLP collector. Each
// acceptance criterion and each compatibility line of the observability design has a test named after it;
// `tensorcast otel-smoke` does the same with one process per role.
#pragma once

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/steady_time.h"
#include "gtest/gtest.h"
#include "otel/sdk/telemetry.h"
#include "otel/sdk/testing/collector.h"
#include "otel/sdk/testing/config.h"
#include "tests/integration/test_cluster.h"

namespace tensorcast::testing {

using otel::ReceivedEvent;
using otel::ReceivedLog;
using otel::ReceivedMetric;
using otel::ReceivedSpan;
using otel::testing::Collector;
using otel::testing::OtelConfig;

inline constexpr absl::Duration kArrival = absl::Seconds(30);  // only a hang takes longer

// The spans of one trace, by name.
using Trace = std::multimap<std::string, ReceivedSpan>;

inline std::set<std::string> NamesOf(const Trace& trace) {
  std::set<std::string> names;
  for (const auto& [name, span] : trace) names.insert(name);
  return names;
}

inline const ReceivedSpan& Only(const Trace& trace, const std::string& name) {
  static const ReceivedSpan none;
  EXPECT_EQ(trace.count(name), 1) << name;
  const auto found = trace.find(name);
  return found != trace.end() ? found->second : none;
}

inline std::vector<ReceivedEvent> EventsNamed(const ReceivedSpan& span, std::string_view name) {
  std::vector<ReceivedEvent> events;
  std::ranges::copy_if(span.events, std::back_inserter(events),
                       [&](const auto& e) { return e.name == name; });
  return events;
}

// Flips a byte of a replica in the daemon's memory without notice.
inline void Damage(TestNode& node, const std::string& replica_id) {
  auto lease = node.server().engine().LeaseReplica(replica_id);
  ASSERT_TRUE(lease.ok()) << lease.status();
  HostSpan byte = (*lease)->memory().host->Spans(kTestChunkBytes, 1).front();
  byte[0] ^= std::byte{1};
}

class TelemetryFixture : public ::testing::Test {
 protected:
  TelemetryFixture() : collector_(*Collector::Start()) {}

  void Start(v1::OtelConfig config) {
    config.set_endpoint(collector_->endpoint());
    config.set_batch_interval("20ms");
    config.set_metric_interval("1h");  // AwaitMetrics collects
    auto telemetry = otel::InitTelemetry(config, "daemon");
    ASSERT_TRUE(telemetry.ok()) << telemetry.status();
    telemetry_ = *std::move(telemetry);
  }
  void StartAll() { Start(OtelConfig("enabled: true queue_size: 65536")); }

  client::PutResult Import(TestNode& node, const TestArtifact& artifact,
                           const client::PutOptions& options = {}) {
    auto put = node.client().Import(Soon(), cluster_.WriteModel("model", artifact), options);
    EXPECT_TRUE(put.ok()) << put.status();
    return put.ok() ? *put : client::PutResult{};
  }

  Trace TraceOf(const RequestContext& context) const {
    Trace trace;
    for (const ReceivedSpan& span : collector_->spans()) {
      if (span.trace_id == context.trace.TraceIdHex()) trace.emplace(span.name, span);
    }
    return trace;
  }
  // The request's trace once it is complete: it has these spans, and the parent of every span. (An answered
  // call ends before its caller's span, so its span may arrive first.)
  Trace AwaitTrace(const RequestContext& context, const std::vector<std::string>& names) const {
    Trace trace;
    EXPECT_TRUE(collector_->WaitFor(kArrival, [&] {
      trace = TraceOf(context);
      return IsWhole(trace, context) &&
             std::ranges::all_of(names, [&](const std::string& name) { return trace.contains(name); });
    })) << ::testing::PrintToString(NamesOf(trace));
    return trace;
  }
  static bool IsWhole(const Trace& trace, const RequestContext& context) {
    std::set<std::string> parents = {"", context.trace.SpanIdHex()};
    for (const auto& [name, span] : trace) parents.insert(span.span_id);
    return std::ranges::all_of(trace,
                               [&](const auto& s) { return parents.contains(s.second.parent_span_id); });
  }

  // Waits for a log line with this text that names the request's trace.
  bool AwaitLog(const RequestContext& context, std::string_view text) const {
    return collector_->WaitFor(kArrival, [&] {
      return std::ranges::any_of(collector_->logs(), [&](const ReceivedLog& log) {
        return absl::StrContains(log.body, text) && log.trace_id == context.trace.TraceIdHex();
      });
    });
  }

  std::set<std::string> MetricNames() const {
    std::set<std::string> names;
    for (const ReceivedMetric& metric : collector_->metrics()) names.insert(metric.name);
    return names;
  }
  // The latest value of a series, summed over the series that have all of these labels.
  double Metric(const std::string& name, const otel::StringMap& labels) const {
    double sum = 0;
    for (const ReceivedMetric& metric : collector_->metrics()) {
      const bool matches = std::ranges::all_of(labels, [&](const auto& label) {
        const auto found = metric.labels.find(label.first);
        return found != metric.labels.end() && found->second == label.second;
      });
      if (metric.name == name && matches) sum += metric.value;
    }
    return sum;
  }
  // Collects until `arrived` holds. The SDK's interval limits each collection to half of the interval, which
  // a busy machine can miss repeatedly if it is short.
  bool AwaitMetrics(const std::function<bool()>& arrived) const {
    const SteadyTime deadline = SteadyNow() + kArrival;
    while (SteadyNow() < deadline) {
      telemetry_->Flush(kArrival);
      if (collector_->WaitFor(absl::Milliseconds(50), arrived)) return true;
    }
    return false;
  }
  ::testing::AssertionResult AwaitMetric(const std::string& name, const otel::StringMap& labels,
                                         double min = 1) const {
    if (AwaitMetrics([&] { return Metric(name, labels) >= min; })) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure()
           << name << " " << ::testing::PrintToString(labels) << " is " << Metric(name, labels);
  }

  std::unique_ptr<Collector> collector_;
  std::unique_ptr<otel::Telemetry> telemetry_;  // ends after the cluster, and exports the cluster's last data
  TestCluster cluster_;
};

class AcceptanceCriteria : public TelemetryFixture {};
class Compatibility : public TelemetryFixture {};

}  // namespace tensorcast::testing
