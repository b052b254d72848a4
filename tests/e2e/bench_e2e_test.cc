// Every benchmark in its smoke mode, as the command that users run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "tools/workshop/cluster/local_cluster.h"
#include "tools/workshop/cluster/process.h"

namespace tensorcast::bench {
namespace {

struct Outcome {
  int code = -1;
  std::string out;
  std::string error;  // the last lines of stderr
};

// stdout alone goes to a file by the shell: progress is on stderr.
Outcome RunCommand(const std::string& arguments) {
  const auto directory = TemporaryDirectory::Create("tensorcast-bench-test");
  if (!directory.ok()) return {};
  const std::string out = (*directory)->path() + "/out", log = (*directory)->path() + "/log";
  const auto process = Process::Start(
      {.argv = {"/bin/sh", "-c", absl::StrCat("exec '", TENSORCAST_BINARY, "' ", arguments, " >'", out, "'")},
       .log_path = log});
  if (!process.ok()) return {.out = std::string(process.status().message())};
  const auto code = (*process)->Wait(SteadyNow() + absl::Minutes(4));
  std::stringstream text;
  text << std::ifstream(out).rdbuf();
  if (!code.ok() || *code != 0) std::fprintf(stderr, "%s\n", FileTail(log, 30).c_str());
  return {.code = code.value_or(-1), .out = text.str(), .error = FileTail(log, 30)};
}

class SmokeTest : public ::testing::TestWithParam<const char*> {};

TEST_P(SmokeTest, BenchSmoke_PrintsRowsWithAllFields) {
  const Outcome outcome = RunCommand(absl::StrCat("bench ", GetParam(), " --smoke --json"));
  ASSERT_EQ(outcome.code, 0) << outcome.out;
  const nlohmann::json rows = nlohmann::json::parse(outcome.out, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(rows.is_array()) << outcome.out;
  ASSERT_FALSE(rows.empty());
  for (const nlohmann::json& row : rows) {
    for (const char* field : {"bench", "lane", "bytes", "value", "unit", "reference_name", "reference_value",
                              "ratio", "runs", "spread"}) {
      EXPECT_TRUE(row.contains(field)) << field << " in " << row.dump();
    }
    EXPECT_EQ(row["bench"], GetParam());
    // The growth of a process's memory may well be nothing, or less.
    if (row["unit"] != "MiB") {
      EXPECT_GT(row["value"], 0) << row.dump();
    }
  }
}

class TlsSmokeTest : public ::testing::TestWithParam<const char*> {};

TEST_P(TlsSmokeTest, BenchSmokeWithTls_ComparesWithClearText) {
  const Outcome outcome = RunCommand(absl::StrCat("bench ", GetParam(), " --tls --smoke --json"));
  ASSERT_EQ(outcome.code, 0) << outcome.out;
  const nlohmann::json rows = nlohmann::json::parse(outcome.out, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(rows.is_array()) << outcome.out;
  EXPECT_TRUE(std::ranges::any_of(rows, [](const nlohmann::json& row) {
    return row["reference_name"].is_string() &&
           row["reference_name"].get<std::string>().starts_with("the same in clear");
  })) << rows.dump();
}

class FleetSmokeTest : public ::testing::TestWithParam<const char*> {};

TEST_P(FleetSmokeTest, GlobalStoreKilledInBench_AllNodesReturn) {
  const Outcome outcome =
      RunCommand(absl::StrCat("bench control --nodes 50 --replicas 3 --smoke --json ", GetParam()));
  ASSERT_EQ(outcome.code, 0) << outcome.out;
  const nlohmann::json rows = nlohmann::json::parse(outcome.out, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(rows.is_array()) << outcome.out;
  std::map<std::string, double> values;
  for (const nlohmann::json& row : rows) values[row["metric"].get<std::string>()] = row["value"];
  EXPECT_GT(values["all back"], 0) << rows.dump();
  EXPECT_LT(values["all back"], 100) << "they are not back";
  EXPECT_GE(values["descriptors"], 50) << "each node has a connection";
  EXPECT_EQ(values["not heard"], 0) << rows.dump();
  EXPECT_THAT(rows[0]["note"].get<std::string>(), ::testing::HasSubstr("all came back"));
}

TEST(Bench, BenchFollowers_BringsEachVersionByFourCalls) {
  const Outcome outcome = RunCommand("bench followers --smoke --json");
  ASSERT_EQ(outcome.code, 0) << outcome.out;
  const nlohmann::json rows = nlohmann::json::parse(outcome.out, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(rows.is_array()) << outcome.out;
  std::map<std::string, double> values;
  for (const nlohmann::json& row : rows) values[row["metric"].get<std::string>()] = row["value"];
  EXPECT_EQ(values["ready in time"], 100) << rows.dump();
  EXPECT_GE(values["calls of a version"], 4) << rows.dump();
  EXPECT_LT(values["calls of a version"], 4.5)
      << "requests that found no free source come besides: " << rows.dump();
  for (const char* method : {"DescribeArtifact", "CompleteReplicaTransport", "UpdateReplicas"}) {
    EXPECT_EQ(values[method], 1) << method << " in " << rows.dump();
  }
}

INSTANTIATE_TEST_SUITE_P(Benches, FleetSmokeTest, ::testing::Values("", "--tls"), [](const auto& info) {
  return std::string(*info.param == '\0' ? "InClear" : "WithCertificates");
});

INSTANTIATE_TEST_SUITE_P(Benches, TlsSmokeTest, ::testing::Values("p2p", "control"),
                         [](const auto& info) { return std::string(info.param); });

INSTANTIATE_TEST_SUITE_P(Benches, SmokeTest,
                         ::testing::Values("p2p", "attach", "control", "load", "memory", "put", "telemetry",
                                           "versions"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Bench, BenchFanOut_MeasuresReceiversAndBytesSentBySource) {
  const Outcome outcome = RunCommand("bench fan-out --nodes 3 --slow 1@200Mbit --smoke --json");
  if (outcome.code != 0) {
    ASSERT_THAT(outcome.error, ::testing::HasSubstr("take root, `ip` and network namespaces"));
    GTEST_SKIP() << outcome.error;
  }
  const nlohmann::json rows = nlohmann::json::parse(outcome.out, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(rows.is_array()) << outcome.out;
  std::vector<std::string> metrics;
  for (const nlohmann::json& row : rows) {
    metrics.push_back(row["metric"]);
    EXPECT_GT(row["value"], 0) << row.dump();
  }
  EXPECT_THAT(metrics, ::testing::ElementsAre("first receiver", "median receiver", "last receiver",
                                              "last receiver at the other rate", "sent by the source"));
}

TEST(Bench, BenchExplain_ComparesShareWithMeasuredOne) {
  const Outcome outcome = RunCommand("bench explain --bottleneck limits.send --smoke --json");
  if (outcome.code != 0) {
    ASSERT_THAT(outcome.error, ::testing::HasSubstr("take root, `ip` and network namespaces"));
    GTEST_SKIP() << outcome.error;
  }
  const nlohmann::json rows = nlohmann::json::parse(outcome.out, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(rows.is_array()) << outcome.out;
  ASSERT_EQ(rows.size(), 2u) << "one bottleneck and the score";
  EXPECT_EQ(rows[0]["metric"], "share of the time");
  EXPECT_GE(rows[0]["value"], 0) << rows[0].dump();
  EXPECT_LE(rows[0]["value"], 1) << rows[0].dump();
  EXPECT_EQ(rows[1]["metric"], "cause and hop right");
}

TEST(Bench, BenchFanOutOfTwoArtifacts_MeasuresHowTheyShareLinks) {
  const Outcome outcome = RunCommand("bench fan-out --nodes 3 --artifacts 2 --smoke --json");
  if (outcome.code != 0) {
    ASSERT_THAT(outcome.error, ::testing::HasSubstr("take root, `ip` and network namespaces"));
    GTEST_SKIP() << outcome.error;
  }
  const nlohmann::json rows = nlohmann::json::parse(outcome.out, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(rows.is_array()) << outcome.out;
  std::map<std::string, double> values;
  for (const nlohmann::json& row : rows) values[row["metric"]] = row["value"];
  const double first = values["last receiver, artifact 1"];
  const double second = values["last receiver, artifact 2"];
  EXPECT_GT(first, 0);
  EXPECT_GT(second, 0);
  EXPECT_NEAR(values["last of the slowest artifact to last of the fastest"],
              std::max(first, second) / std::min(first, second), 0.01);
  EXPECT_GE(values["sent by the source"], 2) << "images, one of each at least";
}

TEST(Bench, FanOutWithAStoppedFeeder_CountsOtherFailedReceivers) {
  const Outcome outcome =
      RunCommand("bench fan-out --nodes 3 --rate 40Mbit --fault stop-receiver@0.3 --smoke --json");
  if (outcome.code != 0) {
    ASSERT_THAT(outcome.error, ::testing::HasSubstr("take root, `ip` and network namespaces"));
    GTEST_SKIP() << outcome.error;
  }
  EXPECT_THAT(outcome.error, ::testing::ContainsRegex("node-[12] is stopped"));
  const nlohmann::json rows = nlohmann::json::parse(outcome.out, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(rows.is_array()) << outcome.out;
  std::map<std::string, double> values;
  for (const nlohmann::json& row : rows) values[row["metric"]] = row["value"];
  EXPECT_EQ(values["failed receivers"], 0) << rows.dump(2);
  EXPECT_GT(values["last receiver"], 0) << "the other one";
  EXPECT_EQ(values["last receiver"], values["first receiver"]) << "it alone";
}

TEST(Bench, BenchFanOutWithInvalidFlags_IsRefused) {
  for (const char* flags : {"--nodes 1", "--rate 12parsecs", "--slow 1", "--slow 8@40Mbit", "--sources 8",
                            "--per-host 3", "--fault kill-source", "--fault stop-all@1",
                            "--fault kill-source@1.5", "--fault kill-source@1 --artifacts 2"}) {
    const Outcome outcome = RunCommand(absl::StrCat("bench fan-out --smoke ", flags));
    EXPECT_NE(outcome.code, 0) << flags;
    EXPECT_EQ(outcome.out, "") << flags;
  }
}

TEST(Bench, BenchWithoutJson_PrintsTable) {
  const Outcome outcome = RunCommand("bench attach --smoke");
  ASSERT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, ::testing::HasSubstr("reference"));
  EXPECT_THAT(outcome.out, ::testing::HasSubstr("p99"));
}

TEST(Bench, BenchWithUnknownLane_IsRefused) {
  EXPECT_EQ(RunCommand("bench p2p --smoke --lane carrier-pigeon").code, 2);
}

TEST(Bench, BenchWithZeroBytes_IsRefused) { EXPECT_EQ(RunCommand("bench p2p --smoke --bytes 0B").code, 1); }

}  // namespace
}  // namespace tensorcast::bench
