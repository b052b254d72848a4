// `tensorcast replica`: the replicas of one daemon.
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cli/commands/command.h"
#include "cli/commands/connect.h"
#include "cli/commands/texts.h"
#include "cli/output/output.h"
#include "core/replica/replica.h"
#include "rpc/convert/convert.h"

namespace tensorcast::cli {
namespace {

struct ReplicaFlags {
  std::string replica;  // its id, or a key or an artifact id for all of them
  bool force = false;
};

std::string ReplicaStateText(v1::ReplicaState state) {
  const absl::StatusOr<ReplicaState> parsed = rpc::FromProto(state);
  return parsed.ok() ? std::string(ReplicaStateName(*parsed)) : "?";
}

absl::Status ListReplicas(const CommonFlags& common) {
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  TC_ASSIGN_OR_RETURN(const auto replicas, admin->ListReplicas(InterruptibleContext(), ""));
  // As JSON the message of the call, which has more fields than the table.
  v1::ListReplicasResponse all;
  all.mutable_replicas()->Assign(replicas.begin(), replicas.end());
  Table table({"replica", "artifact", "location", "state", "bytes", "chunks", "leases", "pinned"});
  for (const v1::Replica& replica : replicas) {
    table.Add({replica.replica_id(), replica.artifact_id(), LocationText(replica.location()),
               ReplicaStateText(replica.state()), absl::StrCat(replica.image_bytes()),
               absl::StrCat(replica.chunks_present(), "/", replica.chunks_total(),
                            replica.chunks_unverified() > 0 ? " (not verified)" : ""),
               absl::StrCat(replica.leases()), replica.pinned() ? "yes" : "no"});
  }
  return Show(common, all, [&] { return table.ToString(); });
}

absl::Status EvictReplica(const CommonFlags& common, const ReplicaFlags& flags) {
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  TC_RETURN_IF_ERROR(admin->EvictReplica(InterruptibleContext(), flags.replica, flags.force));
  return Show(common, {{"replica_id", flags.replica}}, absl::StrCat("evicted ", flags.replica, "\n"));
}

template <bool pinned>
absl::Status SetPinned(const CommonFlags& common, const ReplicaFlags& flags) {
  TC_ASSIGN_OR_RETURN(const auto client, ConnectClient(common));
  TC_RETURN_IF_ERROR(client->SetPinned(InterruptibleContext(), flags.replica, pinned));
  return Show(common, {{"replica_id", flags.replica}, {"pinned", pinned}},
              absl::StrCat(pinned ? "pinned " : "unpinned ", flags.replica, "\n"));
}

void AddName(Flags& flags, ReplicaFlags& values) {
  flags.Add("replica", values.replica,
            "A replica id from `replica ls`; a key or an artifact id means all its replicas at this daemon",
            {.required = true, .not_empty = true});
}

void AddRemoveFlags(Flags& flags, ReplicaFlags& values) {
  AddName(flags, values);
  flags.Add("--force", values.force, "Evict even the last copy of the artifact");
}

}  // namespace

Command ReplicaCommand() {
  return {.name = "replica",
          .help = "Work with the replicas of this daemon",
          .commands = {{.name = "ls", .help = "List replicas", .spanned = true, .bind = Bind(ListReplicas)},
                       {.name = "rm",
                        .help = "Evict a replica; the artifact itself is not deleted",
                        .spanned = true,
                        .bind = Bind(AddRemoveFlags, EvictReplica)},
                       {.name = "pin",
                        .help = "Prevent the eviction of a replica",
                        .spanned = true,
                        .bind = Bind(AddName, SetPinned<true>)},
                       {.name = "unpin",
                        .help = "Allow the eviction of a replica again",
                        .spanned = true,
                        .bind = Bind(AddName, SetPinned<false>)}}};
}

}  // namespace tensorcast::cli
