#include "tools/explain/find_transfer.h"

#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tensorcast::explain {
namespace {

std::string Ids(const std::vector<const v1::TransferReport*>& reports) {
  return absl::StrJoin(reports, ", ", [](std::string* out, const v1::TransferReport* report) {
    absl::StrAppend(out, report->transfer_id());
  });
}

std::vector<const v1::TransferReport*> Matching(const v1::GetStatusResponse& status,
                                                std::string_view prefix) {
  std::vector<const v1::TransferReport*> found;
  std::set<std::string_view> replicas;
  for (const v1::TransferReport& report : status.recent_transfers()) {
    if (report.transfer_id() == prefix) return {&report};
    const bool by_replica =
        absl::StartsWith(report.replica_id(), prefix) && replicas.insert(report.replica_id()).second;
    if (by_replica || absl::StartsWith(report.transfer_id(), prefix)) found.push_back(&report);
  }
  return found;
}

}  // namespace

absl::StatusOr<v1::TransferReport> FindTransfer(const v1::GetStatusResponse& status,
                                                std::string_view wanted) {
  const std::string& node = status.node().name();
  if (status.recent_transfers().empty()) {
    return absl::NotFoundError(absl::StrCat("daemon ", node,
                                            " has moved nothing since it started; a transfer is ",
                                            "explained by the daemon that received it (--daemon)"));
  }
  if (wanted == "last") return status.recent_transfers(0);
  const auto found = wanted.empty() ? std::vector<const v1::TransferReport*>{} : Matching(status, wanted);
  if (found.size() == 1) return *found.front();
  if (found.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("several transfers begin with ", wanted, ": ", Ids(found), "; give more of the id"));
  }
  std::vector<const v1::TransferReport*> all;
  for (const v1::TransferReport& report : status.recent_transfers()) all.push_back(&report);
  return absl::NotFoundError(absl::StrCat(
      "daemon ", node, " remembers no transfer or replica ", wanted,
      "; ask the daemon that received it (--daemon), or choose one of these, ", "newest first: ", Ids(all)));
}

}  // namespace tensorcast::explain
