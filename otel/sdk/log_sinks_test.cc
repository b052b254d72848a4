#include "otel/sdk/log_sinks.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/log/initialize.h"
#include "absl/log/log.h"
#include "absl/log/log_sink_registry.h"
#include "otel/api/span.h"
#include "otel/sdk/telemetry.h"
#include "otel/sdk/testing/collector.h"
#include "otel/sdk/testing/config.h"

namespace tensorcast::otel {
namespace {

using tensorcast::otel::testing::OtelConfig;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kLong = absl::Seconds(30);
constexpr char kTraceparent[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

// Formats what is logged while it lives.
class FormattingSink final : public absl::LogSink {
 public:
  FormattingSink(LogFormat format, const TraceContext& trace) : format_(format), trace_(trace) {
    absl::AddLogSink(this);
  }
  ~FormattingSink() override { absl::RemoveLogSink(this); }
  void Send(const absl::LogEntry& entry) override { lines.push_back(FormatLogLine(entry, trace_, format_)); }
  std::vector<std::string> lines;

 private:
  const LogFormat format_;
  const TraceContext trace_;
};

TEST(LogFormat, TextLineInTrace_EndsWithItsIds) {
  FormattingSink sink(LogFormat::kText, *TraceContext::FromTraceparent(kTraceparent));
  LOG(WARNING) << "slow peer";
  EXPECT_THAT(sink.lines.at(0), HasSubstr("log_sinks_test.cc"));
  EXPECT_THAT(sink.lines.at(0),
              EndsWith("slow peer trace=0af7651916cd43dd8448eb211c80319c span=b7ad6b7169203331\n"));
}

TEST(LogFormat, ControlCharactersInText_AreEscaped) {
  FormattingSink sink(LogFormat::kText, {});
  LOG(INFO) << "from a\nW1122 00:00:00.000000 1 forged.cc:1] forged \x1b[2J\r";
  EXPECT_THAT(sink.lines.at(0),
              EndsWith("from a\\nW1122 00:00:00.000000 1 forged.cc:1] forged \\x1b[2J\\x0d\n"));
}

TEST(LogFormat, LineOutsideTrace_HasNoIds) {
  FormattingSink text(LogFormat::kText, {});
  FormattingSink json(LogFormat::kJson, {});
  LOG(INFO) << "plain";
  EXPECT_THAT(text.lines.at(0), EndsWith("plain\n"));
  EXPECT_FALSE(nlohmann::json::parse(json.lines.at(0)).contains("trace_id"));
}

TEST(LogFormat, JsonLog_IsOneValidObjectPerLine) {
  FormattingSink sink(LogFormat::kJson, *TraceContext::FromTraceparent(kTraceparent));
  LOG(ERROR) << "quote \" newline \n tab \t byte \xff";
  ASSERT_EQ(sink.lines.size(), 1u);
  EXPECT_EQ(sink.lines[0].find('\n'), sink.lines[0].size() - 1);
  const nlohmann::json line = nlohmann::json::parse(sink.lines[0]);
  EXPECT_EQ(line["severity"], "ERROR");
  EXPECT_EQ(line["message"], "quote \" newline \n tab \t byte ?");
  EXPECT_EQ(line["file"], "log_sinks_test.cc");
  EXPECT_GT(line["line"], 0);
  EXPECT_EQ(line["trace_id"], "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(line["span_id"], "b7ad6b7169203331");
  EXPECT_THAT(line["time"].get<std::string>(), EndsWith("Z"));
}

// What the process writes to stderr while `work` runs.
template <class Work>
std::string CaptureStderr(const Work& work) {
  const std::string path = ::testing::TempDir() + "/stderr" + std::to_string(getpid());
  const int saved = dup(STDERR_FILENO);
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
  dup2(file, STDERR_FILENO);
  work();
  dup2(saved, STDERR_FILENO);
  close(saved);
  close(file);
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  unlink(path.c_str());
  return text.str();
}

TEST(StderrLog, StderrLogInstalledTwice_UsesTheLastFormatAndLevel) {
  absl::InitializeLog();  // before it, Abseil shows everything on stderr
  const std::string json = CaptureStderr([] {
    InstallStderrLog(LogFormat::kText, absl::LogSeverity::kInfo);
    InstallStderrLog(LogFormat::kJson, absl::LogSeverity::kWarning);
    LOG(INFO) << "too little";
    LOG(WARNING) << "enough";
  });
  EXPECT_EQ(nlohmann::json::parse(json)["message"], "enough") << "one line, or it would not parse";
  const std::string text = CaptureStderr([] {
    InstallStderrLog(LogFormat::kText, absl::LogSeverity::kInfo);
    LOG(INFO) << "text again";
  });
  EXPECT_THAT(text, EndsWith("text again\n"));
  EXPECT_THAT(text, Not(HasSubstr("{")));
}

TEST(StderrLogDeathTest, FatalLineWithJson_IsJsonWithStack) {
  const auto die = [] {
    absl::InitializeLog();
    InstallStderrLog(LogFormat::kJson, absl::LogSeverity::kInfo);
    LOG(FATAL) << "no way on";
  };
  // Every line is an object; the message comes before the stack is walked, which may fail.
  EXPECT_DEATH(die(),
               "\\{\"time\":[^\n]*\"severity\":\"FATAL\",\"message\":\"no way on\"[^\n]*\\}\n"
               "\\{\"time\":[^\n]*\"no way on\"[^\n]*\"stack\":\"[^\n]*\\}\n");
}

class TelemetryLogTest : public ::testing::Test {
 protected:
  TelemetryLogTest() : collector_(*testing::Collector::Start()) {}
  void Start(const std::string& level) {
    v1::OtelConfig config = OtelConfig("enabled: true metrics: false batch_interval: '20ms'");
    config.set_endpoint(collector_->endpoint());
    config.set_log_level(level);
    auto telemetry = InitTelemetry(config, "daemon");
    ASSERT_TRUE(telemetry.ok()) << telemetry.status();
    telemetry_ = *std::move(telemetry);
  }
  std::unique_ptr<testing::Collector> collector_;
  std::unique_ptr<Telemetry> telemetry_;
};

TEST_F(TelemetryLogTest, LinesBelowLogLevel_AreNotSent) {
  Start("error");
  LOG(WARNING) << "not this";
  LOG(ERROR) << "this";
  ASSERT_TRUE(collector_->WaitFor(kLong, [&] { return !collector_->logs().empty(); }));
  telemetry_->Shutdown();
  ASSERT_EQ(collector_->logs().size(), 1u);
  EXPECT_EQ(collector_->logs()[0].body, "this");
}

TEST_F(TelemetryLogTest, OtherLogSinks_StillSeeEveryLine) {
  Start("info");
  FormattingSink other(LogFormat::kText, {});
  LOG(INFO) << "shared";
  EXPECT_EQ(other.lines.size(), 1u);
  ASSERT_TRUE(collector_->WaitFor(kLong, [&] { return !collector_->logs().empty(); }));
}

// Were they sent, each would fail to be sent and be logged again, for ever.
TEST_F(TelemetryLogTest, LinesAboutTelemetry_AreNotSent) {
  Start("info");
  {
    const AboutTelemetry about;
    const AboutTelemetry nested;
    LOG(WARNING) << "telemetry is in trouble";
  }
  LOG(INFO) << "other";
  telemetry_->Shutdown();
  ASSERT_EQ(collector_->logs().size(), 1u);
  EXPECT_EQ(collector_->logs()[0].body, "other");
}

}  // namespace
}  // namespace tensorcast::otel
