#include "cli/explain/rollout.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "cli/explain/test_reports.h"
#include "rpc/convert/convert.h"
#include "rpc/convert/transfer_reports.h"

namespace tensorcast::explain {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

google::protobuf::Timestamp Wall(int ms) {
  return rpc::ToProto(absl::FromUnixSeconds(1'700'000'000) + absl::Milliseconds(ms));
}

v1::RolloutHop MakeHop(const std::string& source, const std::string& receiver, int from_ms, int to_ms) {
  v1::RolloutHop hop;
  hop.set_node_name(receiver);
  hop.set_source_name(source);
  hop.set_lane("tcp");
  hop.set_bytes(64'000'000);
  *hop.mutable_begun() = Wall(from_ms);
  *hop.mutable_ended() = Wall(to_ms);
  return hop;
}

// A key that two nodes received from node-a, and one of these slowly.
v1::ExplainRolloutResponse MakeRollout() {
  v1::ExplainRolloutResponse rollout;
  rollout.set_artifact_id("tc2:abc");
  rollout.set_key_revision(3);
  *rollout.mutable_bound() = Wall(-500);
  rollout.set_receivers(2);
  rollout.set_ended(2);
  v1::RolloutLevel& level = *rollout.add_levels();
  level.set_receivers(2);
  level.set_ended(2);
  *level.mutable_first_begun() = Wall(0);
  *level.mutable_last_ended() = Wall(4000);
  *rollout.add_critical_path() = MakeHop("node-a", "node-c", 100, 4000);
  *rollout.add_slowest() = MakeHop("node-a", "node-c", 100, 4000);
  (*rollout.mutable_slowest(0)->mutable_labels())["zone"] = "z1";
  *rollout.add_slowest() = MakeHop("node-a", "node-b", 0, 1000);
  *rollout.mutable_worst_hop() = MakeHop("node-a", "node-c", 100, 4000);
  *rollout.mutable_worst_hop_costs() = rpc::ToProto(absl::Milliseconds(2900));
  return rollout;
}

const std::vector<SlowCause> kCauses = {
    {.name = "limiter", .at = "node-c", .why = "daemon.limits.receive holds it back.", .problem = ""},
    {.name = "",
     .at = "",
     .why = "",
     .problem = "the node's daemon did not explain the transfer: connection refused"}};

TEST(ExplainRollout, Page_ShowsTreePathSlowestAndWorstHop) {
  EXPECT_EQ(ExplainRollout("llama/prod", MakeRollout(), kCauses), R"(rollout of llama/prod, revision 3
  artifact   tc2:abc
  bound      2023-11-14T22:13:19+00:00
  receivers  2: 2 ended, 0 under way, 0 failed
  took       4.000 s, from the first request to the last end

The tree, by distance from the first copies:
level  receivers  ended  first began  last ended
    1          2      2        0.000       4.000

The path to the receiver that ended last:
from    to      lane      bytes  began  seconds       rate
node-a  node-c  tcp   61.04 MiB  0.100    3.900  16.4 MB/s

The slowest receivers:
node    labels   from    lane      bytes  seconds  cause
node-c  zone=z1  node-a  tcp   61.04 MiB    3.900  limiter (node-c)
node-b           node-a  tcp   61.04 MiB    1.000  unknown
node-c: daemon.limits.receive holds it back.
node-b: the node's daemon did not explain the transfer: connection refused

The hop with the largest delay: node-a -> node-c. If this hop were as fast as the median hop, the rollout would end 2.900 s sooner.
)");
}

TEST(ExplainRollout, RolloutThatIsNotKnown_SaysSo) {
  v1::ExplainRolloutResponse rollout;
  rollout.set_artifact_id("tc2:abc");
  *rollout.mutable_bound() = Wall(0);
  rollout.set_left_out("transfers before the global store started at 2026-11-26T22:00:00+00:00");
  EXPECT_THAT(ExplainRollout("tc2:abc", rollout, {}),
              AllOf(HasSubstr("published  "), HasSubstr("not known  transfers before"),
                    HasSubstr("remembers no transfer of this artifact"), Not(HasSubstr("The tree"))));
}

TEST(ExplainRollout, ReceiversUnderWayAndFailed_AreTold) {
  v1::ExplainRolloutResponse rollout = MakeRollout();
  rollout.set_receivers(4);
  rollout.set_failed(1);
  rollout.mutable_slowest(0)->clear_ended();
  rollout.mutable_slowest(1)->set_failed(true);
  rollout.clear_worst_hop();
  EXPECT_THAT(
      ExplainRollout("k", rollout, kCauses),
      AllOf(HasSubstr("4: 2 ended, 1 under way, 1 failed"), HasSubstr("so far"), HasSubstr("under way  "),
            HasSubstr("1.000 failed"), HasSubstr("No single hop delays the rollout")));
}

TEST(ExplainRollout, Json_HasMessageAndCauses) {
  const nlohmann::json json =
      nlohmann::json::parse(RolloutJson(MakeRollout(), kCauses), nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["rollout"]["slowest"][0]["node_name"], "node-c");
  EXPECT_EQ(json["causes"][0]["node"], "node-c");
  EXPECT_EQ(json["causes"][0]["cause"], "limiter");
  EXPECT_THAT(json["causes"][1]["problem"].get<std::string>(), HasSubstr("connection refused"));
}

TEST(SlowCauseOf, ExplainedTransfer_IsNamedByItsBound) {
  v1::ExplainTransferResponse response;
  v1::TransferHop& hop = *response.add_hops();
  hop.set_node("node-c");
  TransferReport report = MakeReport();
  report.sources.clear();
  report.stages = {MakeStage(Stage::kFetch, "disk", "model.safetensors", 20, 80, 5, 64'000'000),
                   MakeStage(Stage::kPlace, "disk", "model.safetensors", 20, 90, 70, 64'000'000)};
  *hop.mutable_transfer() = rpc::ToProto(report);
  const SlowCause cause = CauseOf(response);
  EXPECT_EQ(cause.name, "place");
  EXPECT_EQ(cause.at, "node-c");
  EXPECT_THAT(cause.why, Not(testing::IsEmpty()));
  EXPECT_EQ(cause.problem, "");
}

TEST(SlowCauseOf, ForgottenTransfer_IsUnknown) {
  const SlowCause cause = CauseOf({});
  EXPECT_EQ(cause.name, "");
  EXPECT_THAT(cause.problem, HasSubstr("remembers no such transfer"));
}

}  // namespace
}  // namespace tensorcast::explain
