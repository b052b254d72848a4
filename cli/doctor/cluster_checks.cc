#include "cli/doctor/cluster_checks.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/output/output.h"

namespace tensorcast::doctor {
namespace {

using cli::FormatBytes;

constexpr size_t kNamesShown = 4;

// "a, b, c, d and 3 more"
std::string NamesText(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kNamesShown);
  std::string text = absl::StrJoin(names.begin(), names.begin() + static_cast<ptrdiff_t>(shown), ", ");
  if (names.size() > shown) absl::StrAppend(&text, " and ", names.size() - shown, " more");
  return text;
}

bool IsRefusal(const absl::Status& status) {
  return absl::IsPermissionDenied(status) || absl::IsUnauthenticated(status);
}

// What became of the probes to one node.
struct Probed {
  std::vector<std::string> reached_by;
  std::vector<std::string> missed_by;
  absl::Status error;  // of the first that missed it
  absl::Duration slowest;
};

// A probe with a failed call says nothing about its target: the node that should have probed did not answer.
std::map<std::string, Probed> ProbesByTarget(const Facts& facts) {
  std::map<std::string, Probed> targets;
  for (const ProbeFacts& probe : facts.probes) {
    if (!probe.call.ok()) continue;
    Probed& target = targets[probe.to];
    if (probe.outcome.ok()) {
      target.reached_by.push_back(probe.from);
      target.slowest = std::max(target.slowest, probe.round_trip);
    } else {
      target.missed_by.push_back(probe.from);
      // Update keeps the first error.
      target.error.Update(probe.outcome);
    }
  }
  return targets;
}

std::string MillisecondsText(absl::Duration time) {
  return absl::StrFormat("%.1f ms", absl::ToDoubleMilliseconds(time));
}

// The value that the largest number of nodes has; of several the greatest.
template <class Value>
Value CommonValue(const std::map<std::string, Value>& values) {
  std::map<Value, size_t> counts;
  for (const auto& [node, value] : values) ++counts[value];
  Value common{};
  size_t nodes = 0;
  for (const auto& [value, count] : counts) {
    if (count < nodes) continue;
    common = value;
    nodes = count;
  }
  return common;
}

void CheckMembers(const v1::GetClusterStatusResponse& cluster, FindingList& out) {
  // A list of members is sent only where several stores share etcd. A store with metadata of its own sends
  // none.
  const Check check("global store", "members", out);
  std::vector<std::string> leaders, standbys;
  for (const v1::StoreMember& store : cluster.stores()) {
    (store.leads() ? leaders : standbys).push_back(store.address());
  }
  if (cluster.stores().empty()) {
    return check.Ok(
        absl::StrCat("there is one global store, with its metadata in ", cluster.metadata_store()));
  }
  if (leaders.empty()) {
    return check.Fail("no global store leads", "look at the logs of the global stores and at etcd's health");
  }
  if (standbys.empty()) {
    return check.Warn(absl::StrCat(NamesText(leaders), " leads, and no global store stands by"),
                      "start a second global store with the same etcd");
  }
  check.Ok(absl::StrCat(NamesText(leaders), " leads, ", NamesText(standbys), " stands by"));
}

void CheckMetadata(const v1::GetClusterStatusResponse& cluster, FindingList& out) {
  const Check check("global store", "metadata", out);
  if (cluster.metadata_store() == "memory") {
    return check.Warn("the metadata is in memory: a restart forgets all keys and artifacts",
                      "set global_store.metadata_store to sqlite or etcd");
  }
  const uint64_t held = cluster.metadata_bytes(), quota = cluster.metadata_quota_bytes();
  if (quota == 0) return check.Ok(cluster.metadata_store());
  const std::string found = absl::StrCat("etcd holds ", FormatBytes(held), " of max ", FormatBytes(quota));
  const std::string change =
      "compact and defragment etcd, or raise etcd's quota and global_store.etcd.quota: etcd refuses writes "
      "at its quota";
  // The limits are 95 % and 80 % of the quota.
  if (held > quota / 20 * 19) return check.Fail(found, change);
  if (held > quota / 5 * 4) return check.Warn(found, change);
  check.Ok(found);
}

}  // namespace

void CheckListing(const NodeFacts& node, FindingList& out) {
  const Check check(NameOf(node.node), "listing", out);
  if (!node.listed) {
    return check.Fail(
        "the global store does not list this node: this node and other nodes cannot pull from each other",
        "look in the log of this node's daemon for why the node is not registered");
  }
  const size_t before = out.size();
  if (node.node.unreachable()) {
    check.Fail(absl::StrCat("this node cannot connect to its own address ", node.node.grpc_address(),
                            ", so the node does not count as a source for other nodes"),
               "correct daemon.advertise, daemon.tcp_advertise or the firewall");
  }
  if (node.node.draining()) {
    check.Warn("this node is draining, and begins no transfers",
               absl::StrCat("run `tensorcast node undrain ", NameOf(node.node),
                            "` when the node should take part again"));
  }
  if (out.size() == before) check.Ok("the global store offers this node as a source");
}

// A node that does not answer this program is classed by what else is known: it refuses this caller (it
// runs), other nodes reach it (this host does not), or no node reaches it (it fails). Only the last is a
// failure of the node.
void CheckAnswers(const Facts& facts, FindingList& out) {
  const std::map<std::string, Probed> probed = ProbesByTarget(facts);
  for (const NodeFacts& node : facts.nodes) {
    const std::string name = NameOf(node.node);
    const Check check(name, "answer", out);
    if (node.status.ok()) {
      check.Ok(absl::StrCat("answered in ", MillisecondsText(node.round_trip)));
      continue;
    }
    const std::string why(node.status.status().message());
    if (IsRefusal(node.status.status())) {
      check.Warn(absl::StrCat("not checked: this node refuses this caller: ", why),
                 "give this command a certificate with the operator or client role (security.certificate)");
      continue;
    }
    const auto found = probed.find(name);
    const Probed probes = found == probed.end() ? Probed() : found->second;
    if (!probes.reached_by.empty()) {
      check.Warn(absl::StrCat("not checked: this node does not answer this host: ", why,
                              "; this node is reached by ", NamesText(probes.reached_by)),
                 "run this command on a host that reaches the node's address; if the node has a certificate, "
                 "give this command a certificate, too (security.certificate)");
      continue;
    }
    check.Fail(absl::StrCat("this node does not answer at ", node.node.grpc_address(), ": ", why,
                            probes.missed_by.empty() ? ""
                                                     : absl::StrCat("; this node is not reached by ",
                                                                    NamesText(probes.missed_by), " either")),
               "check that the node's daemon runs, and check the firewall");
  }
}

void CheckReachability(const Facts& facts, FindingList& out) {
  // First the targets: each node that was probed. Then the probing nodes that did not answer the call:
  // from these a part of the fleet was not checked.
  std::map<std::string, bool> answers;
  for (const NodeFacts& node : facts.nodes) answers[NameOf(node.node)] = node.status.ok();
  for (const auto& [name, probes] : ProbesByTarget(facts)) {
    const Check check(name, "reachability", out);
    if (!probes.missed_by.empty()) {
      // Of a node that answers nothing at all CheckAnswers tells.
      const auto asked = answers.find(name);
      if (asked != answers.end() && !asked->second && probes.reached_by.empty()) continue;
      check.Fail(absl::StrCat("this node is not reached by ", NamesText(probes.missed_by), ": ",
                              probes.error.message()),
                 "open the port of daemon.listen between these hosts, or correct daemon.advertise or the "
                 "name in the node's certificate");
    } else {
      check.Ok(absl::StrCat("reached by ", NamesText(probes.reached_by), ", in at most ",
                            MillisecondsText(probes.slowest)));
    }
  }
  std::vector<std::string> refusing;
  std::vector<std::string> failed;
  absl::Status error;
  for (const ProbeFacts& probe : facts.probes) {
    if (probe.call.ok()) continue;
    std::vector<std::string>& names = IsRefusal(probe.call) ? refusing : failed;
    if (std::ranges::find(names, probe.from) == names.end()) names.push_back(probe.from);
    if (!IsRefusal(probe.call)) error.Update(probe.call);
  }
  const Check check("cluster", "reachability", out);
  if (!refusing.empty()) {
    check.Warn(absl::StrCat("not checked from ", NamesText(refusing), ": a probe needs the operator role"),
               "run this command as the daemon's user (daemon.sock), or with an operator's certificate");
  }
  if (!failed.empty()) {
    check.Warn(absl::StrCat("not checked from ", NamesText(failed), ": ", error.message()),
               "look at the logs of those daemons, and run this command again");
  }
  if (facts.probed_nodes > 0 && facts.probed_nodes < facts.nodes.size() + facts.nodes_left_out) {
    check.Ok(absl::StrCat("probed between ", facts.probed_nodes, " of ",
                          facts.nodes.size() + facts.nodes_left_out, " nodes"));
  }
}

// Each node is compared with the majority, so that one old node yields one finding and not one of each other
// node. Protocol versions must be equal; software versions may differ during an upgrade.
void CheckVersions(const Facts& facts, FindingList& out) {
  std::map<std::string, std::string> software;
  std::map<std::string, uint32_t> protocols;
  for (const NodeFacts& node : facts.nodes) {
    const std::string name = NameOf(node.node);
    protocols[name] = node.node.protocol_version();
    if (node.status.ok() && !node.status->host().software_version().empty()) {
      software[name] = node.status->host().software_version();
    }
  }
  const uint32_t protocol = CommonValue(protocols);
  const std::string version = CommonValue(software);
  for (const auto& [name, own] : protocols) {
    if (own == protocol) continue;
    Check(name, "version", out)
        .Fail(absl::StrCat("this node speaks protocol ", own, ", and most other nodes speak ", protocol),
              "upgrade the older processes: nodes with different protocols refuse each other's calls");
  }
  for (const auto& [name, own] : software) {
    const Check check(name, "version", out);
    if (own != version) {
      check.Warn(absl::StrCat("this node runs version ", own, ", and most other nodes run ", version),
                 "finish the upgrade");
    } else if (own != facts.version) {
      check.Warn(absl::StrCat("this node runs version ", own, ", and this program is ", facts.version),
                 "use a program of the daemon's version, or start the daemon again with this program");
    } else {
      check.Ok(own);
    }
  }
}

void CheckGlobalStore(const Facts& facts, FindingList& out) {
  const Check check("global store", "answer", out);
  if (!facts.cluster.ok()) {
    return check.Fail(
        absl::StrCat("the global store does not answer the daemon: ", facts.cluster.status().message()),
        "start the global store, or correct daemon.global_store");
  }
  const v1::GetClusterStatusResponse& cluster = *facts.cluster;
  check.Ok(absl::StrCat("epoch ", cluster.store_epoch(), ", ", cluster.artifacts(), " artifacts"));
  CheckMembers(cluster, out);
  CheckMetadata(cluster, out);
  const Check conservation("global store", "conservation", out);
  if (cluster.conservation_violations() > 0) {
    conservation.Warn(
        absl::StrCat(cluster.conservation_violations(), " of ", cluster.conservation_compared(),
                     " comparisons of grants and replicas failed; last: ", cluster.last_violation()),
        "report this defect with the archive of `tensorcast debug bundle`");
  }
}

}  // namespace tensorcast::doctor
