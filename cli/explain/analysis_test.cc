#include "cli/explain/analysis.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/steady_time.h"
#include "cli/explain/explain.h"
#include "cli/explain/test_reports.h"
#include "cli/explain/top.h"

namespace tensorcast::explain::analysis_test {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(TransferParts, TransferParts_SumToTotalTime) {
  TransferReport report = MakeReport();
  report.stages.push_back(MakeStage(Stage::kFetch, "disk", "/models", 93, 96, 3, 1));  // after a gap
  const TransferParts parts = PartsOf(report);
  EXPECT_EQ(parts.queue, absl::Milliseconds(10));
  EXPECT_EQ(parts.start, absl::Milliseconds(10));
  EXPECT_EQ(parts.moving, absl::Milliseconds(73));
  EXPECT_EQ(parts.gaps, absl::Milliseconds(3));
  EXPECT_EQ(parts.finish, absl::Milliseconds(4));
  EXPECT_EQ(parts.queue + parts.start + parts.moving + parts.gaps + parts.finish, parts.total());
}

TEST(TransferParts, TransferCancelledInQueue_HasOnlyQueueTime) {
  TransferReport report{.queued = At(0), .end = At(50)};
  report.start = SteadyTime();
  const TransferParts parts = PartsOf(report);
  EXPECT_EQ(parts.queue, absl::Milliseconds(50));
  EXPECT_EQ(parts.moving + parts.start + parts.gaps + parts.finish, absl::ZeroDuration());
  EXPECT_EQ(FindBound(report).part, "queue");
}

TEST(TransferParts, StagesBeyondTransfer_AreClippedToIt) {
  TransferReport report = MakeReport();
  report.stages = {MakeStage(Stage::kFetch, "ucx", "n", -500, 900, 10, 1)};
  const TransferParts parts = PartsOf(report);
  EXPECT_EQ(parts.moving, absl::Milliseconds(90));
  EXPECT_EQ(parts.total(), absl::Milliseconds(100));
}

TEST(Totals, StageTotals_SumOverSources) {
  TransferReport report = MakeReport();
  report.stages.push_back(MakeStage(Stage::kFetch, "disk", "/models", 80, 90, 50, 10));
  const std::vector<StageTotal> totals = TotalsOf(report);
  ASSERT_THAT(totals, SizeIs(3));
  EXPECT_EQ(totals[0].stage, Stage::kFetch);
  EXPECT_EQ(totals[0].busy, absl::Milliseconds(200));
  EXPECT_EQ(totals[0].bytes, 64'000'010u);
  EXPECT_DOUBLE_EQ(totals[0].share, 0.8);
}

TEST(Bound, ObjectStoreThatBounds_IsNamed) {
  TransferReport report = MakeReport();
  report.stages = {MakeStage(Stage::kFetch, "s3", "s3://bucket/m.safetensors", 20, 90, 150, 64'000'000)};
  report.stages[0].source.type = SourceType::kDisk;
  const Bound bound = FindBound(report);
  EXPECT_EQ(bound.part, "fetch");
  EXPECT_THAT(bound.why, HasSubstr("(s3, s3://bucket/m.safetensors)"));
  EXPECT_THAT(bound.why, HasSubstr("The object store is the limit"));
}

TEST(Bound, Bound_IsStageWithMaxBusyTime) {
  TransferReport report = MakeReport();
  EXPECT_EQ(FindBound(report).part, "fetch");
  EXPECT_THAT(FindBound(report).why, HasSubstr("75 %"));
  EXPECT_THAT(FindBound(report).why, HasSubstr("2.5 chunks in this stage at once"));
  EXPECT_THAT(FindBound(report).why, HasSubstr("ucx, node-0"));
  EXPECT_THAT(FindBound(report).why, HasSubstr("network"));
  report.stages[1].busy = absl::Milliseconds(180);
  EXPECT_EQ(FindBound(report).part, "verify");
  EXPECT_THAT(FindBound(report).why, HasSubstr("fetch is close behind"));
  report.stages[2].busy = absl::Seconds(1);
  EXPECT_EQ(FindBound(report).part, "place");
  EXPECT_THAT(FindBound(report).why, HasSubstr("GPU"));
}

TEST(Bound, TimeMainlyOutsideStages_BoundIsThatPart) {
  TransferReport queued = MakeReport();
  queued.queued = At(-500);
  EXPECT_EQ(FindBound(queued).part, "queue");
  TransferReport slow_start = MakeReport();
  slow_start.queued = slow_start.start = At(-500);
  EXPECT_EQ(FindBound(slow_start).part, "start");
  TransferReport slow_end = MakeReport();
  slow_end.end = At(500);
  EXPECT_EQ(FindBound(slow_end).part, "finish");
  TransferReport gap = MakeReport();
  gap.stages.push_back(MakeStage(Stage::kFetch, "disk", "/models", 400, 410, 10, 1));
  gap.end = At(410);
  EXPECT_EQ(FindBound(gap).part, "gaps");
}

TEST(Bound, ReportWithoutTimes_BoundIsNothing) { EXPECT_EQ(FindBound(TransferReport{}).part, "nothing"); }

TEST(AnalysisJson, AnalysisJson_HasBoundSecondsAndStages) {
  TransferReport report = MakeReport();
  report.stages[0].source.name = "\xff";  // is replaced
  const auto json = nlohmann::json::parse(AnalysisJson(report), nullptr, false);
  EXPECT_EQ(json["bound"]["part"], "fetch");
  EXPECT_DOUBLE_EQ(json["seconds"]["moving"], 0.07);
  ASSERT_EQ(json["stages"].size(), 3u);
  EXPECT_DOUBLE_EQ(json["stages"][0]["busy_share"], 0.75);
  EXPECT_DOUBLE_EQ(json["stages"][0]["at_once"], 2.5);
}

TEST(Flows, FetchPartlyInWindow_CountsProportionally) {
  const std::vector<Flow> flows = FlowsOf("node-1", {MakeReport(), MakeReport()}, At(50), At(1000));
  ASSERT_THAT(flows, SizeIs(1));
  EXPECT_EQ(flows[0].receiver, "node-1");
  EXPECT_EQ(flows[0].source, "node-0");
  EXPECT_EQ(flows[0].lane, "ucx");
  EXPECT_EQ(flows[0].transfers, 2u);
  EXPECT_EQ(flows[0].bytes, 64'000'000u);  // half of each
  EXPECT_EQ(flows[0].moving, absl::Milliseconds(60));
}

TEST(Flows, FetchBeforeWindow_IsLeftOut) {
  EXPECT_THAT(FlowsOf("node-1", {MakeReport()}, At(200), At(300)), SizeIs(0));
}

}  // namespace
}  // namespace tensorcast::explain::analysis_test
