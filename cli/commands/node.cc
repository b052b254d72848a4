// `tensorcast node`: the nodes that are registered with the global store.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "cli/commands/command.h"
#include "cli/commands/connect.h"
#include "cli/commands/texts.h"
#include "cli/output/output.h"

namespace tensorcast::cli {
namespace {

struct NodeFlags {
  std::string node;  // a name or an id; for forget an id
};

absl::StatusOr<std::vector<v1::Node>> RegisteredNodes(client::AdminClient& admin,
                                                      const RequestContext& context) {
  TC_ASSIGN_OR_RETURN(const v1::GetClusterStatusResponse cluster, admin.GetClusterStatus(context));
  std::vector<v1::Node> nodes(cluster.nodes().begin(), cluster.nodes().end());
  // The nodes are sorted by name, so that two listings can be compared.
  std::ranges::sort(nodes, {}, &v1::Node::name);
  return nodes;
}

absl::Status ListNodes(const CommonFlags& common) {
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  TC_ASSIGN_OR_RETURN(const std::vector<v1::Node> nodes, RegisteredNodes(*admin, InterruptibleContext()));
  // As JSON the nodes stand in a message of the cluster, so that both outputs have one shape and order.
  v1::GetClusterStatusResponse all;
  all.mutable_nodes()->Assign(nodes.begin(), nodes.end());
  Table table({"name", "id", "state", "address", "pools"});
  for (const v1::Node& node : nodes) {
    const std::vector<std::string> conditions = ConditionsOf(node);
    table.Add({node.name(), node.node_id(), conditions.empty() ? "alive" : absl::StrJoin(conditions, ", "),
               node.grpc_address(), PoolsText(node.pools())});
  }
  return Show(common, all, [&] { return table.ToString(); });
}

// An id says more than a name that another node happens to have.
absl::StatusOr<v1::Node> FindNode(client::AdminClient& admin, const RequestContext& context,
                                  const std::string& wanted) {
  TC_ASSIGN_OR_RETURN(const std::vector<v1::Node> nodes, RegisteredNodes(admin, context));
  auto found = std::ranges::find(nodes, wanted, &v1::Node::node_id);
  if (found == nodes.end()) found = std::ranges::find(nodes, wanted, &v1::Node::name);
  if (found != nodes.end()) return *found;
  return absl::NotFoundError(
      "no registered node has this name or id; `tensorcast node ls` lists the registered nodes");
}

template <bool draining>
absl::Status SetDraining(const CommonFlags& common, const NodeFlags& flags) {
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  const RequestContext context = InterruptibleContext();
  const std::string operation = absl::StrCat(draining ? "node drain " : "node undrain ", flags.node);
  const absl::StatusOr<v1::Node> found = FindNode(*admin, context, flags.node);
  if (!found.ok()) return Annotate(found.status(), operation);
  // By its id from here on: the name may belong to another node by the time of the call.
  const v1::Node& node = *found;
  TC_RETURN_IF_ERROR(Annotate(admin->DrainNode(context, node.node_id(), draining), operation));
  return Show(common, {{"node_id", node.node_id()}, {"name", node.name()}, {"draining", draining}},
              absl::StrCat("node ", node.name(),
                           draining ? absl::StrCat(" is draining; `tensorcast node undrain ", node.name(),
                                                   "` ends the drain\n")
                                    : " is no longer draining\n"));
}

absl::Status ForgetNode(const CommonFlags& common, const NodeFlags& flags) {
  const std::string& node_id = flags.node;
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  const absl::Status forgotten = admin->ForgetNode(InterruptibleContext(), node_id);
  // A daemon does not pass this call on, since it takes the binding of a certificate away from a node.
  if (absl::IsUnimplemented(forgotten)) {
    return absl::FailedPreconditionError(
        absl::StrCat("node forget ", node_id,
                     ": --daemon names a daemon; give the address of the global store as --daemon"));
  }
  TC_RETURN_IF_ERROR(Annotate(forgotten, absl::StrCat("node forget ", node_id)));
  return Show(common, {{"node_id", node_id}},
              absl::StrCat("forgot node id ", node_id, "; another node may use this id now\n"));
}

void AddNodeFlag(Flags& flags, NodeFlags& values) {
  flags.Add("node", values.node, "Name or id of a registered node, from `node ls`",
            {.required = true, .not_empty = true});
}

void AddForgetFlag(Flags& flags, NodeFlags& values) {
  flags.Add("node_id", values.node, "Id of a node that is not alive", {.required = true, .not_empty = true});
}

}  // namespace

Command NodeCommand() {
  return {.name = "node",
          .help = "Work with the nodes of the cluster",
          .commands = {{.name = "ls", .help = "List the registered nodes", .bind = Bind(ListNodes)},
                       {.name = "drain",
                        .help = "Send no new replicas to a node, and let the node evict replicas of\n"
                                "artifacts that another node also has",
                        .spanned = true,
                        .bind = Bind(AddNodeFlag, SetDraining<true>)},
                       {.name = "undrain",
                        .help = "End the drain of a node",
                        .spanned = true,
                        .bind = Bind(AddNodeFlag, SetDraining<false>)},
                       {.name = "forget",
                        .help = "Allow another node to use the id of a node that never comes back; --daemon\n"
                                "must be the address of the global store",
                        .bind = Bind(AddForgetFlag, ForgetNode)}}};
}

}  // namespace tensorcast::cli
