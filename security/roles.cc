#include "security/roles.h"

#include <algorithm>
#include <array>
#include <vector>

#include "absl/strings/str_join.h"

namespace tensorcast::security {
namespace {

constexpr RoleSet kStore = Only(Role::kGlobalStore);
constexpr RoleSet kNode = Only(Role::kNode);
constexpr RoleSet kOperator = Only(Role::kOperator);
constexpr RoleSet kClient = Only(Role::kClient);
// Every role but the global store.
constexpr RoleSet kReaders = kNode | kOperator | kClient;

// A call that is not listed here is refused to every role (RolesOf), so a new call is closed until this
// table opens it.
constexpr CallRow kTable[] = {
    {"GlobalStore/RegisterNode", kNode, "as the node of that name alone, as all that a node says of itself"},
    {"GlobalStore/Heartbeat", kNode, ""},
    {"GlobalStore/ReconcileInventory", kNode, ""},
    {"GlobalStore/UpdateReplicas", kNode, ""},
    {"GlobalStore/RequestEviction", kNode, ""},
    {"GlobalStore/DrainNode", kNode | kOperator, "a node: itself alone, when it stops"},
    {"GlobalStore/ForgetNode", kOperator, "the next node that registers may take its id"},
    {"GlobalStore/PublishArtifact", kNode, "of what a client put there"},
    {"GlobalStore/DescribeArtifact", kReaders, ""},
    {"GlobalStore/ListArtifacts", kReaders, ""},
    {"GlobalStore/DeleteArtifact", kOperator, "everywhere, for good"},
    {"GlobalStore/BindKey", kOperator | kClient, ""},
    {"GlobalStore/ResolveKey", kReaders, ""},
    {"GlobalStore/ListKeys", kReaders, ""},
    {"GlobalStore/DeleteKey", kOperator, ""},
    {"GlobalStore/WatchKeys", kReaders, ""},
    {"GlobalStore/RequestReplicaTransport", kNode, "the grant names it as the receiver"},
    {"GlobalStore/CompleteReplicaTransport", kNode, ""},
    {"GlobalStore/ExplainRollout", kReaders, ""},
    {"GlobalStore/ReplicateArtifact", kOperator, "fills the pools of many nodes"},
    {"GlobalStore/ListReplicationTasks", kReaders, ""},
    {"GlobalStore/WatchReplicationTasks", kReaders, ""},
    {"GlobalStore/CancelReplicationTasks", kOperator, ""},
    {"GlobalStore/JoinBroadcast", kNode, "one of the group's, which is given what it takes to join"},
    {"GlobalStore/GetClusterStatus", kReaders, ""},
    {"StoreDaemon/PutArtifact", kOperator | kClient, ""},
    {"StoreDaemon/ImportArtifact", kOperator | kClient,
     "below daemon.import_roots or daemon.origins, or as itself"},
    {"StoreDaemon/MaterializeReplica", kStore | kOperator | kClient,
     "the global store: to have an origin read"},
    {"StoreDaemon/AttachReplica", kReaders, "a node: with a grant"},
    {"StoreDaemon/EvictReplica", kOperator, ""},
    {"StoreDaemon/CollectArchives", kOperator, "within daemon.archives"},
    {"StoreDaemon/PinReplica", kOperator, "any replica; a client pins by its own put and get"},
    {"StoreDaemon/UnpinReplica", kOperator, ""},
    {"StoreDaemon/ListReplicas", kOperator | kClient, ""},
    {"StoreDaemon/GetStatus", kOperator | kClient, ""},
    {"StoreDaemon/WatchStatus", kOperator | kClient, ""},
    {"StoreDaemon/ExplainTransfer", kOperator | kClient, "asks other daemons, a bounded number of them"},
    {"StoreDaemon/DescribeHop", kNode, ""},
    {"StoreDaemon/ProbeNode", kOperator, "of a node that the global store knows"},
    {"StoreDaemon/OpenPull", kNode, "with a grant that names it and the source"},
    {"StoreDaemon/ClosePull", kNode, "of a pull of its own"},
    {"StoreDaemon/CheckOrigin", kStore, ""},
    {"Differences/ReportWrongDifference", kNode, "in its own name; two nodes are needed to delete one"},
    {"Imports/ClaimImport", kNode, "of an import of its own"},
    {"Versions/FollowKey", kOperator, "fills the pools of many nodes"},
    {"Versions/ListFollowers", kReaders, ""},
    {"Versions/UnfollowKey", kOperator, ""},
    {"Versions/AgreeOnVersion", kOperator | kClient, "as a member of a version group"},
    {"LiveLeases/AttachLive", kOperator | kClient, ""},
    {"LiveLeases/PrepareVersion", kOperator | kClient, "of a hold that the caller knows"},
    {"LiveLeases/CommitVersion", kOperator | kClient, "of a hold that the caller knows"},
    {"Possession/Prove", kStore, ""},
    {"Possession/DigestAgain", kStore, ""},
    {"Records/ReadTrace", kReaders, "of a trace that the caller names by its id, within bounds"},
    {"Records/ReadAll", kOperator, "log lines, and the configuration without secrets"},
};

// The order in which messages name the roles.
constexpr std::array<Role, 4> kMatrixRoles = {Role::kGlobalStore, Role::kNode, Role::kOperator,
                                              Role::kClient};

}  // namespace

std::span<const CallRow> CallTable() { return kTable; }

RoleSet RolesOf(std::string_view call) {
  const auto* const row = std::ranges::find(kTable, call, &CallRow::call);
  return row == std::end(kTable) ? RoleSet{0} : row->roles;
}

std::string RolesText(RoleSet roles) {
  std::vector<std::string_view> texts;
  for (const Role role : kMatrixRoles) {
    if (Contains(roles, role)) texts.push_back(RoleText(role));
  }
  return texts.empty() ? "no role" : absl::StrJoin(texts, " or ");
}

}  // namespace tensorcast::security
