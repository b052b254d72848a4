// Collectors that are absent, refuse, hang or die: no caller waits for them, memory stays bounded, and
// every lost item is counted. A blocked caller would show as a test that never ends: exports may take an
// hour.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/log/log.h"
#include "otel/api/exporter_states.h"
#include "otel/api/metrics_catalogue.h"
#include "otel/api/span.h"
#include "otel/sdk/telemetry.h"
#include "otel/sdk/testing/collector.h"
#include "otel/sdk/testing/config.h"

namespace tensorcast::otel {
namespace {

using sdk::Signal;
using sdk::SignalCounters;
using tensorcast::otel::testing::OtelConfig;
using testing::Behaviour;
using testing::Collector;

constexpr absl::Duration kLong = absl::Seconds(60);
constexpr int kQueue = 500;

v1::OtelConfig Config(const std::string& endpoint) {
  v1::OtelConfig config = OtelConfig(
      "enabled: true timeout: '1h' batch_size: 100 batch_interval: '10ms' metric_interval: '50ms' "
      "shutdown_timeout: '300ms' resource_metrics: false");
  config.set_endpoint(endpoint);
  config.set_queue_size(kQueue);
  return config;
}

std::unique_ptr<Telemetry> Start(const v1::OtelConfig& config) {
  auto telemetry = InitTelemetry(config, "daemon");
  EXPECT_TRUE(telemetry.ok()) << telemetry.status();
  return *std::move(telemetry);
}

void MakeSpans(int count) {
  for (int i = 0; i < count; ++i) {
    Span span("A/B", TraceContext(), {{attr::kChunks, i}, {attr::kLane, "ucx"}});
  }
}

uint64_t ResidentBytes() {
  std::ifstream in("/proc/self/statm");
  uint64_t total = 0;
  uint64_t resident = 0;
  in >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// Everything that was made is exported, dropped or waiting.
void ExpectAllAccountedFor(const SignalCounters& signal, uint64_t made) {
  EXPECT_EQ(signal.exported + signal.dropped() + static_cast<uint64_t>(signal.pending), made);
}

TEST(Robustness, HangingCollector_BlocksNoCallerAndCountsLosses) {
  auto collector = *Collector::Start();
  collector->SetBehaviour(Behaviour::kHang);
  auto telemetry = Start(Config(collector->endpoint()));
  MakeSpans(5000);
  for (int i = 0; i < 2000; ++i) LOG(INFO) << "line " << i;
  const SignalCounters& traces = telemetry->counters().of(Signal::kTraces);
  const SignalCounters& logs = telemetry->counters().of(Signal::kLogs);
  EXPECT_LE(traces.pending, kQueue);
  EXPECT_LE(logs.pending, kQueue);
  EXPECT_GE(traces.dropped_queue_full, 5000u - 2 * kQueue);
  EXPECT_GE(logs.dropped_queue_full, 2000u - 2 * kQueue);
  ExpectAllAccountedFor(traces, 5000);
  telemetry->Shutdown();  // gives up after 300 ms; the stuck exports are left behind
}

TEST(Robustness, RecoveredCollector_ReceivesQueuedSpans) {
  auto collector = *Collector::Start();
  collector->SetBehaviour(Behaviour::kHang);
  auto telemetry = Start(Config(collector->endpoint()));
  MakeSpans(2000);
  ASSERT_TRUE(collector->WaitFor(kLong, [&] { return collector->calls() > 0; }));
  collector->SetBehaviour(Behaviour::kAccept);
  const SignalCounters& traces = telemetry->counters().of(Signal::kTraces);
  ASSERT_TRUE(collector->WaitFor(kLong, [&] { return traces.pending == 0; }));
  EXPECT_EQ(traces.exported + traces.dropped_queue_full, 2000u);
  EXPECT_EQ(collector->spans().size(), traces.exported);
  EXPECT_GE(traces.exported, 100u);
}

TEST(Robustness, RefusingCollector_LossesAppearInMetrics) {
  auto collector = *Collector::Start();
  collector->SetBehaviour(Behaviour::kRefuse);
  v1::OtelConfig config = Config(collector->endpoint());
  config.set_retry_for("300ms");
  auto telemetry = Start(config);
  const SignalCounters& traces = telemetry->counters().of(Signal::kTraces);
  MakeSpans(50);
  ASSERT_TRUE(collector->WaitFor(kLong, [&] { return traces.dropped_export_failed == 50u; }));
  collector->SetBehaviour(Behaviour::kAccept);
  ASSERT_TRUE(collector->WaitFor(kLong, [&] {
    for (const ReceivedMetric& metric : collector->metrics()) {
      if (metric.name == "tc_telemetry_dropped_total" && metric.labels.at("reason") == "export_failed" &&
          metric.labels.at("signal") == "traces" && metric.value == 50) {
        return true;
      }
    }
    return false;
  }));
  EXPECT_GT(telemetry->counters().sdk_errors, 0u) << "the SDK's own complaints are counted, too";
}

TEST(Robustness, RefusedForTheMoment_SpansAndLogsAreSentAgain) {
  auto collector = *Collector::Start();
  collector->SetBehaviour(Behaviour::kRefuse);
  v1::OtelConfig config = Config(collector->endpoint());
  config.set_retry_for("1h");
  config.set_metric_interval("1h");
  auto telemetry = Start(config);
  MakeSpans(50);
  LOG(INFO) << "a line that must not be lost";
  ASSERT_TRUE(collector->WaitFor(kLong, [&] { return collector->calls() >= 4; }))
      << "both signals, and again";
  collector->SetBehaviour(Behaviour::kAccept);
  ASSERT_TRUE(collector->WaitFor(
      kLong, [&] { return collector->spans().size() == 50 && !collector->logs().empty(); }));
  for (const Signal signal : {Signal::kTraces, Signal::kLogs}) {
    EXPECT_GT(telemetry->counters().of(signal).export_failures, 0u);
    EXPECT_EQ(telemetry->counters().of(signal).dropped(), 0u);
  }
}

TEST(Robustness, RejectedForGood_SpansAreNotSentAgain) {
  auto collector = *Collector::Start();
  collector->SetBehaviour(Behaviour::kReject);
  v1::OtelConfig config = Config(collector->endpoint());
  config.set_retry_for("1h");
  config.set_metrics(false);
  config.set_logs(false);
  auto telemetry = Start(config);
  MakeSpans(50);
  const SignalCounters& traces = telemetry->counters().of(Signal::kTraces);
  // Not by the collector's wait: nothing arrives after the rejected call that would end it.
  while (traces.pending > 0) std::this_thread::yield();
  EXPECT_EQ(traces.dropped_export_failed, 50u);
  EXPECT_EQ(traces.export_failures, static_cast<uint64_t>(collector->calls()));
}

TEST(Robustness, ExporterStates_TellLastErrorAndDropsPerSignal) {
  EXPECT_THAT(ExporterStates(), ::testing::IsEmpty()) << "telemetry is off";
  auto collector = *Collector::Start();
  collector->SetBehaviour(Behaviour::kReject);
  v1::OtelConfig config = Config(collector->endpoint());
  config.set_metrics(false);
  auto telemetry = Start(config);
  MakeSpans(50);
  const SignalCounters& traces = telemetry->counters().of(Signal::kTraces);
  while (traces.pending > 0) std::this_thread::yield();
  std::vector<ExporterState> states = ExporterStates();
  ASSERT_EQ(states.size(), 2u);
  EXPECT_EQ(states[0].signal, "traces");
  EXPECT_EQ(states[0].endpoint, collector->endpoint());
  EXPECT_THAT(states[0].error, ::testing::HasSubstr("spans over gRPC"));
  EXPECT_EQ(states[0].dropped, 50u);
  EXPECT_EQ(states[1].signal, "logs");

  collector->SetBehaviour(Behaviour::kAccept);
  MakeSpans(1);
  ASSERT_TRUE(collector->WaitFor(kLong, [&] { return collector->spans().size() == 1; }));
  while (traces.pending > 0) std::this_thread::yield();
  states = ExporterStates();
  EXPECT_EQ(states[0].error, "") << "the last export succeeded";
  EXPECT_EQ(states[0].dropped, 50u);
  telemetry->Shutdown();
  EXPECT_THAT(ExporterStates(), ::testing::IsEmpty());
}

TEST(Robustness, RefusingCollector_DoesNotDelayShutdown) {
  auto collector = *Collector::Start();
  collector->SetBehaviour(Behaviour::kRefuse);
  v1::OtelConfig config = Config(collector->endpoint());
  config.set_retry_for("1h");
  config.set_shutdown_timeout("1h");
  auto telemetry = Start(config);
  MakeSpans(50);
  ASSERT_TRUE(collector->WaitFor(kLong, [&] { return collector->calls() > 0; }));
  telemetry->Shutdown();  // or this test takes an hour
  ExpectAllAccountedFor(telemetry->counters().of(Signal::kTraces), 50);
  EXPECT_EQ(telemetry->counters().of(Signal::kTraces).dropped(), 50u);
}

TEST(Robustness, CollectorRestarts_IsUsedAgainAndLossesCounted) {
  auto collector = *Collector::Start();
  const std::string endpoint = collector->endpoint();
  auto telemetry = Start(Config(endpoint));
  const SignalCounters& traces = telemetry->counters().of(Signal::kTraces);
  MakeSpans(10);
  ASSERT_TRUE(collector->WaitFor(kLong, [&] { return collector->spans().size() == 10; }));
  collector = nullptr;
  MakeSpans(10);
  EXPECT_FALSE(telemetry->Flush(absl::ZeroDuration()));
  collector = *Collector::Start(endpoint.substr(std::string("http://").size()));
  // gRPC connects again in its own time; what is made meanwhile may be lost, and is counted.
  uint64_t made = 20;
  ASSERT_TRUE(collector->WaitFor(kLong, [&] {
    MakeSpans(1);
    ++made;
    return !collector->spans().empty();
  }));
  telemetry->Shutdown();
  ExpectAllAccountedFor(traces, made);
}

TEST(Robustness, CollectorAway_DelaysNeitherWorkNorShutdown) {
  for (const char* exporter : {"otlp_grpc", "otlp_http"}) {
    v1::OtelConfig config = Config("127.0.0.1:1");
    config.set_exporter(exporter);
    auto telemetry = Start(config);
    MakeSpans(1000);
    metrics::kTicketsExpired.Add(1);
    telemetry->Shutdown();
    ExpectAllAccountedFor(telemetry->counters().of(Signal::kTraces), 1000);
    EXPECT_EQ(telemetry->counters().of(Signal::kTraces).exported, 0u);
  }
}

TEST(Robustness, MillionSpansWithHangingCollector_DoNotGrowProcess) {
  auto collector = *Collector::Start();
  collector->SetBehaviour(Behaviour::kHang);
  auto telemetry = Start(Config(collector->endpoint()));
  MakeSpans(100'000);
  const uint64_t before = ResidentBytes();
  MakeSpans(900'000);
  const uint64_t after = ResidentBytes();
  EXPECT_LT(after, before + (16 << 20));
  ExpectAllAccountedFor(telemetry->counters().of(Signal::kTraces), 1'000'000);
}

}  // namespace
}  // namespace tensorcast::otel
