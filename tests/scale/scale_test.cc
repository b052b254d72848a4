// The growth of the global store in small: checks that everything is there and right.
#include "tests/scale/scale.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/workshop/cluster/local_cluster.h"

namespace tensorcast::scale {
namespace {

Options Small(const std::string& directory) {
  return {.directory = directory, .artifacts = 1200, .nodes = 30, .steps = 3, .callers = 8, .samples = 50};
}

TEST(Scale, EachStep_MeasuresResolveGrantAndReconcile) {
  const auto directory = TemporaryDirectory::Create("tensorcast-scale-test");
  ASSERT_TRUE(directory.ok()) << directory.status();
  const auto steps = RunFleet(Small((*directory)->path()));
  ASSERT_TRUE(steps.ok()) << steps.status();
  ASSERT_EQ(steps->size(), 3u);
  for (size_t i = 0; i < steps->size(); ++i) {
    const Step& step = (*steps)[i];
    EXPECT_EQ(step.artifacts, 400 * (i + 1));
    EXPECT_EQ(step.replicas, 2 * step.artifacts);
    for (const Latency& latency : {step.resolve, step.grant, step.heartbeat}) {
      EXPECT_GT(latency.p50_us, 0);
      EXPECT_LE(latency.p50_us, latency.p99_us);
    }
    EXPECT_GT(step.publish_per_second, 0);
    EXPECT_GT(step.reconcile_us_each, 0);
  }
  EXPECT_THAT(Table(*steps), ::testing::HasSubstr("1200      2400"));
}

TEST(Scale, DatabaseNotEmpty_RunFails) {
  const auto directory = TemporaryDirectory::Create("tensorcast-scale-test");
  ASSERT_TRUE(directory.ok()) << directory.status();
  Options options = Small((*directory)->path());
  ASSERT_TRUE(RunFleet(options).ok());
  options.artifacts = 300;  // 1,200 are there from before
  const auto steps = RunFleet(options);
  EXPECT_EQ(steps.status().code(), absl::StatusCode::kInternal) << steps.status();
  EXPECT_THAT(std::string(steps.status().message()), ::testing::HasSubstr("1200 artifacts"));
}

TEST(Scale, OptionsWithoutValidFleet_AreRefused) {
  EXPECT_EQ(RunFleet({.directory = "/nonexistent", .nodes = 1}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tensorcast::scale
