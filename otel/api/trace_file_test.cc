#include "otel/api/trace_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "base/steady_time.h"
#include "otel/api/trace_macros.h"

namespace tensorcast::otel::trace_file_test {
namespace {

using nlohmann::json;

class TraceFileTest : public ::testing::Test {
 protected:
  std::string path() const {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    return ::testing::TempDir() + "/" + info->name() + std::to_string(getpid()) + ".json";
  }
  ~TraceFileTest() override { std::filesystem::remove(path()); }

  json Read() const {
    std::ifstream in(path());
    return json::parse(in);
  }
  static std::vector<json> OfPhase(const json& events, const std::string& phase) {
    std::vector<json> found;
    for (const json& event : events) {
      if (event["ph"] == phase) found.push_back(event);
    }
    return found;
  }
};

TEST_F(TraceFileTest, TraceMacroScopes_BecomeNestedSlicesWithAttributes) {
  auto file = TraceFile::Open(path(), {.process_name = "a \"daemon\""});
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(IsTelemetryEnabled());
  {
    SC_TRACE_SCOPE("Disk/Read");
    SC_TRACE_ATTRIBUTE(attr::kSizeBytes, 42);
    SC_TRACE_ATTRIBUTE(attr::kReason, "quote \" newline \n end");
    SC_TRACE_SCOPE("Disk/Inner");
    SC_TRACE_EVENT("hit", {attr::kChunks, 3});
    SC_TRACE_ERROR(absl::DataLossError("bad chunk"));
  }
  ASSERT_TRUE((*file)->Close().ok());
  EXPECT_FALSE(IsTracing());

  const json events = Read();
  EXPECT_EQ(events[0]["args"]["name"], "a \"daemon\"");
  const std::vector<json> slices = OfPhase(events, "X");
  ASSERT_EQ(slices.size(), 2u);
  const json& inner = slices[0];
  const json& outer = slices[1];
  EXPECT_EQ(outer["name"], "Disk/Read");
  EXPECT_EQ(outer["cat"], "Disk");
  EXPECT_EQ(outer["args"]["tc.size.bytes"], 42);
  EXPECT_EQ(outer["args"]["tc.reason"], "quote \" newline \n end");
  EXPECT_EQ(inner["args"]["trace_id"], outer["args"]["trace_id"]);
  EXPECT_EQ(inner["args"]["parent_span_id"], outer["args"]["span_id"]);
  EXPECT_EQ(inner["args"]["error.type"], "DATA_LOSS");
  EXPECT_EQ(inner["tid"], outer["tid"]);
  EXPECT_GE(inner["ts"].get<double>(), outer["ts"].get<double>());
  const double inner_end = inner["ts"].get<double>() + inner["dur"].get<double>();
  EXPECT_LE(inner_end, outer["ts"].get<double>() + outer["dur"].get<double>() + 0.01);
  ASSERT_EQ(OfPhase(events, "i").size(), 1u);
  EXPECT_EQ(OfPhase(events, "i")[0]["args"]["tc.chunks"], 3);
}

TEST_F(TraceFileTest, SpanEndedOnOtherThread_IsPairWithItsOwnTimes) {
  auto file = TraceFile::Open(path());
  ASSERT_TRUE(file.ok());
  const TraceContext other = TraceContext::NewRoot();
  const SpanLink links[] = {{other}};
  Span span("P2P/Pull", TraceContext(), {}, {.links = links, .start = SteadyTime() + absl::Seconds(100)});
  std::thread([&] { span.End(SteadyTime() + absl::Seconds(101)); }).join();
  ASSERT_TRUE((*file)->Close().ok());
  const json events = Read();
  const json begin = OfPhase(events, "b").at(0);
  const json end = OfPhase(events, "e").at(0);
  EXPECT_EQ(begin["id"], end["id"]);
  EXPECT_EQ(begin["ts"].get<double>(), 100e6);
  EXPECT_EQ(end["ts"].get<double>(), 101e6);
  EXPECT_EQ(begin["args"]["link.0"], other.TraceIdHex() + "/" + other.SpanIdHex());
}

TEST_F(TraceFileTest, ManyThreads_WriteOneValidFile) {
  auto file = TraceFile::Open(path(), {.max_buffered_bytes = 64 << 20});
  ASSERT_TRUE(file.ok());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 500; ++i) SC_TRACE_SCOPE("A/B");
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE((*file)->Close().ok());
  EXPECT_EQ(OfPhase(Read(), "X").size(), 2000u);
}

TEST_F(TraceFileTest, EventsBeyondBufferLimit_AreDroppedAndCounted) {
  auto file = TraceFile::Open(path(), {.max_buffered_bytes = 300});
  ASSERT_TRUE(file.ok());
  for (int i = 0; i < 10; ++i) SC_TRACE_SCOPE("A/B");
  EXPECT_GT((*file)->dropped_events(), 0u);
  ASSERT_TRUE((*file)->Close().ok());
  const json events = Read();
  EXPECT_EQ(events.back()["args"]["count"], (*file)->dropped_events());
  EXPECT_EQ(OfPhase(events, "X").size() + (*file)->dropped_events(), 10u);
}

TEST_F(TraceFileTest, SpanEndedAfterClose_IsNotWritten) {
  Span span;
  {
    auto file = TraceFile::Open(path());
    ASSERT_TRUE(file.ok());
    span = Span("A/B");
  }
  span.End();
  EXPECT_TRUE(OfPhase(Read(), "b").empty());
}

TEST_F(TraceFileTest, FifoWithoutReader_IsAnError) {
  ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
  EXPECT_FALSE(TraceFile::Open(path()).ok());
}

TEST_F(TraceFileTest, TraceFileNotCreatableOrWritable_ReturnsError) {
  const auto missing = TraceFile::Open("/nonexistent-folder/trace.json");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(missing.status().message(), ::testing::HasSubstr("/nonexistent-folder/trace.json"));
  auto full = TraceFile::Open("/dev/full");
  ASSERT_TRUE(full.ok());
  EXPECT_EQ((*full)->Close().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace tensorcast::otel::trace_file_test
