#include "cli/explain/cause.h"

#include <gmock/gmock.h>

#include "cli/explain/analysis.h"
#include "cli/explain/explain.h"
#include "cli/explain/hops.h"
#include "cli/explain/test_reports.h"
#include "rpc/convert/transfer_reports.h"

namespace tensorcast::explain::cause_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

WallTime Time(absl::Duration whole, std::initializer_list<std::pair<TimeUse, absl::Duration>> uses) {
  WallTime time;
  time.whole = whole;
  for (const auto& [use, took] : uses) time[use] = took;
  return time;
}

absl::Duration Ms(int ms) { return absl::Milliseconds(ms); }

// 64 MB over tcp in 1000 ms to host memory, all of it fetching; this node needed little of that.
TransferReport MakeSlow(const std::vector<std::pair<std::string, uint64_t>>& sources = {
                            {"node-0", 64'000'000}}) {
  TransferReport report{.transfer_id = "t",
                        .replica_id = "replica",
                        .bytes = 64'000'000,
                        .bytes_total = 64'000'000,
                        .queued = At(0),
                        .start = At(0),
                        .end = At(1000)};
  for (const auto& [name, bytes] : sources) {
    report.stages.push_back(MakeStage(Stage::kFetch, "tcp", name, 0, 1000, 3000, bytes));
    SourceReport source{.joined = At(0), .left = At(1000), .bytes = bytes, .asked = Ms(1000)};
    source.source = report.stages.back().source;
    report.sources.push_back(source);
  }
  report.fetching = Ms(1000);
  report.wall_time = Time(Ms(1000), {{TimeUse::kWorking, Ms(100)}});
  return report;
}

v1::ServeReport Serving(const std::string& node, uint64_t bytes, const WallTime& time) {
  v1::ServeReport served;
  served.set_grant_id("transport-" + node);
  served.set_lane("tcp");
  served.set_bytes(bytes);
  served.set_requests(4);
  served.set_in_place(true);
  *served.mutable_wall_time() = rpc::ToProto(time);
  return served;
}

Route RouteTo(const TransferReport& report, const std::vector<std::pair<std::string, v1::ServeReport>>& up) {
  Route route{.hops = {{.node = "node-9", .replica_id = "replica", .transfer = report}}};
  for (const auto& [node, served] : up) route.hops.push_back({.node = node, .servings = {served}});
  return route;
}

Bound BoundOf(const Route& route) {
  const TransferReport& report = *route.hops.front().transfer;
  return FindBound(report, DetailsOf(route, report));
}

TEST(Cause, StoppedSource_IsNamedWithItsShare) {
  const Route route = RouteTo(
      MakeSlow(),
      {{"node-0", Serving("node-0", 64'000'000,
                          Time(Ms(1000), {{TimeUse::kStopped, Ms(830)}, {TimeUse::kWorking, Ms(80)}}))}});
  const Bound bound = BoundOf(route);
  EXPECT_EQ(bound.part, "fetch");
  EXPECT_EQ(bound.cause.name, "stopped");
  EXPECT_NEAR(bound.share, 0.83, 0.01);
  EXPECT_THAT(bound.why,
              AllOf(HasSubstr("All threads of node-0 stood still for 83 %"), Not(HasSubstr("network"))));
  EXPECT_THAT(RouteText(route), HasSubstr("Bounding hop: node-0 -> node-9 over tcp; cause: stopped.\n"));
}

// The fast source gave most, and could not give more; the stopped one is what cost the time.
TEST(Cause, StoppedSourceBesideFastOne_IsTheHop) {
  const Route route = RouteTo(
      MakeSlow({{"node-0", 54'000'000}, {"node-1", 10'000'000}}),
      {{"node-0", Serving("node-0", 54'000'000, Time(Ms(1000), {{TimeUse::kWorking, Ms(300)}}))},
       {"node-1", Serving("node-1", 10'000'000,
                          Time(Ms(1000), {{TimeUse::kStopped, Ms(830)}, {TimeUse::kWorking, Ms(60)}}))}});
  const Bound bound = BoundOf(route);
  EXPECT_EQ(bound.cause.name, "stopped");
  // Undisturbed, node-1 would have sent 10 / 0.17 = 59 MB in that time, so all together 1.77 times as much.
  EXPECT_NEAR(bound.share, 0.43, 0.01);
  EXPECT_EQ(FindBoundingHop(route)->from, "node-1");
}

TEST(Cause, ReceiveLimit_DoesNotRecommendFasterLane) {
  TransferReport report = MakeSlow();
  report.wall_time[TimeUse::kLimiter] = Ms(880);
  const Bound bound = BoundOf(RouteTo(
      report, {{"node-0", Serving("node-0", 64'000'000, Time(Ms(1000), {{TimeUse::kWorking, Ms(90)}}))}}));
  EXPECT_EQ(bound.cause.name, "limiter");
  EXPECT_EQ(bound.cause.grant_id, "");
  // The thread that ran for 10 % hands over to others, so without the limit it takes 13 %.
  EXPECT_NEAR(bound.share, 0.87, 0.01);
  EXPECT_THAT(bound.why, AllOf(HasSubstr("daemon.limits.receive of this node"),
                               HasSubstr("A higher limit would help"), Not(HasSubstr("network"))));
}

TEST(Cause, LimitThatHardlyHeldBytes_IsNotNamed) {
  TransferReport report = MakeSlow();
  report.wall_time[TimeUse::kLimiter] = Ms(150);
  const Bound bound = BoundOf(RouteTo(
      report, {{"node-0", Serving("node-0", 64'000'000, Time(Ms(1000), {{TimeUse::kWorking, Ms(250)}}))}}));
  EXPECT_EQ(bound.cause.name, "network");
}

// A process that is stopped for half of the time behind a link that is a fifth as fast as it sends: without
// the stops the transfer takes half as long, with a fast link a fifth.
TEST(Cause, SlowLinkBehindStoppedSource_CostsItsShareOfTheTimeThatIsLeft) {
  const WallTime source = Time(Ms(1000), {{TimeUse::kStopped, Ms(500)}, {TimeUse::kWorking, Ms(90)}});
  const Bound bound = BoundOf(RouteTo(MakeSlow(), {{"node-0", Serving("node-0", 64'000'000, source)}}));
  EXPECT_EQ(bound.cause.name, "network");
  EXPECT_NEAR(bound.share, 0.8, 0.01);
}

TEST(Cause, LimitBehindStoppedSource_CostsItsShareOfTheTimeThatIsLeft) {
  TransferReport report = MakeSlow();
  report.wall_time[TimeUse::kLimiter] = Ms(400);
  const WallTime source = Time(Ms(1000), {{TimeUse::kStopped, Ms(500)}, {TimeUse::kWorking, Ms(90)}});
  const Bound bound = BoundOf(RouteTo(report, {{"node-0", Serving("node-0", 64'000'000, source)}}));
  EXPECT_EQ(bound.cause.name, "limiter");
  EXPECT_NEAR(bound.share, 0.74, 0.01);
}

// While the limit holds a thread back, bytes come into the socket: all of that work is still to be done
// without the limit.
TEST(Cause, LimitOfBusyReceiver_CostsWhatItsWorkLeaves) {
  TransferReport report = MakeSlow();
  report.wall_time =
      Time(Ms(1000), {{TimeUse::kWorking, Ms(220)}, {TimeUse::kNoCpu, Ms(90)}, {TimeUse::kLimiter, Ms(790)}});
  const Bound bound = BoundOf(RouteTo(
      report, {{"node-0", Serving("node-0", 64'000'000, Time(Ms(1000), {{TimeUse::kWorking, Ms(190)}}))}}));
  EXPECT_EQ(bound.cause.name, "limiter");
  EXPECT_NEAR(bound.share, 0.60, 0.01);
}

// The link fills the socket while the receiver is stopped, but it costs more than the stops.
TEST(Cause, StoppedReceiverBehindSlowerLink_IsTheNetwork) {
  TransferReport report = MakeSlow();
  report.wall_time =
      Time(Ms(1000), {{TimeUse::kWorking, Ms(120)}, {TimeUse::kNoCpu, Ms(80)}, {TimeUse::kStopped, Ms(610)}});
  const WallTime source = Time(Ms(1000), {{TimeUse::kWorking, Ms(50)}, {TimeUse::kNoCpu, Ms(30)}});
  const Bound bound = BoundOf(RouteTo(report, {{"node-0", Serving("node-0", 64'000'000, source)}}));
  EXPECT_EQ(bound.cause.name, "network");
  EXPECT_NEAR(bound.share, 0.69, 0.01);
}

// A disk takes time where nothing is wrong with it, too.
TEST(Cause, StoppedReceiverThatReadsDisk_IsNamedBeforeTheDisk) {
  TransferReport report = MakeSlow();
  report.stages = {MakeStage(Stage::kFetch, "disk", "/model", 0, 1000, 4000, 64'000'000)};
  report.sources.clear();
  const auto with = [&report](int stopped) {
    report.wall_time = Time(
        Ms(1000), {{TimeUse::kWorking, Ms(90)}, {TimeUse::kNoCpu, Ms(90)}, {TimeUse::kStopped, Ms(stopped)}});
    return FindBound(report).cause.name;
  };
  EXPECT_EQ(with(520), "stopped");
  EXPECT_EQ(with(400), "disk") << "it costs 70 % of the time";
}

// Its limit lets the fast source send no more, so the slow link is what can be mended.
TEST(Cause, SourceWithSlowLinkBesideFastOne_IsTheHop) {
  const WallTime limited = Time(Ms(1000), {{TimeUse::kWorking, Ms(300)}, {TimeUse::kLimiter, Ms(250)}});
  const WallTime waiting = Time(Ms(1000), {{TimeUse::kWorking, Ms(100)}});
  const Route route = RouteTo(MakeSlow({{"node-0", 57'000'000}, {"node-1", 7'000'000}}),
                              {{"node-0", Serving("node-0", 57'000'000, limited)},
                               {"node-1", Serving("node-1", 7'000'000, waiting)}});
  const Bound bound = BoundOf(route);
  EXPECT_EQ(bound.cause.name, "network");
  // As fast as node-0, node-1 would have sent 50 MB more.
  EXPECT_NEAR(bound.share, 0.44, 0.01);
  EXPECT_EQ(FindBoundingHop(route)->from, "node-1");
}

TEST(Cause, ChunksWithoutStagingMemory_AreTheCause) {
  TransferReport report = MakeSlow();
  report.wall_time[TimeUse::kBuffers] = Ms(700);
  report.destination = {LocationKind::kGpu, 0};
  const Route route = RouteTo(
      report, {{"node-0", Serving("node-0", 64'000'000, Time(Ms(1000), {{TimeUse::kWorking, Ms(200)}}))}});
  const Bound bound = BoundOf(route);
  EXPECT_EQ(bound.cause.name, "buffers");
  EXPECT_THAT(RouteText(route), HasSubstr("Bounding hop: node-9 itself (fetch); cause: buffers.\n"));
  EXPECT_NEAR(bound.share, 0.7, 0.01);
  EXPECT_THAT(bound.why, HasSubstr("More daemon.staging_buffers would help"));
}

// Two ends that work do so at the same time: the link has what the busier one leaves, not what the sum
// leaves.
TEST(Cause, BothEndsWork_LinkCostsWhatBusierOneLeaves) {
  TransferReport report = MakeSlow();
  report.wall_time[TimeUse::kWorking] = Ms(250);
  report.wall_time[TimeUse::kNoCpu] = Ms(50);
  const WallTime source = Time(Ms(1000), {{TimeUse::kWorking, Ms(200)}, {TimeUse::kNoCpu, Ms(150)}});
  const Bound bound = BoundOf(RouteTo(report, {{"node-0", Serving("node-0", 64'000'000, source)}}));
  EXPECT_EQ(bound.cause.name, "network");
  EXPECT_NEAR(bound.share, 0.65, 0.01);
}

TEST(Cause, SendLimit_IsOfTheSource) {
  const Bound bound = BoundOf(
      RouteTo(MakeSlow(),
              {{"node-0", Serving("node-0", 64'000'000, Time(Ms(1000), {{TimeUse::kLimiter, Ms(700)}}))}}));
  EXPECT_EQ(bound.cause.name, "limiter");
  EXPECT_THAT(bound.why, HasSubstr("daemon.limits.send of node-0"));
}

TEST(Cause, NodeWithoutCpu_IsTheHopItself) {
  TransferReport report = MakeSlow();
  report.wall_time[TimeUse::kNoCpu] = Ms(700);
  const Route route = RouteTo(
      report, {{"node-0", Serving("node-0", 64'000'000, Time(Ms(1000), {{TimeUse::kWorking, Ms(90)}}))}});
  EXPECT_EQ(BoundOf(route).cause.name, "no cpu");
  EXPECT_THAT(RouteText(route), HasSubstr("Bounding hop: node-9 itself (fetch); cause: no cpu.\n"));
}

// Its threads slept for half of the time: bytes came no faster, and went on coming while one waited for a
// CPU.
TEST(Cause, SlowLinkToNodeThatWaitsForCpuAtTimes_IsTheNetwork) {
  TransferReport report = MakeSlow();
  report.wall_time = Time(Ms(1000), {{TimeUse::kWorking, Ms(50)}, {TimeUse::kNoCpu, Ms(450)}});
  const WallTime source = Time(Ms(1000), {{TimeUse::kWorking, Ms(10)}, {TimeUse::kNoCpu, Ms(70)}});
  const Bound bound = BoundOf(RouteTo(report, {{"node-0", Serving("node-0", 64'000'000, source)}}));
  EXPECT_EQ(bound.cause.name, "network");
  EXPECT_NEAR(bound.share, 0.92, 0.01);
}

TEST(Cause, StoppedReceiverThatVerifies_IsNamed) {
  TransferReport report = MakeSlow();
  report.stages.push_back(MakeStage(Stage::kVerify, "tcp", "node-0", 0, 1000, 4000, 64'000'000));
  report.wall_time[TimeUse::kStopped] = Ms(600);
  EXPECT_EQ(FindBound(report).part, "verify");
  EXPECT_EQ(FindBound(report).cause.name, "stopped");
  report.wall_time[TimeUse::kStopped] = Ms(300);
  EXPECT_EQ(FindBound(report).cause.name, "") << "verifying takes more";
}

TEST(Cause, TimeThatNoEndAccountsFor_IsTheNetwork) {
  const Route route =
      RouteTo(MakeSlow(),
              {{"node-0", Serving("node-0", 64'000'000, Time(Ms(1000), {{TimeUse::kWorking, Ms(200)}}))}});
  const Bound bound = BoundOf(route);
  EXPECT_EQ(bound.cause.name, "network");
  EXPECT_NEAR(bound.share, 0.8, 0.01);
  EXPECT_THAT(RouteText(route), HasSubstr("node-0 -> node-9 over tcp; cause: network.\n"));
}

TEST(Cause, SourceWithOtherReceivers_IsBusyWithThem) {
  v1::ServeReport served = Serving("node-0", 64'000'000, Time(Ms(1000), {{TimeUse::kWorking, Ms(950)}}));
  served.set_other_bytes(192'000'000);
  const Bound bound = BoundOf(RouteTo(MakeSlow(), {{"node-0", served}}));
  EXPECT_EQ(bound.cause.name, "other receivers");
  EXPECT_NEAR(bound.share, 0.75, 0.01);
}

// One other receiver got as much as this one: both wait for the link.
TEST(Cause, SlowLinkSharedWithOneOther_IsTheNetwork) {
  TransferReport report = MakeSlow();
  report.wall_time = Time(Ms(1000), {{TimeUse::kWorking, Ms(300)}, {TimeUse::kNoCpu, Ms(230)}});
  v1::ServeReport served = Serving("node-0", 64'000'000, Time(Ms(1000), {{TimeUse::kWorking, Ms(160)}}));
  served.set_other_bytes(60'000'000);
  Bound bound = BoundOf(RouteTo(report, {{"node-0", served}}));
  EXPECT_EQ(bound.cause.name, "network");
  EXPECT_THAT(bound.why, HasSubstr("node-0 sent 57.22 MiB to other receivers meanwhile"));
  served.set_other_bytes(192'000'000);
  bound = BoundOf(RouteTo(report, {{"node-0", served}}));
  EXPECT_EQ(bound.cause.name, "other receivers");
  EXPECT_NEAR(bound.share, 0.75, 0.01);
}

// What others got while this node was stopped did not cost it a byte.
TEST(Cause, OthersOfStoppedReceiver_CostLess) {
  TransferReport report = MakeSlow();
  report.wall_time = Time(Ms(1000), {{TimeUse::kWorking, Ms(170)}, {TimeUse::kStopped, Ms(440)}});
  v1::ServeReport served = Serving("node-0", 64'000'000, Time(Ms(1000), {{TimeUse::kWorking, Ms(400)}}));
  served.set_other_bytes(64'000'000);
  EXPECT_EQ(BoundOf(RouteTo(report, {{"node-0", served}})).cause.name, "stopped");
}

// The seed sent three times as much to the others, from which most of this node's bytes came.
TEST(Cause, SeedOfSwarmBehindSlowLink_IsNotBusyWithOthers) {
  v1::ServeReport seed = Serving("node-0", 16'000'000, Time(Ms(1000), {{TimeUse::kWorking, Ms(100)}}));
  seed.set_other_bytes(48'000'000);
  const Bound bound = BoundOf(
      RouteTo(MakeSlow({{"node-0", 16'000'000}, {"node-1", 48'000'000}}),
              {{"node-0", seed},
               {"node-1", Serving("node-1", 48'000'000, Time(Ms(1000), {{TimeUse::kWorking, Ms(200)}}))}}));
  EXPECT_EQ(bound.cause.name, "network");
}

TEST(Cause, BusiestThreadRunsAllTheTime_IsCores) {
  TransferReport report = MakeSlow();
  report.wall_time[TimeUse::kWorking] = Ms(930);
  const Bound bound = BoundOf(RouteTo(
      report, {{"node-0", Serving("node-0", 64'000'000, Time(Ms(1000), {{TimeUse::kWorking, Ms(500)}}))}}));
  EXPECT_EQ(bound.cause.name, "cores");
  EXPECT_EQ(bound.cause.grant_id, "");
}

// Bytes in small portions keep the receiving thread busy for about half of the time. Measured behind an
// uplink that took 69 % of the time.
TEST(Cause, SlowLinkWithHalfBusyThread_IsNetwork) {
  TransferReport report = MakeSlow();
  report.wall_time = Time(Ms(1000), {{TimeUse::kWorking, Ms(470)}, {TimeUse::kNoCpu, Ms(130)}});
  const WallTime source = Time(Ms(1000), {{TimeUse::kWorking, Ms(160)}, {TimeUse::kNoCpu, Ms(60)}});
  EXPECT_EQ(BoundOf(RouteTo(report, {{"node-0", Serving("node-0", 64'000'000, source)}})).cause.name,
            "network");
}

// The receiver's limit leaves a source little to do; what it lost of that is not what the transfer waited
// for.
TEST(Cause, IdleSourceThatLostALittleTime_IsNotTheCause) {
  TransferReport report = MakeSlow();
  report.wall_time[TimeUse::kLimiter] = Ms(900);
  const WallTime time = Time(Ms(1000), {{TimeUse::kIdle, Ms(950)}, {TimeUse::kStopped, Ms(50)}});
  EXPECT_EQ(BoundOf(RouteTo(report, {{"node-0", Serving("node-0", 64'000'000, time)}})).cause.name,
            "limiter");
}

TEST(Cause, StoppedSourceThatCountsThatAsIdle_IsTheCause) {
  const WallTime time =
      Time(Ms(1000), {{TimeUse::kIdle, Ms(800)}, {TimeUse::kStopped, Ms(830)}, {TimeUse::kWorking, Ms(90)}});
  const Bound bound = BoundOf(RouteTo(MakeSlow(), {{"node-0", Serving("node-0", 64'000'000, time)}}));
  EXPECT_EQ(bound.cause.name, "stopped");
  EXPECT_NEAR(bound.share, 0.83, 0.02);
}

TEST(Cause, SourceThatDoesNotAnswer_IsUnknown) {
  Route route{.hops = {{.node = "node-9", .replica_id = "replica", .transfer = MakeSlow()},
                       {.node = "node-0", .problem = "connection refused"}}};
  const Bound bound = BoundOf(route);
  EXPECT_EQ(bound.cause.name, "unknown");
  EXPECT_THAT(bound.why, HasSubstr("node-0 gave no report: connection refused"));
  route.hops[0].transfer->wall_time[TimeUse::kLimiter] = Ms(900);
  EXPECT_EQ(BoundOf(route).cause.name, "limiter") << "this node knows by itself";
}

TEST(Cause, EndsThatContradictEachOther_AreUnknown) {
  const WallTime time = Time(Ms(1000), {{TimeUse::kWorking, Ms(90)}});
  Bound bound = BoundOf(RouteTo(MakeSlow(), {{"node-0", Serving("node-0", 6'000'000, time)}}));
  EXPECT_EQ(bound.cause.name, "unknown");
  EXPECT_THAT(bound.why, HasSubstr("reports that it sent 5.72 MiB of the 61.04 MiB that arrived"));
  const WallTime idle = Time(Ms(1000), {{TimeUse::kWorking, Ms(90)}, {TimeUse::kIdle, Ms(800)}});
  bound = BoundOf(RouteTo(MakeSlow(), {{"node-0", Serving("node-0", 64'000'000, idle)}}));
  EXPECT_EQ(bound.cause.name, "network") << "what it had sent was on its way";
}

TEST(Cause, TransferTooShortForFiguresOfThreads_HasNoCause) {
  TransferReport report = MakeSlow();
  report.wall_time[TimeUse::kWorking] = absl::ZeroDuration();
  const std::vector<std::pair<std::string, v1::ServeReport>> up = {
      {"node-0", Serving("node-0", 64'000'000, Time(Ms(1000), {}))}};
  EXPECT_EQ(BoundOf(RouteTo(report, up)).cause.name, "");
  report.wall_time[TimeUse::kLimiter] = Ms(800);
  EXPECT_EQ(BoundOf(RouteTo(report, up)).cause.name, "limiter");
}

// 700 ms passed before the first chunk.
TransferReport StartedLate(absl::Duration without_space) {
  TransferReport report = MakeSlow();
  report.stages = {MakeStage(Stage::kFetch, "tcp", "node-0", 700, 1000, 900, 64'000'000)};
  report.wall_time[TimeUse::kBuffers] = without_space;
  return report;
}

TEST(Cause, PoolInUse_IsTheHopItself) {
  const Route route =
      RouteTo(StartedLate(Ms(650)),
              {{"node-0", Serving("node-0", 64'000'000, Time(Ms(300), {{TimeUse::kWorking, Ms(100)}}))}});
  const Bound bound = BoundOf(route);
  EXPECT_EQ(bound.part, "start");
  EXPECT_EQ(bound.cause.name, "space");
  EXPECT_NEAR(bound.share, 0.65, 0.01);
  EXPECT_THAT(bound.why, HasSubstr("waited for space in the pool of this node for 65 %"));
  EXPECT_EQ(FindBoundingHop(route)->from, "");
  EXPECT_EQ(FindBoundingHop(route)->cause, "space");
}

TEST(Cause, LateStartWithSpace_HasNoCause) {
  const Bound bound = FindBound(StartedLate(Ms(10)));
  EXPECT_EQ(bound.part, "start");
  EXPECT_EQ(bound.cause.name, "");
}

TEST(Cause, ReportWithoutAccounts_HasNoCause) {
  TransferReport report = MakeSlow();
  report.wall_time = {};
  EXPECT_EQ(FindBound(report).cause.name, "");
  EXPECT_THAT(FindBound(report).why, HasSubstr("The source or the network is the limit"));
}

TEST(Cause, HostileAccounts_GiveSharesOfOneAtMost) {
  TransferReport report = MakeSlow();
  report.wall_time = Time(Ms(1), {{TimeUse::kStopped, absl::InfiniteDuration()}, {TimeUse::kNoCpu, Ms(-5)}});
  v1::ServeReport served = Serving("node-0", 64'000'000, Time(Ms(1), {{TimeUse::kIdle, absl::Hours(1)}}));
  served.set_other_bytes(~uint64_t{0});
  const Bound bound = BoundOf(RouteTo(report, {{"node-0", served}}));
  EXPECT_LE(bound.share, 1);
  EXPECT_GE(bound.share, 0);
}

}  // namespace
}  // namespace tensorcast::explain::cause_test
