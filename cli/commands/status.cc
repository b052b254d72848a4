#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/labels.h"
#include "base/status.h"
#include "cli/commands/command.h"
#include "cli/commands/connect.h"
#include "cli/commands/texts.h"
#include "cli/output/output.h"
#include "rpc/convert/convert.h"
#include "transport/transport.h"

namespace tensorcast::cli {
namespace {

// Nothing of one that is not a PCI device and works.
std::string DeviceText(const v1::DeviceStatus& device) {
  std::string text = device.pci_bus_id();
  if (device.has_numa_node()) absl::StrAppend(&text, ", NUMA node ", device.numa_node());
  if (device.nearest_nics_size() > 0) {
    absl::StrAppend(&text, ", nearest to ", absl::StrJoin(device.nearest_nics(), " "));
  }
  return text;
}

// With the memory that each reads and writes where it is.
std::string LanesText(const v1::Node& node) {
  std::vector<std::string> texts;
  for (const std::string& lane : node.lanes()) {
    const bool device = std::ranges::find(node.device_lanes(), lane) != node.device_lanes().end();
    const auto memory = device ? transport::LaneMemory::kHostAndDevice : transport::LaneMemory::kHost;
    texts.push_back(absl::StrCat(lane, " (", transport::LaneMemoryName(memory), ")"));
  }
  return absl::StrJoin(texts, ", ");
}

std::string LabelsOf(const v1::Node& node) {
  return LabelsText({node.labels().begin(), node.labels().end()});
}

// Behind a node's name in the cluster.
std::string NodeStateText(const v1::Node& node) {
  std::string text;
  for (const std::string& condition : ConditionsOf(node)) absl::StrAppend(&text, " (", condition, ")");
  return text;
}

std::string SecurityText(const v1::Security& security) {
  if (!security.name().empty()) {
    return absl::StrCat("mutual TLS as ", security.name(), ", certificate valid until ",
                        absl::FormatTime(absl::RFC3339_sec, rpc::FromProto(security.certificate_ends()),
                                         absl::UTCTimeZone()));
  }
  return security.insecure() ? "NONE on its TCP ports (security.insecure)" : "no TCP port; only unix sockets";
}

std::string LimitText(uint64_t bytes_per_second) {
  return bytes_per_second == 0 ? "unlimited" : absl::StrCat(FormatBytes(bytes_per_second), " a second");
}

// What became of the pool that a restarted daemon took over (daemon/keeper); parts that are zero are left
// out.
std::string KeptText(const v1::KeptPool& kept) {
  std::string text = absl::StrCat(kept.replicas(), " replicas of the previous daemon");
  if (kept.waiting() > 0) absl::StrAppend(&text, ", ", kept.waiting(), " still to be verified");
  if (kept.mismatched() > 0) absl::StrAppend(&text, ", ", kept.mismatched(), " DID NOT MATCH THEIR DIGESTS");
  if (kept.gone_on_gpus() > 0) {
    absl::StrAppend(&text, "; ", kept.gone_on_gpus(), " replicas on GPUs were lost with the previous daemon");
  }
  if (kept.awaited_holders() > 0) {
    absl::StrAppend(&text, "; ", kept.awaited_holders(),
                    " attachments to the previous daemon are not renewed yet");
  }
  if (kept.unserved_bytes() > 0) {
    absl::StrAppend(&text, "; ", FormatBytes(kept.unserved_bytes()),
                    " of memory are not served, but processes still map them");
  }
  return text;
}

// A line for what is so, and none for what is not, so that the capital letters of what needs a person
// (UNHEALTHY, DAMAGED) are seen.
void PrintDaemon(const v1::GetStatusResponse& status) {
  PrintF("daemon %s (%s) at %s, global store %s%s\n", status.node().name(), status.node().node_id(),
         status.node().grpc_address(), status.global_store(),
         status.global_store_reachable() ? "" : " (not reachable)");
  if (!status.global_store_error().empty()) PrintF("  because    %s\n", status.global_store_error());
  if (const std::string labels = LabelsOf(status.node()); !labels.empty()) {
    PrintF("  labels     %s\n", labels);
  }
  if (const std::string& version = status.host().software_version(); !version.empty()) {
    PrintF("  version    %s, protocol %u\n", version, status.node().protocol_version());
  }
  PrintF("  security   %s\n", SecurityText(status.security()));
  for (const v1::Access& access : status.security().access()) {
    PrintF("  access     %s: %s: %s\n", access.endpoint(), access.callers(), access.role());
  }
  PrintF("  pools      %s\n", PoolsText(status.pools()));
  for (const v1::DeviceStatus& device : status.devices()) {
    if (const std::string text = DeviceText(device); !text.empty()) {
      PrintF("  gpu:%-6d %s\n", device.ordinal(), text);
    }
    if (!device.unhealthy().empty()) {
      PrintF("  UNHEALTHY  gpu:%d gets no replicas: %s\n", device.ordinal(), device.unhealthy());
    }
  }
  if (status.has_kept_pool()) PrintF("  kept       %s\n", KeptText(status.kept_pool()));
  PrintF("  replicas   %u, leases %u, transfers %u, servings %u\n", status.replicas(), status.leases(),
         status.active_transfers(), status.active_servings());
  PrintF("  lanes      %s\n", LanesText(status.node()));
  const v1::Node& node = status.node();
  PrintF("  nccl       %s\n", node.nccl_version().empty()
                                  ? absl::StrCat("no broadcasts with other nodes: ", node.no_nccl())
                                  : node.nccl_version());
  PrintF("  limits     send %s, receive %s\n", LimitText(status.limits().send()),
         LimitText(status.limits().receive()));
  const v1::Conservation& conservation = status.conservation();
  if (conservation.violations() > 0) {
    PrintF("  VIOLATED   conservation of bytes in %u of %u pulls; last: %s\n", conservation.violations(),
           conservation.pulls_compared(), conservation.last_violation());
  } else if (conservation.pulls_compared() > 0) {
    PrintF("  conserved  bytes of %u pulls, compared at both ends\n", conservation.pulls_compared());
  }
  for (const v1::DamagedReplica& replica : status.damaged_replicas()) {
    PrintF("  DAMAGED    replica %s of %s in %s; %s; check this node's memory\n", replica.replica_id(),
           replica.artifact_id(), replica.memory(),
           replica.replaced_by().empty() ? "not replaced yet"
                                         : absl::StrCat("replaced by ", replica.replaced_by()));
  }
  for (const v1::DamagedFile& file : status.damaged_files()) {
    PrintF("  DAMAGED    %s: %s; remove the file, or pack the artifact again\n", file.path(),
           rpc::FromProto(file.error()).ToString());
  }
  Print("\n");
}

// Of global stores that stand in for each other.
void PrintStores(const v1::GetClusterStatusResponse& cluster) {
  if (cluster.stores().empty()) return;
  std::vector<std::string> stores;
  for (const v1::StoreMember& store : cluster.stores()) {
    stores.push_back(absl::StrCat(store.address(), store.leads() ? " leads" : " stands by"));
  }
  PrintF("stores: %s (epoch %u, which began %s s ago)", absl::StrJoin(stores, ", "), cluster.store_epoch(),
         FormatSeconds(rpc::FromProto(cluster.leads_for())));
  const uint64_t held = cluster.metadata_bytes(), quota = cluster.metadata_quota_bytes();
  if (held > 0) PrintF(", etcd holds %s of its quota of %s", FormatBytes(held), FormatBytes(quota));
  Print("\n");
  // Early enough to act: etcd refuses writes once the quota is used up.
  if (held > quota / 5 * 4) {
    PrintF(
        "  WARNING    etcd is almost full: compact and defragment etcd, or raise etcd's quota and "
        "global_store.etcd.quota\n");
  }
}

void PrintCluster(const v1::GetClusterStatusResponse& cluster) {
  PrintF("cluster: %u artifacts, %u keys, %u replicas, %u grants running, metadata in %s\n",
         cluster.artifacts(), cluster.keys(), cluster.replicas(), cluster.active_grants(),
         cluster.metadata_store());
  if (cluster.differences() > 0) {
    PrintF("differences: %u, %s in one copy of each\n", cluster.differences(),
           FormatBytes(cluster.difference_bytes()));
  }
  PrintStores(cluster);
  const uint64_t violations = cluster.conservation_violations();
  if (violations > 0) {
    PrintF("  VIOLATED   conservation of replicas and grants in %u of %u comparisons; last: %s\n", violations,
           cluster.conservation_compared(), cluster.last_violation());
  } else if (cluster.conservation_compared() > 0) {
    PrintF("  conserved  replicas and grants, compared with the nodes %u times\n",
           cluster.conservation_compared());
  }
  Table table({"node", "id", "address", "lanes", "labels", "heartbeat", "pools"});
  for (const v1::Node& node : cluster.nodes()) {
    table.Add({absl::StrCat(node.name(), NodeStateText(node)), node.node_id().substr(0, 8),
               node.grpc_address(), absl::StrJoin(node.lanes(), ","), LabelsOf(node),
               absl::StrCat(FormatSeconds(rpc::FromProto(node.since_heartbeat())), " s ago"),
               PoolsText(node.pools())});
  }
  Print(table.ToString());
}

absl::Status Status(const CommonFlags& common) {
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  // Bounded, since a status is asked for when something hangs.
  const RequestContext context = InterruptibleContext(absl::Seconds(10));
  TC_ASSIGN_OR_RETURN(const v1::GetStatusResponse daemon, admin->GetStatus(context));
  const absl::StatusOr<v1::GetClusterStatusResponse> cluster = admin->GetClusterStatus(context);
  // Without the global store the key "cluster" is missing; the daemon's report has the reason.
  if (common.json) {
    std::printf("{\"daemon\": %s%s}\n", ToJson(daemon).c_str(),
                cluster.ok() ? absl::StrCat(", \"cluster\": ", ToJson(*cluster)).c_str() : "");
    return absl::OkStatus();
  }
  PrintDaemon(daemon);
  // The daemon is shown first, also where the global store does not answer: its lines say why.
  TC_RETURN_IF_ERROR(Annotate(cluster.status(), "get the cluster's status"));
  PrintCluster(*cluster);
  return absl::OkStatus();
}

}  // namespace

Command StatusCommand() {
  return {
      .name = "status", .help = "Show the cluster and this daemon", .spanned = true, .bind = Bind(Status)};
}

}  // namespace tensorcast::cli
