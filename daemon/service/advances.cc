#include "daemon/service/advances.h"

#include <sys/types.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tensorcast::daemon {
namespace {

// The max number of readers in an error.
constexpr size_t kReadersNamed = 10;

}  // namespace

std::vector<std::string> ReadersOf(const std::string& replica_id, const Sessions& sessions,
                                   const ServeRegistry& servings,
                                   const std::function<bool(const void* lease)>& except) {
  std::vector<std::string> readers;
  for (const pid_t pid : sessions.HoldersOf(replica_id, except)) {
    readers.push_back(pid > 0 ? absl::StrCat("process ", pid) : "a process of another container");
  }
  for (const v1::ServeReport& pull : servings.Reports()) {
    if (pull.replica_id() != replica_id || pull.has_closed()) continue;
    readers.push_back(absl::StrCat("a pull of node ", pull.receiver_node_id()));
  }
  return readers;
}

std::string ListReaders(std::vector<std::string> readers) {
  const size_t unnamed = readers.size() > kReadersNamed ? readers.size() - kReadersNamed : 0;
  readers.resize(readers.size() - unnamed);
  if (unnamed > 0) readers.push_back(absl::StrCat(unnamed, " more"));
  return absl::StrJoin(readers, ", ");
}

absl::Status CheckAdvance(const v1::MaterializeReplicaRequest& request, const Location& location) {
  if (!request.advance()) return absl::OkStatus();
  if (location.kind != LocationKind::kDisk && request.tensors().empty() && request.lane().empty()) {
    return absl::OkStatus();
  }
  const std::string_view why =
      location.kind == LocationKind::kDisk
          ? "an advance cannot overwrite a packed file on disk; name cpu or a GPU"
      : !request.tensors().empty()
          ? "the call chose tensors, but an advance writes all tensors; leave tensors out"
          : "the call names a lane, but an advance chooses the lanes itself; leave the lane out";
  return absl::InvalidArgumentError(absl::StrCat("advance to ",
                                                 request.has_key() ? request.key() : request.artifact_id(),
                                                 ": ", why, ", or get without advance"));
}

absl::Status NameReaders(const absl::Status& refused, const Advance& advance, const Location& location,
                         const StoreEngine& engine, const Sessions& sessions, const ServeRegistry& servings) {
  // Other errors are not about readers.
  if (!absl::IsFailedPrecondition(refused) && !absl::IsDeadlineExceeded(refused)) return refused;
  std::vector<std::string> readers;
  for (const ReplicaInfo& replica : engine.ListReplicas()) {
    if (replica.artifact_id != advance.base_id() || replica.location != location) continue;
    std::ranges::move(ReadersOf(replica.id, sessions, servings), std::back_inserter(readers));
  }
  if (readers.empty()) return refused;
  return absl::Status(refused.code(), absl::StrCat(refused.message(), "; the replica is read now by ",
                                                   ListReaders(std::move(readers))));
}

}  // namespace tensorcast::daemon
