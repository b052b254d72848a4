#include "cli/doctor/cluster_checks.h"

#include <functional>

#include "cli/doctor/test_facts.h"

namespace tensorcast::doctor::cluster_checks_test {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;

FindingList Of(void (*check)(const Facts&, FindingList&), const Facts& facts) {
  FindingList out;
  check(facts, out);
  return out;
}

FindingList Listing(const std::function<void(v1::Node&)>& change) {
  NodeFacts node = WellNode("n");
  change(node.node);
  FindingList out;
  CheckListing(node, out);
  return out;
}

TEST(ClusterChecks, ClusterThatIsWell_HasOnlyOkFindings) {
  const Facts facts = WellCluster();
  for (const auto check : {CheckAnswers, CheckReachability, CheckVersions, CheckGlobalStore}) {
    const FindingList out = Of(check, facts);
    EXPECT_THAT(out, Not(IsEmpty()));
    EXPECT_THAT(out, Each(Field(&Finding::level, Level::kOk)));
  }
}

TEST(ClusterChecks, Listing_TellsUnreachableAndDrainingNodes) {
  EXPECT_THAT(Listing([](v1::Node&) {}), ElementsAre(Finds(Level::kOk, "n", "source")));
  EXPECT_THAT(Listing([](v1::Node& node) { node.set_unreachable(true); }),
              ElementsAre(Finds(Level::kFail, "n", "daemon.advertise")));
  EXPECT_THAT(Listing([](v1::Node& node) { node.set_draining(true); }),
              ElementsAre(Finds(Level::kWarn, "n", "tensorcast node undrain n")));
}

TEST(ClusterChecks, NodeThatIsNotListed_Fails) {
  NodeFacts node = WellNode("n");
  node.listed = false;
  FindingList out;
  CheckListing(node, out);
  EXPECT_THAT(out, ElementsAre(Finds(Level::kFail, "n", "does not list this node")));
}

TEST(ClusterChecks, NodeThatNoneReaches_FailsOnce) {
  Facts facts = WellCluster();
  facts.nodes[1].status = absl::DeadlineExceededError("no answer");
  facts.probes = {{.from = "a", .to = "b", .outcome = absl::DeadlineExceededError("too late")}};
  EXPECT_THAT(Of(CheckAnswers, facts),
              ElementsAre(Finds(Level::kOk, "a", "in "),
                          Finds(Level::kFail, "b", "this node is not reached by a either")));
  EXPECT_THAT(Of(CheckReachability, facts), IsEmpty());
}

TEST(ClusterChecks, NodeThatOthersReach_IsNotAFailure) {
  Facts facts = WellCluster();
  facts.nodes[1].status = absl::UnavailableError("no route");
  EXPECT_THAT(Of(CheckAnswers, facts),
              Contains(Finds(Level::kWarn, "b", "not checked: this node does not answer")));
  facts.nodes[1].status = absl::PermissionDeniedError("another role");
  facts.probes.clear();
  EXPECT_THAT(Of(CheckAnswers, facts), Contains(Finds(Level::kWarn, "b", "not checked: this node refuses")));
}

TEST(ClusterChecks, OneWayConnection_FailsWithBothNames) {
  Facts facts = WellCluster();
  facts.probes[1].outcome = absl::UnavailableError("connection refused");
  EXPECT_THAT(Of(CheckReachability, facts),
              ElementsAre(Finds(Level::kFail, "a", "this node is not reached by b: connection refused"),
                          Finds(Level::kOk, "b", "reached by a")));
}

TEST(ClusterChecks, RefusedProbe_IsNotChecked) {
  Facts facts = WellCluster();
  for (ProbeFacts& probe : facts.probes) {
    probe.call = absl::PermissionDeniedError("requires the operator role");
  }
  EXPECT_THAT(
      Of(CheckReachability, facts),
      ElementsAre(Finds(Level::kWarn, "cluster", "not checked from a, b: a probe needs the operator role")));
}

TEST(ClusterChecks, DifferentVersions_AreNamed) {
  Facts facts = WellCluster();
  facts.nodes.push_back(WellNode("c"));
  facts.nodes[2].status->mutable_host()->set_software_version("1.2.2");
  facts.nodes[2].node.set_protocol_version(1);
  EXPECT_THAT(Of(CheckVersions, facts),
              IsSupersetOf({Finds(Level::kWarn, "c", "1.2.2"), Finds(Level::kFail, "c", "protocol 1"),
                            Finds(Level::kOk, "a", "1.2.3")}));
  facts = WellCluster();
  facts.version = "1.3.0";
  EXPECT_THAT(Of(CheckVersions, facts), ElementsAre(Finds(Level::kWarn, "a", "this program is 1.3.0"),
                                                    Finds(Level::kWarn, "b", "1.3.0")));
}

TEST(ClusterChecks, Store_QuotaMembersAndAbsence) {
  Facts facts = WellCluster();
  facts.cluster->set_metadata_bytes(90);
  facts.cluster->set_metadata_quota_bytes(100);
  v1::StoreMember* member = facts.cluster->add_stores();
  member->set_address("s1");
  member->set_leads(true);
  EXPECT_THAT(Of(CheckGlobalStore, facts),
              IsSupersetOf({Finds(Level::kWarn, "global store", "no global store stands by"),
                            Finds(Level::kWarn, "global store", "compact and defragment")}));
  facts.cluster->set_metadata_bytes(99);
  member->set_leads(false);
  EXPECT_THAT(Of(CheckGlobalStore, facts),
              IsSupersetOf({Finds(Level::kFail, "global store", "no global store leads"),
                            Finds(Level::kFail, "global store", "etcd holds")}));
  facts.cluster->set_metadata_store("memory");
  facts.cluster->set_conservation_violations(2);
  EXPECT_THAT(Of(CheckGlobalStore, facts),
              IsSupersetOf({Finds(Level::kWarn, "global store", "in memory"),
                            Finds(Level::kWarn, "global store", "debug bundle")}));
  facts.cluster = absl::UnavailableError("away");
  EXPECT_THAT(Of(CheckGlobalStore, facts), ElementsAre(Finds(Level::kFail, "global store", "away")));
}

}  // namespace
}  // namespace tensorcast::doctor::cluster_checks_test
