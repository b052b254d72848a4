#include "cli/explain/hops.h"

#include <gmock/gmock.h>

#include "cli/explain/explain.h"
#include "cli/explain/test_reports.h"
#include "rpc/convert/transfer_reports.h"

namespace tensorcast::explain::hops_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

SourceReport From(const std::string& node, bool filling, uint64_t bytes = 64'000'000) {
  SourceReport source{.source = {SourceType::kRemote, "tcp", node, "grant-" + node},
                      .filling = filling,
                      .joined = At(20),
                      .left = At(95),
                      .bytes = bytes,
                      .chunks = 4,
                      .asked = absl::Milliseconds(60)};
  source.source.replica_id = "replica-" + node;
  return source;
}

// The transfer that made the replica on `node`: 64 MB in the 70 ms that it moved. Its chunks were verified
// and placed in no time.
Hop HopTo(const std::string& node, std::vector<SourceReport> sources, int fetching_ms = 60) {
  Hop hop{.node = node, .replica_id = "replica-" + node, .transfer = MakeReport()};
  hop.transfer->sources = std::move(sources);
  hop.transfer->fetching = absl::Milliseconds(fetching_ms);
  hop.transfer->stages[1].busy = hop.transfer->stages[2].busy = absl::ZeroDuration();
  return hop;
}

TEST(BoundingHop, ChainOfFillingSources_BoundingHopIsTheSlowLink) {
  Route route{.hops = {HopTo("node-2", {From("node-1", true)}, /*fetching_ms=*/6),
                       HopTo("node-1", {From("node-0", false)}),
                       {.node = "node-0", .replica_id = "replica-node-0"}}};
  route.hops[2].limits.set_send(12'500'000);
  EXPECT_EQ(RouteText(route), R"(the path of the bytes, from this node back to the first source
  node-2  0.91 GB/s: 100 % from node-1, which was filling itself; nothing to ask for in 0.054 s of 0.070 s
  node-1  0.91 GB/s: 100 % from node-0
Bounding hop: node-0 -> node-1 over tcp; daemon.limits.send of node-0 is 12.5 MB/s.
)");
}

TEST(BoundingHop, FasterUpstream_BoundingHopIsTheLastLink) {
  Route route{.hops = {HopTo("node-2", {From("node-1", true)}), HopTo("node-1", {From("node-0", false)})}};
  route.hops[1].transfer->bytes *= 2;
  EXPECT_THAT(RouteText(route), HasSubstr("Bounding hop: node-1 -> node-2 over tcp.\n"));
}

TEST(BoundingHop, VerifyIsTheLimit_BoundingHopIsTheNodeItself) {
  Route route{.hops = {HopTo("node-2", {From("node-1", true)}), HopTo("node-1", {From("node-0", false)})}};
  route.hops[1].transfer->stages[1].busy = absl::Seconds(1);
  EXPECT_THAT(RouteText(route), HasSubstr("Bounding hop: node-1 itself (verify).\n"));
  route.hops[0].transfer->stages[1].busy = absl::Seconds(1);
  EXPECT_EQ(RouteText(route), "Bounding hop: node-2 itself (verify).\n");
}

TEST(BoundingHop, NodesFeedEachOther_BoundingHopIsTheirOutsideSource) {
  const Route route{.hops = {HopTo("node-1", {From("node-0", false, 10), From("node-2", true, 30)}),
                             HopTo("node-2", {From("node-0", false, 20), From("node-1", true, 30)})}};
  EXPECT_THAT(RouteText(route),
              AllOf(HasSubstr("node-1  0.91 GB/s: 25 % from node-0; 75 % from node-2, which"),
                    HasSubstr("Bounding hop: node-0 -> node-2 over tcp; the nodes above passed on to "
                              "each other what came over this link.\n")));
}

TEST(BoundingHop, UpstreamNotKnown_BoundingHopSaysWhy) {
  Route route{.hops = {HopTo("node-2", {From("node-1", true)}),
                       {.node = "node-1", .replica_id = "replica-node-1", .problem = "connection refused"}},
              .left_out = "3 more were not asked"};
  EXPECT_EQ(
      RouteText(route),
      "Bounding hop: node-1 -> node-2 over tcp; node-2 had something to ask for nearly all the time; what "
      "filled node-1 is not known: node-1 does not answer: connection refused.\n3 more were not asked\n");
  route.hops[1].problem.clear();
  EXPECT_THAT(RouteText(route), HasSubstr("is not known: node-1 does not remember its transfer."));
  route.hops.pop_back();
  EXPECT_THAT(RouteText(route), HasSubstr("is not known: node-1 was not asked."));
}

TEST(BoundingHop, StarvedBySilentSource_BoundingHopIsBeforeIt) {
  const Route route{
      .hops = {HopTo("node-2", {From("node-1", true)}, /*fetching_ms=*/6),
               {.node = "node-1", .replica_id = "replica-node-1", .problem = "connection refused"}}};
  EXPECT_EQ(
      RouteText(route),
      "Bounding hop: before node-1; node-2 had nothing to ask for in 0.054 s of 0.070 s, so the link was "
      "not the limit; what filled node-1 is not known: node-1 does not answer: connection refused.\n");
  EXPECT_EQ(FindBoundingHop(route)->silent, "node-1");
}

TEST(ExplainTransfer, FailedTransfer_ShowsItsErrorAndFailedUpstreamNodes) {
  Hop failed = HopTo("node-2", {From("node-1", true)});
  failed.transfer->status = absl::UnavailableError("no source has chunk 7");
  failed.transfer->bytes /= 2;
  Hop feeder = HopTo("node-1", {From("node-0", false)});
  feeder.transfer->status = absl::UnavailableError("node-0 went away");
  const Route route{.hops = {failed, feeder, {.node = "node-0", .problem = "connection refused"}}};
  const std::string text = ExplainTransfer(*failed.transfer, {.route = route});
  EXPECT_THAT(text, HasSubstr(R"(
The transfer failed with 30.52 MiB of 61.04 MiB in place, after 0.100 s: UNAVAILABLE: no source has chunk 7
  node-1 was being filled itself, and its own transfer failed: UNAVAILABLE: node-0 went away
  node-0 does not answer: connection refused
)"));
  EXPECT_THAT(text, Not(HasSubstr("Bounded by")));
}

TEST(BoundingHop, NoSourceOnOtherNode_NoBoundingHop) {
  EXPECT_EQ(FindBoundingHop(Route()), std::nullopt);
  Route route{.hops = {HopTo("node-0", {From("/models", false)})}};
  route.hops[0].transfer->sources[0].source.grant_id.clear();
  EXPECT_EQ(RouteText(route), "");
  route.hops[0].transfer.reset();
  EXPECT_EQ(RouteText(route), "");
}

TEST(RouteOf, RouteOf_TakesHopsAndNotesUnknownStages) {
  v1::ExplainTransferResponse response;
  *response.add_hops()->mutable_transfer() = rpc::ToProto(MakeReport());
  response.mutable_hops(0)->set_node("node-1");
  response.add_hops()->mutable_transfer()->add_stages()->set_stage("teleport");
  response.set_left_out("some");
  const Route route = RouteOf(response);
  ASSERT_THAT(route.hops, SizeIs(2));
  EXPECT_EQ(route.hops[0].transfer->transfer_id, MakeReport().transfer_id);
  EXPECT_FALSE(route.hops[1].transfer.has_value());
  EXPECT_THAT(route.hops[1].problem, HasSubstr("teleport"));
  EXPECT_EQ(route.left_out, "some");
}

TEST(ExplainTransfer, SeveralSources_AreShownWithReasonOfTheirLoss) {
  TransferReport report = MakeReport();
  report.reassigned_chunks = 2;
  SourceReport liar = From("node-2", true, 16'000'000);
  liar.left = At(45);
  liar.asked = absl::Milliseconds(20);
  liar.lost_chunks = 3;
  liar.loss = SourceLoss::kBadDigest;
  liar.status = absl::DataLossError("chunk 3 has another digest");
  SourceReport slow = From("node-0", false, 48'000'000);
  slow.reassigned_chunks = 2;
  slow.left = SteadyTime::InfiniteFuture();
  SourceReport closed = From("node-3", false, 0);
  closed.left = At(20);
  closed.loss = SourceLoss::kNotOpened;
  closed.status = absl::UnavailableError("connection refused");
  report.sources = {slow, closed, liar};
  const std::string text = ExplainTransfer(report, {.route = {.hops = {HopTo("node-1", report.sources)}}});
  EXPECT_THAT(text,
              AllOf(HasSubstr("0 fetched again, 2 taken back from sources that were slow\n"), HasSubstr(R"(
source  lane        was       came   went      bytes  share  chunks       rate  busy  taken back  lost
node-0  tcp (host)  ready    0.020      -  45.78 MiB   75 %       4  0.60 GB/s  75 %           2     0
node-2  tcp (host)  filling  0.020  0.045  15.26 MiB   25 %       4  0.64 GB/s  80 %           0     3

after 0.020 s tcp node-3 could not be opened: UNAVAILABLE: connection refused
after 0.045 s tcp node-2 was given up for wrong bytes: DATA_LOSS: chunk 3 has another digest
  The damage arose between node-2 and this node: a node passes on only what it has verified.
)"),
                    HasSubstr("Bounding hop: node-0 -> node-1 over tcp.\n")));
}

TEST(PartsOf, TimeWithoutChunksToFetch_CountsAsStarved) {
  TransferReport report = *HopTo("node-1", {}).transfer;
  report.fetching = absl::Milliseconds(6);
  const TransferParts parts = PartsOf(report);
  EXPECT_EQ(parts.starved, absl::Milliseconds(54));
  EXPECT_EQ(parts.queue + parts.start + parts.moving + parts.starved + parts.gaps + parts.finish,
            parts.total());
  EXPECT_EQ(FindBound(report).part, "starved");
  report.fetching = absl::ZeroDuration();
  EXPECT_EQ(PartsOf(report).starved, absl::ZeroDuration()) << "it does not say";
  report.fetching = absl::Hours(1);
  EXPECT_EQ(PartsOf(report).starved, absl::ZeroDuration());
}

// As a second get reported that joined a local get to a GPU: no chunk had to be fetched, and the copies to
// the GPU went on all the time.
TEST(PartsOf, CopiesWithoutFetches_AreNotStarved) {
  TransferReport report = MakeReport();
  report.fetching = absl::Milliseconds(2);
  report.stages[0].busy = absl::Milliseconds(2);
  report.stages[2].busy = absl::Milliseconds(90);
  EXPECT_EQ(PartsOf(report).starved, absl::ZeroDuration());
  EXPECT_EQ(FindBound(report).part, "place");
}

TEST(PartsOf, IdleTimeOfAccount_IsStarvedTime) {
  TransferReport report = MakeReport();
  report.fetching = absl::Milliseconds(6);
  report.wall_time.whole = absl::Milliseconds(90);
  report.wall_time[TimeUse::kIdle] = absl::Milliseconds(50);
  EXPECT_EQ(PartsOf(report).starved, absl::Milliseconds(50));
  EXPECT_EQ(FindBound(report).part, "starved");
  EXPECT_DOUBLE_EQ(FindBound(report).share, 0.5);
}

}  // namespace
}  // namespace tensorcast::explain::hops_test
