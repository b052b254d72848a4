#include "cli/commands/telemetry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "absl/log/initialize.h"
#include "absl/log/log.h"
#include "absl/strings/match.h"
#include "base/steady_time.h"
#include "base/testing/eventually.h"
#include "base/testing/temp_folder.h"
#include "otel/api/metrics_catalogue.h"
#include "otel/api/span.h"
#include "otel/sdk/testing/collector.h"
#include "proto/config.pb.h"

namespace tensorcast::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using otel::testing::Behaviour;
using otel::testing::Collector;

CommonFlags FlagsWith(std::vector<std::string> sets) { return {.sets = std::move(sets)}; }

TEST(StartTelemetry, WithoutTelemetryFlags_NoSpanIsMade) {
  const auto telemetry = StartTelemetry(FlagsWith({}), "client");
  ASSERT_TRUE(telemetry.ok()) << telemetry.status();
  EXPECT_EQ(telemetry->trace_file, nullptr);
  otel::ScopedSpan span("Command/Test", TraceContext());
  EXPECT_FALSE(otel::CurrentContext().IsValid()) << "a span was made";
}

TEST(StartTelemetry, TraceFile_HasSpansOfFinishedCommand) {
  const tensorcast::testing::TempFolder folder;
  CommonFlags flags;
  flags.trace_file = folder.path() + "/trace.json";
  {
    const auto telemetry = StartTelemetry(flags, "client");
    ASSERT_TRUE(telemetry.ok()) << telemetry.status();
    otel::ScopedSpan span("Command/Test", TraceContext());
  }
  std::ifstream file(flags.trace_file);
  const nlohmann::json events = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(events.is_array()) << events.dump();
  EXPECT_TRUE(absl::StrContains(events.dump(), "Command/Test")) << events.dump();
  EXPECT_TRUE(absl::StrContains(events.dump(), "tensorcast client")) << events.dump();
}

TEST(StartTelemetry, InvalidTelemetrySetting_ErrorNamesKey) {
  const auto refused = [](std::vector<std::string> sets) {
    return std::string(StartTelemetry(FlagsWith(std::move(sets)), "client").status().message());
  };
  EXPECT_THAT(refused({"observability.trace_file=/no/such/folder/t.json"}),
              HasSubstr("observability.trace_file: "));
  EXPECT_THAT(refused({"observability.otel.enabled=true", "observability.otel.endpoint=foo"}),
              HasSubstr("observability.otel.endpoint: \"foo\""));
}

// What a process of the role does: telemetry around some work.
void RunProcess(const std::string& endpoint, std::string_view role,
                const otel::ResourceAttributes& resource = {}) {
  CommonFlags flags = FlagsWith({"observability.otel.resource_metrics=false"});
  flags.otlp_endpoint = endpoint;
  absl::StatusOr<CommandTelemetry> telemetry = StartTelemetry(flags, role, resource);
  ASSERT_TRUE(telemetry.ok()) << telemetry.status();
  {
    otel::ScopedSpan span("Command/Test", TraceContext());
    LOG(INFO) << "a line";
  }
  otel::metrics::kTicketsExpired.Add(1);
  EXPECT_TRUE(telemetry->telemetry->Flush(absl::Seconds(30)));
  EndCommandTelemetry(*telemetry);
}

// The resource attributes that the collector's file makes labels of.
std::set<std::string> ChosenAttributes() {
  std::ifstream in(TENSORCAST_COLLECTOR_FILE);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  std::smatch list;
  std::set<std::string> chosen;
  if (!std::regex_search(text, list, std::regex(R"(keep_keys\(resource\.attributes, \[([^\]]*)\]\))"))) {
    return chosen;
  }
  const std::string names = list[1];
  const std::regex name("\"([^\"]+)\"");
  for (std::sregex_iterator it(names.begin(), names.end(), name), end; it != end; ++it) {
    chosen.insert((*it)[1]);
  }
  return chosen;
}

// The series that Prometheus would keep.
size_t CountSeries(const Collector& collector) {
  const std::set<std::string> chosen = ChosenAttributes();
  EXPECT_THAT(chosen, ::testing::Contains("service.instance.id"));
  std::set<std::pair<std::string, otel::StringMap>> series;
  for (const otel::ReceivedMetric& metric : collector.metrics()) {
    otel::StringMap labels = metric.labels;
    for (const auto& [key, value] : metric.resource) {
      if (chosen.contains(key)) labels[key] = value;
    }
    series.emplace(metric.name, labels);
  }
  return series.size();
}

TEST(Cardinality, TwoHundredCommands_AddNoSeries) {
  const auto collector = *Collector::Start();
  for (int i = 0; i < 200; ++i) RunProcess(collector->endpoint(), "client");
  EXPECT_EQ(collector->spans().size(), 200u);
  EXPECT_EQ(collector->logs().size(), 200u);
  EXPECT_EQ(CountSeries(*collector), 0u);
}

TEST(Cardinality, TwentyRestartsOfServer_AddNoSeries) {
  const auto collector = *Collector::Start();
  // Each process has another id of the system's; the node's stays.
  const auto start = [&](int process) {
    RunProcess(
        collector->endpoint(), "daemon",
        {{"service.instance.id", "node-1"}, {"tc.node.name", "a"}, {"process.pid", std::to_string(process)}});
  };
  start(0);
  const size_t of_one = CountSeries(*collector);
  EXPECT_GT(of_one, 0u);
  for (int i = 1; i <= 20; ++i) start(i);
  EXPECT_EQ(CountSeries(*collector), of_one);
}

using Condition = std::function<bool(const otel::Telemetry&)>;
bool HasTrouble(const otel::Telemetry& telemetry) { return !telemetry.Advice().empty(); }

// How long a command's telemetry takes to end once `ready` holds of it, and what it prints.
std::pair<absl::Duration, std::string> EndAgainst(const std::string& endpoint, const Condition& ready) {
  CommonFlags flags = FlagsWith({"observability.otel.batch_interval=1ms"});
  flags.otlp_endpoint = endpoint;
  absl::StatusOr<CommandTelemetry> telemetry = StartTelemetry(flags, "client");
  EXPECT_TRUE(telemetry.ok()) << telemetry.status();
  if (!telemetry.ok()) return {};
  {
    otel::ScopedSpan span("Command/Test", TraceContext());
  }
  EXPECT_TRUE(tensorcast::testing::Eventually([&] { return ready(*telemetry->telemetry); }));
  ::testing::internal::CaptureStderr();
  const SteadyTime before = SteadyNow();
  EndCommandTelemetry(*telemetry);
  return {SteadyNow() - before, ::testing::internal::GetCapturedStderr()};
}

size_t Warnings(const std::string& output) {
  size_t count = 0;
  for (size_t at = output.find("warning: telemetry: "); at != output.npos;
       at = output.find("warning: telemetry: ", at + 1)) {
    ++count;
  }
  return count;
}

TEST(EndCommandTelemetry, HangingCollector_TakesHalfASecondAndIsOneWarning) {
  const auto collector = *Collector::Start();
  collector->SetBehaviour(Behaviour::kHang);
  const auto [took, output] =
      EndAgainst(collector->endpoint(), [&](auto&) { return collector->calls() > 0; });
  EXPECT_LT(took, absl::Seconds(2)) << "half a second, and what a busy machine adds";
  EXPECT_GE(took, absl::Milliseconds(300)) << "it waits for a slow collector";
  EXPECT_EQ(Warnings(output), 1u) << output;
  EXPECT_THAT(output, HasSubstr("the collector did not accept all telemetry within 300ms"));
}

TEST(EndCommandTelemetry, RefusedPort_IsOneWarningThatNamesTheSetting) {
  const auto [took, output] = EndAgainst("http://127.0.0.1:1", HasTrouble);
  EXPECT_LT(took, absl::Seconds(2));
  EXPECT_EQ(Warnings(output), 1u) << output;
  EXPECT_THAT(output, HasSubstr("1 spans and log lines were not sent"));
  EXPECT_THAT(output, HasSubstr("check that the collector is up at observability.otel.endpoint"));
}

// A collector without TLS is to a client that wants TLS what a wrong authority is: the handshake fails.
TEST(EndCommandTelemetry, HandshakeFails_WarningNamesCaFile) {
  const auto collector = *Collector::Start();
  const std::string address = collector->endpoint().substr(std::string("http://").size());
  const auto [took, output] = EndAgainst("https://" + address, HasTrouble);
  EXPECT_LT(took, absl::Seconds(2));
  EXPECT_EQ(Warnings(output), 1u) << output;
  EXPECT_THAT(output, HasSubstr("observability.otel.tls.ca_file"));
}

TEST(EndCommandTelemetry, CollectorTakesAll_PrintsNothing) {
  const auto collector = *Collector::Start();
  const auto [took, output] =
      EndAgainst(collector->endpoint(), [&](auto&) { return collector->spans().size() == 1; });
  EXPECT_THAT(output, IsEmpty());
  EXPECT_EQ(collector->spans().size(), 1u);
}

TEST(CommonFlags, OtlpEndpointFlag_SetsConfigurationKeys) {
  CommonFlags flags;
  flags.otlp_endpoint = "http://collector:4317";
  const auto config = LoadConfig(flags);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->observability().otel().enabled());
  EXPECT_EQ(config->observability().otel().endpoint(), "http://collector:4317");
}

// Log lines as a server writes them to stderr.
class ApplyLogConfigTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { absl::InitializeLog(); }
  ~ApplyLogConfigTest() override { Apply("info", "text"); }
  static void Apply(const std::string& level, const std::string& format) {
    v1::LogConfig config;
    config.set_level(level);
    config.set_format(format);
    ApplyLogConfig(config);
  }
  static std::string TwoLines() {
    ::testing::internal::CaptureStderr();
    LOG(INFO) << "a small thing";
    LOG(WARNING) << "a larger thing";
    return ::testing::internal::GetCapturedStderr();
  }
};

TEST_F(ApplyLogConfigTest, LogLinesBelowLevel_AreNotWritten) {
  Apply("warning", "text");
  const std::string lines = TwoLines();
  EXPECT_THAT(lines, Not(HasSubstr("a small thing")));
  EXPECT_THAT(lines, HasSubstr("a larger thing"));
  Apply("error", "text");
  EXPECT_THAT(TwoLines(), IsEmpty());
}

TEST_F(ApplyLogConfigTest, LogFormatJson_WritesOneObjectPerLine) {
  Apply("info", "json");
  std::istringstream lines(TwoLines());
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_TRUE(nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false).is_object()) << line;
  }
  EXPECT_EQ(count, 2);
}

}  // namespace
}  // namespace tensorcast::cli
