// `doctor`: collects what the checks of cli/doctor look at, from this host, the daemon, the global store and
// the other nodes, and shows what they found.
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/address.h"
#include "base/parallel.h"
#include "base/posix/socket_folders.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "cli/commands/command.h"
#include "cli/commands/connect.h"
#include "cli/config/config.h"
#include "cli/dashboard/node_statuses.h"
#include "cli/doctor/diagnosis.h"
#include "cli/output/output.h"
#include "client/daemon_address.h"
#include "proto/config.pb.h"
#include "rpc/convert/convert.h"

namespace tensorcast::cli {
namespace {

using doctor::Facts;
using doctor::NameOf;
using doctor::NodeFacts;
using doctor::ProbeFacts;

struct DoctorFlags {
  bool cluster = false;
  bool verbose = false;
};

constexpr absl::Duration kOwnTimeout = absl::Seconds(5);
constexpr absl::Duration kProbeTimeout = absl::Seconds(6);  // a daemon gives an attempt two seconds
constexpr size_t kAskers = 16;
constexpr size_t kMaxCheckedNodes = 256;  // that are asked
constexpr size_t kMaxProbedNodes = 16;    // between which probes go

using DaemonClient = std::shared_ptr<client::AdminClient>;

// The elapsed time comes from the steady clock, the moment from the wall clock: the latter is compared with
// the node's own clock (CheckClock).
void Ask(client::AdminClient& client, absl::Duration timeout, NodeFacts& node) {
  const SteadyTime start = SteadyNow();
  const absl::Time clock = absl::Now();
  node.status = client.GetStatus(InterruptibleContext(timeout));
  node.round_trip = SteadyNow() - start;
  node.asked = clock + node.round_trip / 2;
}

std::vector<doctor::SocketFolderFacts> LookAtSocketFolders() {
  std::vector<doctor::SocketFolderFacts> folders;
  for (const std::string& path : SocketFolders()) {
    std::error_code ignored;
    folders.push_back({.path = path,
                       .exists = std::filesystem::exists(path, ignored),
                       .listens = client::FindDaemonIn(std::vector<std::string>{path}).status()});
  }
  return folders;
}

// Where the daemon packs artifacts, by its own configuration: an operator is told it. Else by that of this
// command, where one was given.
absl::StatusOr<doctor::DiskFacts> LookAtDisk(client::AdminClient& own, const CommonFlags& common) {
  v1::Config config;
  const auto records = own.ReadRecords(InterruptibleContext(kOwnTimeout));
  if (records.ok()) {
    TC_ASSIGN_OR_RETURN(config, config::Parse(records->configuration(), "the daemon's configuration", {}));
  } else if (!common.config.empty()) {
    TC_ASSIGN_OR_RETURN(config, LoadConfig(common));
  } else {
    return Annotate(records.status(), "ask the daemon where it packs artifacts");
  }
  const v1::DaemonConfig& daemon = config.daemon();
  doctor::DiskFacts disk{.folder = daemon.disk_dir().empty() ? absl::StrCat(daemon.state_dir(), "/artifacts")
                                                             : daemon.disk_dir()};
  struct statvfs room{};
  if (statvfs(disk.folder.c_str(), &room) != 0) {
    return ErrnoStatus(errno, "read the free space of", disk.folder);
  }
  disk.bytes = static_cast<uint64_t>(room.f_blocks) * room.f_frsize;
  disk.available_bytes = static_cast<uint64_t>(room.f_bavail) * room.f_frsize;
  return disk;
}

// Asks the other nodes, a few at a time. The daemon's own is the first, and was asked.
void AskOthers(dashboard::NodeStatuses& clients, std::vector<NodeFacts>& nodes) {
  ForEachInParallel(nodes.size() - 1, kAskers, [&](size_t i) {
    NodeFacts& node = nodes[i + 1];
    if (OnTerminationSignal().IsCancelled()) return;
    const absl::StatusOr<DaemonClient> client = clients.ClientOf(node.node);
    if (client.ok()) {
      Ask(**client, dashboard::kNodeTimeout, node);
    } else {
      node.status = client.status();
    }
  });
}

// The first, and others evenly over the rest.
std::vector<const v1::Node*> SampleOf(const std::vector<v1::Node>& nodes) {
  std::vector<const v1::Node*> sample;
  const size_t count = std::min(nodes.size(), kMaxProbedNodes);
  for (size_t i = 0; i < count; ++i) sample.push_back(&nodes[i * nodes.size() / count]);
  return sample;
}

// From each node that answered and is in the sample to each other one of the sample.
void ProbeBetween(dashboard::NodeStatuses& clients, const std::vector<v1::Node>& all, Facts& facts) {
  const std::vector<const v1::Node*> sample = SampleOf(all);
  struct Pair {
    const v1::Node* from;
    const v1::Node* to;
  };
  std::vector<Pair> pairs;
  for (const NodeFacts& from : facts.nodes) {
    if (!from.status.ok()) continue;
    const auto is_from = [&](const v1::Node* node) { return node->node_id() == from.node.node_id(); };
    if (std::ranges::none_of(sample, is_from)) continue;
    for (const v1::Node* to : sample) {
      if (!is_from(to)) pairs.push_back({&from.node, to});
    }
  }
  facts.probed_nodes = sample.size();
  facts.probes.resize(pairs.size());
  ForEachInParallel(pairs.size(), kAskers, [&](size_t i) {
    ProbeFacts& probe = facts.probes[i];
    probe.from = NameOf(*pairs[i].from);
    probe.to = NameOf(*pairs[i].to);
    const auto answer = [&]() -> absl::StatusOr<v1::ProbeNodeResponse> {
      TC_ASSIGN_OR_RETURN(const DaemonClient client, clients.ClientOf(*pairs[i].from));
      return client->ProbeNode(InterruptibleContext(kProbeTimeout), pairs[i].to->node_id());
    }();
    probe.call = answer.status();
    if (!answer.ok()) return;
    probe.outcome = rpc::FromProto(answer->error());
    probe.round_trip = rpc::FromProto(answer->round_trip());
  });
}

// The nodes of the cluster, the daemon's own first.
std::vector<v1::Node> NodesOf(const Facts& facts, const v1::Node& own) {
  std::vector<v1::Node> nodes = {own};
  if (!facts.cluster.ok()) return nodes;
  for (const v1::Node& node : facts.cluster->nodes()) {
    if (node.node_id() == own.node_id()) {
      nodes[0] = node;  // as the global store lists it
    } else {
      nodes.push_back(node);
    }
  }
  std::ranges::sort(nodes.begin() + 1, nodes.end(), {}, &v1::Node::name);
  return nodes;
}

// The steps build on each other: the daemon on this host, what it says of the cluster, the other nodes
// (--cluster), and probes between the nodes that answered. A step that fails leaves facts without the later
// ones; only a wrong configuration ends the command.
absl::Status Collect(const CommonFlags& common, const DoctorFlags& flags, Facts& facts) {
  // What is wrong with the configuration is an error of this command; that no daemon is found is a finding.
  TC_RETURN_IF_ERROR(LoadConfig(common).status());
  const absl::StatusOr<client::ClientOptions> options = ConfiguredClient(common);
  if (absl::IsInvalidArgument(options.status())) return options.status();
  NodeFacts own;
  DaemonClient client;
  facts.answer = [&]() -> absl::Status {
    TC_RETURN_IF_ERROR(options.status());
    facts.daemon = options->daemon;
    TC_ASSIGN_OR_RETURN(client, client::AdminClient::Connect(*options));
    Ask(*client, kOwnTimeout, own);
    return own.status.status();
  }();
  facts.now = absl::Now();
  if (!facts.answer.ok()) {
    facts.socket_folders = LookAtSocketFolders();
    return absl::OkStatus();
  }
  // A unix socket means that the daemon's folder is on this host.
  if (IsUnixAddress(options->daemon)) facts.disk = LookAtDisk(*client, common);
  facts.cluster = client->GetClusterStatus(InterruptibleContext(kOwnTimeout));
  const std::vector<v1::Node> all = NodesOf(facts, own.status->node());
  own.node = all[0];
  own.listed = facts.cluster.ok() && std::ranges::any_of(facts.cluster->nodes(), [&](const v1::Node& listed) {
                 return listed.node_id() == own.node.node_id();
               });
  facts.nodes.push_back(std::move(own));
  dashboard::NodeStatuses clients([&options] { return options; });
  // This host's daemon may listen on a unix socket alone, so it is asked over the connection that there is.
  clients.SetOwn(all[0].node_id(), client);
  if (flags.cluster) {
    const size_t asked = std::min(all.size(), kMaxCheckedNodes);
    for (size_t i = 1; i < asked; ++i) facts.nodes.push_back({.node = all[i], .listed = true});
    facts.nodes_left_out = all.size() - asked;
    AskOthers(clients, facts.nodes);
  }
  ProbeBetween(clients, all, facts);
  facts.now = absl::Now();
  return absl::OkStatus();
}

int Doctor(const CommonFlags& common, const DoctorFlags& flags) {
  Facts facts{.version = TENSORCAST_VERSION};
  if (const absl::Status collected = Collect(common, flags, facts); !collected.ok()) return Fail(collected);
  if (OnTerminationSignal().IsCancelled()) return Fail(absl::CancelledError("doctor: interrupted"));
  const doctor::FindingList findings = doctor::Diagnose(facts);
  if (common.json) {
    std::printf(
        "%s\n",
        doctor::ToJson(findings).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  } else {
    Print(doctor::ToText(findings, flags.verbose));
  }
  return doctor::AnyFailed(findings) ? 1 : 0;
}

void AddFlags(Flags& flags, DoctorFlags& values) {
  flags.Add(
      "--cluster", values.cluster,
      "Check up to 256 nodes of the cluster, and the connections between up to 16 of them; default: only "
      "the daemon's own node, and the connections from that node");
  flags.Add("--verbose", values.verbose, "Show also the checks that found nothing to change");
}

}  // namespace

Command DoctorCommand() {
  return {.name = "doctor",
          .help = "Check a node or the cluster, and say what to change; the exit code is 1 if a check failed",
          .spanned = true,
          .bind = Bind(AddFlags, Doctor)};
}

}  // namespace tensorcast::cli
