#include "tools/workshop/bench/external.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tools/workshop/bench/yardsticks.h"
#include "tools/workshop/cluster/local_cluster.h"

namespace tensorcast::bench::external_test {
namespace {

TEST(Perftest, PerftestOutput_GivesOverallBandwidthOfLastLine) {
  const auto rate = ParsePerftest(
      "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n"
      "  10,153001.941,26671.976,121138.299,2399.52,500.00,37,8\n"
      "  20,153001.941,26671.976,121138.299,2399.52,1000.00,37,8\n");
  ASSERT_TRUE(rate.ok()) << rate.status();
  EXPECT_DOUBLE_EQ(*rate, 1000.0 * 1048576 / 1e9);
}

TEST(Perftest, PerftestOutputWithoutFigures_FailsAndShowsOutput) {
  const auto rate = ParsePerftest("cannot connect\n");
  EXPECT_EQ(rate.status().code(), absl::StatusCode::kInternal);
  EXPECT_NE(rate.status().message().find("cannot connect"), std::string::npos);
}

TEST(Iperf, IperfOutput_GivesReceivedBytesPerSecond) {
  const auto rate = ParseIperf(
      R"({"end": {"sum_sent": {"bits_per_second": 32e9}, "sum_received": {"bits_per_second": 24e9}}})");
  ASSERT_TRUE(rate.ok()) << rate.status();
  EXPECT_DOUBLE_EQ(*rate, 3.0);
}

TEST(Iperf, IperfOutputWithoutFigures_FailsAndShowsOutput) {
  EXPECT_FALSE(ParseIperf("").ok());
  EXPECT_FALSE(ParseIperf(R"({"end": {"sum_received": {"bits_per_second": 0}}})").ok());
  const auto rate = ParseIperf(R"({"end": {}, "error": "unable to connect to server"})");
  EXPECT_EQ(rate.status().code(), absl::StatusCode::kInternal);
  EXPECT_NE(rate.status().message().find("unable to connect"), std::string::npos);
}

TEST(Fio, FioOutput_GivesReadBandwidthOfJob) {
  const auto rate =
      ParseFio("fio: a warning\n{\"jobs\": [{\"error\": 0, \"read\": {\"bw_bytes\": 1250000000}}]}\n");
  ASSERT_TRUE(rate.ok()) << rate.status();
  EXPECT_DOUBLE_EQ(*rate, 1.25);
}

TEST(Fio, FioOutputOfFailedJobOrWithoutJson_Fails) {
  EXPECT_FALSE(ParseFio("{\"jobs\": [{\"error\": 22, \"read\": {\"bw_bytes\": 1250000000}}]}").ok());
  EXPECT_FALSE(ParseFio("{\"jobs\": [{\"error\": 0, \"read\": {\"bw_bytes\": 0}}]}").ok());
  EXPECT_FALSE(ParseFio("fio: engine nope not loadable\n").ok());
  EXPECT_FALSE(ParseFio("").ok());
}

TEST(FindProgram, MissingProgram_ErrorNamesPackageToInstall) {
  EXPECT_TRUE(FindProgram("sh", "dash").ok());
  const auto missing = FindProgram("no-such-program", "some-package");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(missing.status().message().find("some-package"), std::string::npos);
}

TEST(PageCache, MissingFile_CannotBeDroppedWarmedOrRead) {
  EXPECT_FALSE(DropFromPageCache("/nonexistent/file").ok());
  EXPECT_FALSE(WarmPageCache("/nonexistent/file").ok());
  EXPECT_FALSE(ReadIntoFreshMemory("/nonexistent/file").ok());
}

TEST(PageCache, File_CanBeDroppedFromCacheWarmedAndRead) {
  const auto directory = TemporaryDirectory::Create("tensorcast-yardsticks");
  ASSERT_TRUE(directory.ok());
  const std::string path = (*directory)->path() + "/file";
  std::ofstream(path) << std::string(size_t{3} << 20, 'x');
  const auto left = DropFromPageCache(path);
  ASSERT_TRUE(left.ok()) << left.status();
  EXPECT_LE(*left, uint64_t{3} << 20);
  EXPECT_TRUE(WarmPageCache(path).ok());
  const auto rate = ReadIntoFreshMemory(path);
  ASSERT_TRUE(rate.ok()) << rate.status();
  EXPECT_GT(*rate, 0);
}

TEST(PlainCopy, PlainCopy_HasRate) { EXPECT_GT(PlainCopy(1 << 20).GbPerSecond(), 0); }

}  // namespace
}  // namespace tensorcast::bench::external_test
