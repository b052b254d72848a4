#include "cli/explain/find_transfer.h"

#include <gmock/gmock.h>

namespace tensorcast::explain::find_transfer_test {
namespace {

using ::testing::HasSubstr;

v1::GetStatusResponse Ring() {
  v1::GetStatusResponse status;
  status.mutable_node()->set_name("node-1");
  for (const auto& [transfer, replica] :
       {std::pair{"cc33", "r2"}, std::pair{"cc3344", "r1"}, std::pair{"aa11", "r1"}}) {
    v1::TransferReport* report = status.add_recent_transfers();
    report->set_transfer_id(transfer);
    report->set_replica_id(replica);
  }
  return status;
}

TEST(FindTransfer, FindLast_ReturnsNewestTransfer) {
  EXPECT_EQ(FindTransfer(Ring(), "last")->report.transfer_id(), "cc33");
}

TEST(FindTransfer, UniqueIdPrefix_FindsTransfer) {
  EXPECT_EQ(FindTransfer(Ring(), "a")->report.transfer_id(), "aa11");
}

TEST(FindTransfer, FullId_IsPreferredToLongerIds) {
  EXPECT_EQ(FindTransfer(Ring(), "cc33")->report.transfer_id(), "cc33");
}

TEST(FindTransfer, ReplicaId_FindsItsNewestTransfer) {
  EXPECT_EQ(FindTransfer(Ring(), "r1")->report.transfer_id(), "cc3344");
}

TEST(FindTransfer, AmbiguousIdPrefix_ErrorListsMatches) {
  const auto found = FindTransfer(Ring(), "cc");
  EXPECT_EQ(found.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(found.status().message(), HasSubstr("cc33, cc3344"));
}

TEST(FindTransfer, UnknownId_ErrorListsRecentTransfers) {
  for (const char* wanted : {"zz", ""}) {
    const auto found = FindTransfer(Ring(), wanted);
    EXPECT_EQ(found.status().code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(found.status().message(), HasSubstr("cc33, cc3344, aa11"));
  }
}

TEST(FindTransfer, RunningTransfer_IsLastOnlyIfNoneHasEnded) {
  v1::GetStatusResponse status = Ring();
  status.add_running_transfers()->set_transfer_id("dd44");
  EXPECT_EQ(FindTransfer(status, "last")->report.transfer_id(), "cc33");
  EXPECT_FALSE(FindTransfer(status, "last")->under_way);
  EXPECT_TRUE(FindTransfer(status, "dd")->under_way);
  status.clear_recent_transfers();
  EXPECT_EQ(FindTransfer(status, "last")->report.transfer_id(), "dd44");
}

TEST(FindTransfer, FindTransferWithoutTransfers_ErrorSuggestsOtherDaemon) {
  v1::GetStatusResponse status;
  status.mutable_node()->set_name("node-1");
  const auto found = FindTransfer(status, "last");
  EXPECT_EQ(found.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(found.status().message(), HasSubstr("--daemon"));
}

}  // namespace
}  // namespace tensorcast::explain::find_transfer_test
