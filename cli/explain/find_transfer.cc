#include "cli/explain/find_transfer.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/artifact/manifest.h"

namespace tensorcast::explain {
namespace {

// Newest first: those under way, then those that ended.
std::vector<FoundTransfer> AllOf(const v1::GetStatusResponse& status) {
  std::vector<FoundTransfer> all;
  // Running transfers come the oldest first, those that ended the newest first.
  for (const v1::TransferReport& report : status.running_transfers()) all.push_back({report, true});
  std::reverse(all.begin(), all.end());
  for (const v1::TransferReport& report : status.recent_transfers()) all.push_back({report, false});
  return all;
}

std::string Ids(const std::vector<FoundTransfer>& transfers) {
  return absl::StrJoin(transfers, ", ", [](std::string* out, const FoundTransfer& transfer) {
    absl::StrAppend(out, transfer.report.transfer_id());
  });
}

// A whole id is meant even where a longer one begins with it. Of a replica that several transfers made, only
// the newest counts.
std::vector<FoundTransfer> Matching(const std::vector<FoundTransfer>& all, std::string_view prefix) {
  std::vector<FoundTransfer> found;
  std::set<std::string_view> replicas;
  for (const FoundTransfer& one : all) {
    if (one.report.transfer_id() == prefix) return {one};
    const bool by_replica =
        absl::StartsWith(one.report.replica_id(), prefix) && replicas.insert(one.report.replica_id()).second;
    if (by_replica || absl::StartsWith(one.report.transfer_id(), prefix)) found.push_back(one);
  }
  return found;
}

}  // namespace

absl::StatusOr<FoundTransfer> FindTransfer(const v1::GetStatusResponse& status, std::string_view wanted) {
  const std::string& node = status.node().name();
  const std::vector<FoundTransfer> all = AllOf(status);
  if (all.empty()) {
    return absl::NotFoundError(absl::StrCat(
        "explain ", wanted, ": daemon ", node,
        " has received nothing since its start; ask the daemon that received the artifact (--daemon)"));
  }
  // The last that ended: one that is under way has no verdict yet, and is shown only where none has ended.
  if (wanted == "last") {
    const auto ended = std::ranges::find(all, false, &FoundTransfer::under_way);
    return ended == all.end() ? all.front() : *ended;
  }
  if (IsArtifactId(wanted)) {
    // `all` has the newest first, so this is the newest transfer of the artifact.
    const auto of_it = std::ranges::find_if(
        all, [&](const FoundTransfer& one) { return one.report.artifact_id() == wanted; });
    if (of_it != all.end()) return *of_it;
  }
  const auto found = wanted.empty() ? std::vector<FoundTransfer>{} : Matching(all, wanted);
  if (found.size() == 1) return found.front();
  if (found.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "explain ", wanted, ": several transfers match: ", Ids(found), "; give more characters of the id"));
  }
  return absl::NotFoundError(absl::StrCat("explain ", wanted, ": daemon ", node,
                                          " remembers no such transfer, replica or artifact",
                                          "; ask the daemon that received the artifact (--daemon), or choose "
                                          "one of these transfers, newest first: ",
                                          Ids(all)));
}

}  // namespace tensorcast::explain
