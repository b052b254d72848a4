// Every benchmark in its smoke mode, as the command that users run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "cli/cluster/local_cluster.h"
#include "cli/cluster/process.h"

namespace tensorcast::bench {
namespace {

struct Outcome {
  int code = -1;
  std::string out;
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
  return {.code = code.value_or(-1), .out = text.str()};
}

class SmokeTest : public ::testing::TestWithParam<const char*> {};

TEST_P(SmokeTest, PrintsRowsWithAllTheirFields) {
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

TEST_P(TlsSmokeTest, StandsBesideTheSameInClear) {
  const Outcome outcome = RunCommand(absl::StrCat("bench ", GetParam(), " --tls --smoke --json"));
  ASSERT_EQ(outcome.code, 0) << outcome.out;
  const nlohmann::json rows = nlohmann::json::parse(outcome.out, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(rows.is_array()) << outcome.out;
  EXPECT_TRUE(std::ranges::any_of(rows, [](const nlohmann::json& row) {
    return row["reference_name"].is_string() &&
           row["reference_name"].get<std::string>().starts_with("the same in clear");
  })) << rows.dump();
}

INSTANTIATE_TEST_SUITE_P(Benches, TlsSmokeTest, ::testing::Values("p2p", "control"),
                         [](const auto& info) { return std::string(info.param); });

INSTANTIATE_TEST_SUITE_P(Benches, SmokeTest,
                         ::testing::Values("p2p", "attach", "control", "load", "memory", "telemetry"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Bench, PrintsATableForPeople) {
  const Outcome outcome = RunCommand("bench attach --smoke");
  ASSERT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, ::testing::HasSubstr("reference"));
  EXPECT_THAT(outcome.out, ::testing::HasSubstr("p99"));
}

TEST(Bench, RefusesALaneThatDoesNotExist) {
  EXPECT_EQ(RunCommand("bench p2p --smoke --lane carrier-pigeon").code, 2);
}

TEST(Bench, RefusesASizeOfNothing) { EXPECT_EQ(RunCommand("bench p2p --smoke --bytes 0").code, 1); }

}  // namespace
}  // namespace tensorcast::bench
