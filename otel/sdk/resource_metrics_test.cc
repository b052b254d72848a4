#include "otel/sdk/resource_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "otel/api/metrics_catalogue.h"
#include "otel/sdk/nvml.h"

namespace tensorcast::otel::sdk::resource_metrics_test {
namespace {

class Values final : public GaugeObserver {
 public:
  void Report(double value, LabelValues labels) override {
    values[labels.empty() ? "" : std::string(labels[0])] = value;
  }
  std::map<std::string, double> values;
};

template <class Metric>
std::map<std::string, double> Collect(const Metric& metric) {
  Values values;
  CollectGauge(metric.id(), values);
  return values.values;
}

class ResourceMetricsTest : public ::testing::Test {
 protected:
  ResourceMetricsTest() : proc_(::testing::TempDir() + "/proc" + std::to_string(getpid())) {
    std::filesystem::create_directories(proc_ + "/self/fd");
  }
  ~ResourceMetricsTest() override { std::filesystem::remove_all(proc_); }
  void Write(const std::string& path, const std::string& text) { std::ofstream(proc_ + path) << text; }

  const std::string proc_;
  const double tick_ = 1.0 / static_cast<double>(sysconf(_SC_CLK_TCK));
  const double page_ = static_cast<double>(sysconf(_SC_PAGESIZE));
};

TEST_F(ResourceMetricsTest, ResourceMetrics_AreReadFromProc) {
  Write("/self/stat",
        "42 (a (odd) name) S 1 2 3 4 5 6 7 8 9 10 500 250 0 0 20 0 7 0 100 4096 30 18446744073709551615\n");
  Write("/self/statm", "100 30 10 5 0 20 0\n");
  Write("/self/fd/0", "");
  Write("/self/fd/1", "");
  Write("/stat", "cpu  100 20 30 400 50 6 7 8 0 0\ncpu0 1 1 1 1\n");
  Write("/meminfo", "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:   250 kB\n");
  const auto registrations = ObserveResources({.proc = proc_, .nvml = "none.so"});

  EXPECT_DOUBLE_EQ(Collect(metrics::kProcessCpuSeconds)["user"], 500 * tick_);
  EXPECT_DOUBLE_EQ(Collect(metrics::kProcessCpuSeconds)["system"], 250 * tick_);
  EXPECT_EQ(Collect(metrics::kProcessThreads)[""], 7);
  EXPECT_EQ(Collect(metrics::kProcessMemoryBytes)["resident"], 30 * page_);
  EXPECT_EQ(Collect(metrics::kProcessMemoryBytes)["shared"], 10 * page_);
  EXPECT_EQ(Collect(metrics::kProcessOpenFiles)[""], 2);
  EXPECT_DOUBLE_EQ(Collect(metrics::kHostCpuSeconds)["user"], 120 * tick_);
  EXPECT_DOUBLE_EQ(Collect(metrics::kHostCpuSeconds)["system"], 51 * tick_);
  EXPECT_DOUBLE_EQ(Collect(metrics::kHostCpuSeconds)["iowait"], 50 * tick_);
  EXPECT_EQ(Collect(metrics::kHostMemoryTotalBytes)[""], 1000 * 1024);
  EXPECT_EQ(Collect(metrics::kHostMemoryUsedBytes)[""], 750 * 1024);
  EXPECT_DOUBLE_EQ(Collect(metrics::kHostMemoryUtilization)[""], 0.75);
}

TEST_F(ResourceMetricsTest, Utilization_CoversTimeSincePreviousCollection) {
  Write("/stat", "cpu  0 0 0 100 0 0 0 0 0 0\n");
  const auto registrations = ObserveResources({.proc = proc_, .nvml = "none.so"});
  EXPECT_DOUBLE_EQ(Collect(metrics::kHostCpuUtilization)[""], 0);
  Write("/stat", "cpu  30 0 0 110 0 0 0 0 0 0\n");
  EXPECT_DOUBLE_EQ(Collect(metrics::kHostCpuUtilization)[""], 0.75);
  EXPECT_TRUE(Collect(metrics::kHostCpuUtilization).empty()) << "no time passed";
}

TEST_F(ResourceMetricsTest, MissingOrInvalidProcFiles_LeaveTheirMetricsOut) {
  Write("/self/stat", "nonsense");
  Write("/stat", "cpu 1\n");
  Write("/meminfo", "MemTotal: 5 kB\n");
  const auto registrations = ObserveResources({.proc = proc_, .nvml = "none.so"});
  EXPECT_TRUE(Collect(metrics::kProcessCpuSeconds).empty());
  EXPECT_TRUE(Collect(metrics::kProcessMemoryBytes).empty());
  EXPECT_TRUE(Collect(metrics::kHostCpuSeconds).empty());
  EXPECT_TRUE(Collect(metrics::kHostMemoryTotalBytes).empty());
  EXPECT_TRUE(Collect(metrics::kGpuUtilization).empty());
}

TEST(ResourceMetrics, ResourceMetricsOfThisMachine_HaveValues) {
  const auto registrations = ObserveResources();
  EXPECT_GT(Collect(metrics::kProcessMemoryBytes)["resident"], 0);
  EXPECT_GE(Collect(metrics::kProcessThreads)[""], 1);
  EXPECT_GT(Collect(metrics::kHostMemoryTotalBytes)[""], 0);
}

TEST(Gpus, GpuMetrics_LeaveBrokenGpuOut) {
  const auto registrations = ObserveResources({.nvml = TENSORCAST_FAKE_NVML});
  EXPECT_EQ(Collect(metrics::kGpuUtilization), (std::map<std::string, double>{{"0", 0.5}}));
  EXPECT_EQ(Collect(metrics::kGpuMemoryUsedBytes), (std::map<std::string, double>{{"0", 10}}));
  EXPECT_EQ(Collect(metrics::kGpuMemoryTotalBytes), (std::map<std::string, double>{{"0", 80}}));
}

TEST(Gpus, MissingOrOtherLibrary_GivesNoGpu) {
  EXPECT_EQ(Nvml::Load("libthere-is-none.so"), nullptr);
  EXPECT_EQ(Nvml::Load("libc.so.6"), nullptr);
}

}  // namespace
}  // namespace tensorcast::otel::sdk::resource_metrics_test
