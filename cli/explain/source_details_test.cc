#include "cli/explain/source_details.h"

#include <gmock/gmock.h>

#include "cli/explain/analysis.h"
#include "cli/explain/explain.h"
#include "cli/explain/hops.h"
#include "cli/explain/test_reports.h"
#include "rpc/convert/convert.h"

namespace tensorcast::explain::source_details_test {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

// Of the transport in MakeReport: 60 ms from first request to last byte.
v1::ServeReport MakeServing(bool in_place, int reading_ms) {
  v1::ServeReport served;
  served.set_grant_id("transport-node-0");
  served.set_lane("ucx");
  served.set_bytes(64'000'000);
  served.set_requests(4);
  *served.mutable_first_request() = rpc::ToProto(ToWallTime(At(20)));
  *served.mutable_last_completion() = rpc::ToProto(ToWallTime(At(80)));
  served.set_in_place(in_place);
  *served.mutable_reading() = rpc::ToProto(absl::Milliseconds(reading_ms));
  return served;
}

std::vector<SourceDetails> Heard(const v1::ServeReport& served) {
  v1::ExplainTransferResponse response;
  response.add_hops()->set_node("node-1");
  v1::TransferHop& hop = *response.add_hops();
  hop.set_node("node-0");
  *hop.add_servings() = served;
  return DetailsOf(RouteOf(response), MakeReport());
}

TEST(SourceDetails, SourceDetails_ExistForGrantsAndNotForDisk) {
  TransferReport report = MakeReport();
  report.stages.push_back(MakeStage(Stage::kFetch, "disk", "/models", 93, 96, 3, 1));
  report.stages.push_back(MakeStage(Stage::kFetch, "local", "node-2", 93, 96, 3, 1));
  const std::vector<SourceDetails> details = SourcesOf(report);
  ASSERT_THAT(details, SizeIs(2));
  EXPECT_EQ(details[0].source, "node-0");
  EXPECT_FALSE(details[0].mapped);
  EXPECT_TRUE(details[1].mapped);
  EXPECT_THAT(SourcesText(details), HasSubstr("node-2 (local): lent its memory"));
}

TEST(SourceDetails, SlowNetwork_IsDistinguishedFromSlowSource) {
  const auto from_memory = Heard(MakeServing(/*in_place=*/true, 0));
  EXPECT_THAT(SourcesText(from_memory), HasSubstr("61.04 MiB in 4 requests, 0.060 s"));
  EXPECT_THAT(FindBound(MakeReport(), from_memory).why, HasSubstr("the network is the limit"));
  const auto from_disk = Heard(MakeServing(/*in_place=*/false, 54));
  EXPECT_THAT(SourcesText(from_disk), HasSubstr("0.054 s (90 %)"));
  EXPECT_THAT(FindBound(MakeReport(), from_disk).why, HasSubstr("The source is the limit"));
  const auto from_gpu = Heard(MakeServing(/*in_place=*/false, 6));
  EXPECT_THAT(FindBound(MakeReport(), from_gpu).why, HasSubstr("the network is the limit"));
  EXPECT_THAT(FindBound(MakeReport()).why, HasSubstr("The source or the network"));
}

TEST(SourceDetails, UnknownServing_IsShownWithItsReason) {
  v1::ServeReport another = MakeServing(true, 0);
  another.set_grant_id("another");
  const auto details = Heard(another);
  EXPECT_FALSE(details[0].served.has_value());
  EXPECT_THAT(ExplainTransfer(MakeReport(), {.sources = details}),
              HasSubstr("source node-0 (ucx): not known: daemon node-0 no longer remembers"));
}

TEST(SourceDetails, SourceWithoutRequests_SaysNeverAsked) {
  v1::ServeReport served = MakeServing(false, 0);
  served.set_requests(0);
  served.clear_first_request();
  served.clear_last_completion();
  EXPECT_THAT(SourcesText(Heard(served)), HasSubstr("never received a request"));
  EXPECT_EQ(ReadingShare(Heard(served)[0]), 0);
}

}  // namespace
}  // namespace tensorcast::explain::source_details_test
