#include "cli/explain/explain.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "cli/explain/test_reports.h"

namespace tensorcast::explain::explain_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ExplainTransfer, ExplainTransfer_ShowsStagesOnOneTimeAxisAndBound) {
  EXPECT_EQ(ExplainTransfer(MakeReport(), {}, 20), R"(transfer 11aa22bb-0000-4000-8000-000000000001
  artifact  tc2:abc
  replica   99ff0000-0000-4000-8000-000000000001 at gpu:0
  moved     61.04 MiB in 0.100 s, 0.64 GB/s
  chunks    4 verified against the manifest, 0 fetched again
  result    ok

                      0 s          0.100 s
queue                |##                  | 0.010
start                |  ##                | 0.010
fetch   ucx  node-0  |    ############    | 0.060
verify  ucx  node-0  |      ###########   | 0.055
place   ucx  node-0  |        ##########  | 0.050
finish               |                  ##| 0.010

stage   lane  source      bytes  chunks  seconds   busy  share  at once       rate  rate each
fetch   ucx   node-0  61.04 MiB       4    0.060  0.150   75 %      2.5  1.07 GB/s  0.43 GB/s
verify  ucx   node-0  61.04 MiB       4    0.055  0.020   10 %      0.4  1.16 GB/s  3.20 GB/s
place   ucx   node-0  61.04 MiB       4    0.050  0.030   15 %      0.6  1.28 GB/s  2.13 GB/s

Bounded by fetch: fetch took 75 % of the busy time, with 2.5 chunks in this stage at once at 0.43 GB/s each (ucx, node-0). The source or the network is the limit: a faster lane, or a source with less to do, would help.
)");
}

TEST(ExplainTransfer, TransferToGpu_ShowsMemoryThatBytesPassed) {
  TransferReport report = MakeReport();
  report.sources = {{.source = {.type = SourceType::kRemote, .lane = "ucx-rma", .name = "a"}, .direct = true},
                    {.source = {.type = SourceType::kRemote, .lane = "tcp", .name = "b"}}};
  EXPECT_THAT(ExplainTransfer(report),
              AllOf(HasSubstr("ucx-rma (host+device)  "), HasSubstr("tcp (host)  ")));
  report.destination = {LocationKind::kCpu, 0};
  EXPECT_THAT(ExplainTransfer(report), Not(HasSubstr("(host")));
}

TEST(ExplainTransfer, ChunksFetchedAgain_AreCounted) {
  TransferReport report = MakeReport();
  report.refetched_chunks = 2;
  EXPECT_THAT(ExplainTransfer(report), HasSubstr("2 fetched again"));
}

TEST(ExplainTransfer, TransferFailedBeforeFirstByte_HasNoStages) {
  TransferReport report{.transfer_id = "t", .queued = At(0), .start = At(5), .end = At(20)};
  report.status = absl::ResourceExhaustedError("the pool is full");
  const std::string text = ExplainTransfer(report);
  EXPECT_THAT(
      text,
      HasSubstr("\nThe transfer failed before any source answered, after 0.020 s: RESOURCE_EXHAUSTED: the "
                "pool is full\n"));
  EXPECT_THAT(text, Not(HasSubstr("Bounded by ")));
  EXPECT_THAT(text, Not(HasSubstr("rate each")));
  report.start = SteadyTime();
  EXPECT_THAT(ExplainTransfer(report),
              HasSubstr("The transfer failed before the transfer's turn came, after 0.020 s: "));
}

TEST(ExplainTransfer, RunningTransfer_ShowsItsProgress) {
  TransferReport report = MakeReport();
  report.bytes = report.bytes_total / 2;
  EXPECT_THAT(ExplainTransfer(report, {.under_way = true}),
              AllOf(HasSubstr("30.52 MiB of 61.04 MiB in 0.100 s"), HasSubstr("result    under way\n"),
                    Not(HasSubstr("verified against"))));
  TransferReport waiting{.transfer_id = "t", .queued = At(0), .end = At(20)};
  EXPECT_THAT(ExplainTransfer(waiting, {.under_way = true}),
              AllOf(HasSubstr("waiting for its turn"), HasSubstr("Bounded by queue")));
}

TEST(ExplainTransfer, EmptyReport_IsExplainedAsText) {
  EXPECT_THAT(ExplainTransfer(TransferReport{}, {}, -5), HasSubstr("Bounded by nothing"));
}

TEST(ExplainTransfer, LongSourceName_IsCutAtItsBeginning) {
  TransferReport report = MakeReport();
  report.stages[0].source.name = absl::StrCat(std::string(200, 'x'), "/model.safetensors");
  EXPECT_THAT(ExplainTransfer(report), HasSubstr("...xxxxxxx/model.safetensors"));
}

}  // namespace
}  // namespace tensorcast::explain::explain_test
