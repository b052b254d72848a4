#include "cli/doctor/diagnosis.h"

#include "cli/doctor/test_facts.h"

namespace tensorcast::doctor::diagnosis_test {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;

TEST(Diagnosis, ClusterThatIsWell_HasOnlyOkFindings) {
  const FindingList findings = Diagnose(WellCluster());
  EXPECT_GT(findings.size(), 20u);
  EXPECT_THAT(findings, Each(Field(&Finding::level, Level::kOk)));
  EXPECT_FALSE(AnyFailed(findings));
}

TEST(Diagnosis, NoDaemon_ChecksWhereOneWasLookedFor) {
  Facts facts{
      .now = TestNow(),
      .answer = absl::UnavailableError("nothing listens"),
      .socket_folders = {{.path = "/run/a", .listens = absl::UnavailableError("")},
                         {.path = "/run/b", .exists = true, .listens = absl::UnavailableError("")},
                         {.path = "/run/c", .exists = true, .listens = absl::PermissionDeniedError("")}}};
  EXPECT_THAT(Diagnose(facts),
              ElementsAre(Finds(Level::kFail, "this host", "nothing listens; start a daemon"),
                          Finds(Level::kOk, "this host", "there is no folder /run/a"),
                          Finds(Level::kOk, "this host", "no daemon listens in /run/b"),
                          Finds(Level::kWarn, "this host", "daemon.handle_groups")));
}

TEST(Diagnosis, DiskRoom_WarnsBelowATenthAndFailsBelowAHundredth) {
  const auto with = [](uint64_t available) {
    Facts facts = WellCluster();
    facts.disk = DiskFacts{.folder = "/packs", .bytes = 1000 * kGiB, .available_bytes = available};
    FindingList out;
    CheckDisk(facts, out);
    return out;
  };
  EXPECT_THAT(with(200 * kGiB), ElementsAre(Finds(Level::kOk, "this host", "/packs")));
  EXPECT_THAT(with(99 * kGiB), ElementsAre(Finds(Level::kWarn, "this host", "daemon.disk_dir")));
  EXPECT_THAT(with(9 * kGiB), ElementsAre(Finds(Level::kFail, "this host", "9.00 GiB")));
}

TEST(Diagnosis, DiskThatCannotBeRead_IsNamed) {
  Facts facts = WellCluster();
  facts.disk = absl::PermissionDeniedError("read /packs: Permission denied");
  FindingList out;
  CheckDisk(facts, out);
  EXPECT_THAT(out, ElementsAre(Finds(Level::kWarn, "this host", "not checked: read /packs")));
  facts.disk.reset();
  CheckDisk(facts, out);
  EXPECT_EQ(out.size(), 1u) << "the daemon is on another host";
}

TEST(Diagnosis, NodesThatWereNotAsked_AreCounted) {
  Facts facts = WellCluster();
  facts.nodes_left_out = 7;
  EXPECT_THAT(Diagnose(facts), Contains(Finds(Level::kWarn, "cluster", "7 nodes were not checked")));
}

}  // namespace
}  // namespace tensorcast::doctor::diagnosis_test
