#include "cli/commands/telemetry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/log/initialize.h"
#include "absl/log/log.h"
#include "absl/strings/match.h"
#include "base/testing/temp_folder.h"
#include "otel/api/span.h"
#include "proto/config.pb.h"

namespace tensorcast::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

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
