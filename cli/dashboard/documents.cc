#include "cli/dashboard/documents.h"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "cli/dashboard/cached.h"
#include "cli/dashboard/event_hub.h"
#include "cli/dashboard/node_statuses.h"
#include "cli/dashboard/paging.h"
#include "cli/explain/explain.h"
#include "cli/explain/find_transfer.h"
#include "cli/explain/hops.h"
#include "cli/explain/source_details.h"
#include "cli/output/output.h"
#include "client/admin.h"
#include "core/artifact/manifest.h"
#include "rpc/convert/convert.h"

namespace tensorcast::dashboard {
namespace {

using nlohmann::json;

constexpr absl::Duration kTimeout = absl::Seconds(8);  // of a call for one document
constexpr absl::Duration kLate = absl::Seconds(30);
constexpr absl::Duration kRecent = absl::Seconds(10);  // edges of transfers that ended are shown for so long
// A document has at most so many rows. What is left out is counted.
constexpr size_t kMaxRunning = 500;
constexpr size_t kMaxRecent = 100;
constexpr size_t kMaxStatusBytes = 512 << 10;

template <class Message>
// The document is Protobuf's own JSON, as the commands print it. The text is parsed, since documents are
// joined and compared.
json ToDocument(const Message& message) {
  return json::parse(cli::ToJson(message), nullptr, /*allow_exceptions=*/false);
}

json Problem(std::string subject, const absl::Status& status) {
  json problem = ErrorDocument(status);
  problem["subject"] = std::move(subject);
  return problem;
}

std::string LabelOf(const v1::Node& node, const char* name) {
  const auto found = node.labels().find(name);
  return found == node.labels().end() ? "" : found->second;
}

bool IsLate(const v1::Node& node) { return rpc::FromProto(node.since_heartbeat()) > kLate; }

// Whether zone and rack, where the query names them, are those of the node.
bool IsIn(const Query& query, const v1::Node& node) {
  return std::ranges::all_of(std::initializer_list<const char*>{"zone", "rack"}, [&](const char* name) {
    const auto wanted = query.find(name);
    return wanted == query.end() || wanted->second == LabelOf(node, name);
  });
}

absl::StatusOr<bool> HasState(const v1::Node& node, const std::string& state) {
  if (state.empty()) return true;
  if (state == "draining") return node.draining();
  if (state == "unreachable") return node.unreachable();
  if (state == "unhealthy") return !node.unhealthy_devices().empty();
  if (state == "late") return IsLate(node);
  if (state == "ok") {
    return !node.draining() && !node.unreachable() && node.unhealthy_devices().empty() && !IsLate(node);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("list nodes: state is ", state, "; give ok, draining, unreachable, unhealthy or late"));
}

// As the store tells it, but without seconds that change with every look although nothing happened.
json NodeRow(v1::Node node) {
  if (node.has_since_heartbeat()) {
    node.mutable_since_heartbeat()->set_seconds(node.since_heartbeat().seconds() / 10 * 10);
    node.mutable_since_heartbeat()->set_nanos(0);
  }
  return ToDocument(node);
}

// A node's rings can be long: half of each goes until the message fits. What of the host changes with every
// look although nothing happened is left out.
json StatusRow(v1::GetStatusResponse status) {
  if (status.has_host()) {
    status.mutable_host()->clear_clock();
    status.mutable_host()->clear_descriptors_open();
    status.mutable_host()->clear_available_memory_bytes();
  }
  std::string text = cli::ToJson(status);
  bool cut = false;
  while (text.size() > kMaxStatusBytes && status.recent_transfers_size() + status.servings_size() > 0) {
    auto* transfers = status.mutable_recent_transfers();
    auto* servings = status.mutable_servings();
    transfers->DeleteSubrange(transfers->size() / 2, transfers->size() - transfers->size() / 2);
    servings->DeleteSubrange(servings->size() / 2, servings->size() - servings->size() / 2);
    text = cli::ToJson(status);
    cut = true;
  }
  json row = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (cut) row["left_out"] = "older entries of recent_transfers and servings";
  return row;
}

const char* KindOf(const v1::Location& location) {
  switch (location.kind()) {
    case v1::LOCATION_KIND_GPU:
      return "gpu";
    case v1::LOCATION_KIND_DISK:
      return "disk";
    default:
      return "cpu";
  }
}

double RateOf(uint64_t now, uint64_t before, absl::Duration between) {
  // A counter that went back began anew, with its daemon: the next look gives a rate.
  const double seconds = absl::ToDoubleSeconds(between);
  return seconds <= 0 || now < before ? 0 : static_cast<double>(now - before) / seconds;
}

// Bytes a second since the previous look, or since the transfer began where there was none.
double TransferRate(const NodeStatus& status, const v1::TransferReport& report) {
  if (status.previous.has_value()) {
    const auto before = status.previous->transfer_bytes.find(report.transfer_id());
    if (before != status.previous->transfer_bytes.end()) {
      return RateOf(report.bytes(), before->second, status.counters.at - status.previous->at);
    }
  }
  const absl::Time start = rpc::FromProto(report.start());
  return start == absl::UnixEpoch() ? 0 : RateOf(report.bytes(), 0, rpc::FromProto(report.end()) - start);
}

// What one receiver got from one source over one lane.
struct Edge {
  uint64_t transfers = 0;
  uint64_t bytes = 0;
  double rate = 0;
};
using Edges = std::map<std::tuple<std::string, std::string, std::string, bool>, Edge>;

void AddEdges(const std::string& receiver, const v1::TransferReport& report, bool running, Edges* edges) {
  for (const v1::SourceReport& source : report.sources()) {
    // A source that is still used is shown before its first chunk has come.
    if (source.bytes() == 0 && !(running && !source.has_left())) continue;
    Edge& edge = (*edges)[{source.source(), receiver, source.lane(), running && !source.has_left()}];
    const absl::Time left = rpc::FromProto(source.has_left() ? source.left() : report.end());
    ++edge.transfers;
    edge.bytes += source.bytes();
    edge.rate += RateOf(source.bytes(), 0, left - rpc::FromProto(source.joined()));
  }
}

}  // namespace

// Makes the views. What servers answer is shared by all views and tabs (Cached).
class Documents::Maker {
 public:
  explicit Maker(Options options) : options_(std::move(options)), nodes_(options_.connect) {}

  absl::StatusOr<json> Make(const std::string& view, const Query& query) {
    using Method = absl::StatusOr<json> (Maker::*)(const Query& query);
    static constexpr std::pair<std::string_view, Method> kViews[] = {
        {"status", &Maker::Status},       {"zones", &Maker::Zones},
        {"nodes", &Maker::Nodes},         {"node", &Maker::Node},
        {"artifacts", &Maker::Artifacts}, {"artifact", &Maker::Artifact},
        {"keys", &Maker::Keys},           {"key", &Maker::Key},
        {"transfers", &Maker::Transfers}, {"transfer", &Maker::Transfer},
        {"tasks", &Maker::Tasks}};
    for (const auto& [name, method] : kViews) {
      if (name == view) return (this->*method)(query);
    }
    return absl::NotFoundError(absl::StrCat("show ", view, ": the dashboard has no such view"));
  }

 private:
  template <class T>
  using Shared = absl::StatusOr<std::shared_ptr<const T>>;

  absl::StatusOr<std::shared_ptr<client::AdminClient>> Own() {
    {
      const absl::MutexLock lock(&mutex_);
      if (own_ != nullptr) return own_;
    }
    // The connection is made without the lock, since connecting takes time. Of two calls that connect at once
    // the later one's connection stays.
    TC_ASSIGN_OR_RETURN(const client::ClientOptions options, options_.connect());
    TC_ASSIGN_OR_RETURN(std::shared_ptr<client::AdminClient> own, client::AdminClient::Connect(options));
    const absl::MutexLock lock(&mutex_);
    own_ = own;
    return own;
  }

  // Makes a call to the daemon or store beside which the dashboard is. One that is away is looked for again
  // by the next call: its successor may have another address.
  template <class Call>
  auto Ask(Call call)
      -> decltype(call(std::declval<client::AdminClient&>(), std::declval<const RequestContext&>())) {
    TC_ASSIGN_OR_RETURN(const auto own, Own());
    auto answer = call(*own, RequestContext::Background(kTimeout));
    if (absl::IsUnavailable(answer.status())) {
      // Another call may have connected again meanwhile; its connection stays.
      const absl::MutexLock lock(&mutex_);
      if (own_ == own) own_ = nullptr;
    }
    return answer;
  }

  // A global store has no such call, and would log each that comes: it is asked once a connection.
  Shared<v1::GetStatusResponse> Daemon() {
    return daemon_.Get([&]() -> absl::StatusOr<v1::GetStatusResponse> {
      TC_ASSIGN_OR_RETURN(const auto own, Own());
      {
        const absl::MutexLock lock(&mutex_);
        if (store_alone_ == own) return absl::UnimplementedError("a global store is not a daemon");
      }
      absl::StatusOr<v1::GetStatusResponse> status = Ask(
          [](client::AdminClient& asked, const RequestContext& context) { return asked.GetStatus(context); });
      const absl::MutexLock lock(&mutex_);
      if (absl::IsUnimplemented(status.status())) store_alone_ = own;
      return status;
    });
  }
  // With the nodes sorted by name.
  Shared<v1::GetClusterStatusResponse> Cluster() {
    return cluster_.Get([&]() -> absl::StatusOr<v1::GetClusterStatusResponse> {
      TC_ASSIGN_OR_RETURN(v1::GetClusterStatusResponse cluster,
                          Ask([](client::AdminClient& own, const RequestContext& context) {
                            return own.GetClusterStatus(context);
                          }));
      std::sort(cluster.mutable_nodes()->begin(), cluster.mutable_nodes()->end(),
                [](const v1::Node& a, const v1::Node& b) { return a.name() < b.name(); });
      return cluster;
    });
  }
  Shared<std::vector<v1::Artifact>> AllArtifacts() {
    return artifacts_.Get([&] {
      return Ask([](client::AdminClient& own, const RequestContext& context) {
        return own.ListArtifacts(context, /*unkeyed_only=*/false, absl::ZeroDuration());
      });
    });
  }
  Shared<v1::ListKeysResponse> AllKeys() {
    return keys_.Get([&] {
      return Ask(
          [](client::AdminClient& own, const RequestContext& context) { return own.ListKeys(context, ""); });
    });
  }
  Shared<v1::ListReplicationTasksResponse> AllTasks() {
    return tasks_.Get([&] {
      return Ask([](client::AdminClient& own, const RequestContext& context) {
        return own.ListReplicationTasks(context, "");
      });
    });
  }

  // The registered nodes, or the daemon's own where the global store does not answer: then `problems` says
  // so.
  absl::StatusOr<std::vector<v1::Node>> KnownNodes(json* problems) {
    const auto cluster = Cluster();
    if (cluster.ok()) return std::vector<v1::Node>((*cluster)->nodes().begin(), (*cluster)->nodes().end());
    const auto daemon = Daemon();
    if (!daemon.ok()) return cluster.status();
    if (problems != nullptr) problems->push_back(Problem("global store", cluster.status()));
    return std::vector<v1::Node>{(*daemon)->node()};
  }

  // A name or an id; an id says more than a name that another node happens to have.
  absl::StatusOr<v1::Node> FindNode(const std::string& wanted, json* problems) {
    TC_ASSIGN_OR_RETURN(const std::vector<v1::Node> nodes, KnownNodes(problems));
    auto found = std::ranges::find(nodes, wanted, &v1::Node::node_id);
    if (found == nodes.end()) found = std::ranges::find(nodes, wanted, &v1::Node::name);
    if (found != nodes.end()) return *found;
    return absl::NotFoundError(
        absl::StrCat("show node ", wanted, ": no registered node has this name or id"));
  }

  absl::StatusOr<std::map<std::string, v1::Node>> NodesById() {
    TC_ASSIGN_OR_RETURN(const std::vector<v1::Node> nodes, KnownNodes(nullptr));
    std::map<std::string, v1::Node> by_id;
    for (const v1::Node& node : nodes) by_id[node.node_id()] = node;
    return by_id;
  }

  // The own statuses of the first kMaxAskedNodes of `nodes`.
  std::vector<Cached<NodeStatus>::Value> AskNodes(const std::vector<v1::Node>& nodes) {
    KnowOwn();
    return nodes_.Ask(std::span(nodes).first(std::min(nodes.size(), kMaxAskedNodes)));
  }
  void KnowOwn() {
    // The daemon beside the dashboard is asked over the connection that there is: its node's address may not
    // be reachable from here.
    const auto daemon = Daemon();
    const auto own = Own();
    if (daemon.ok() && own.ok()) nodes_.SetOwn((*daemon)->node().node_id(), *own);
  }

  absl::StatusOr<json> Status(const Query& /*query*/);
  absl::StatusOr<json> Zones(const Query& query);
  absl::StatusOr<json> Nodes(const Query& query);
  absl::StatusOr<json> Node(const Query& query);
  absl::StatusOr<json> Artifacts(const Query& query);
  absl::StatusOr<json> Artifact(const Query& query);
  absl::StatusOr<json> Keys(const Query& query);
  absl::StatusOr<json> Key(const Query& query);
  absl::StatusOr<json> Transfers(const Query& query);
  absl::StatusOr<json> Transfer(const Query& query);
  absl::StatusOr<json> Tasks(const Query& query);

  const Options options_;
  NodeStatuses nodes_;
  absl::Mutex mutex_;
  std::shared_ptr<client::AdminClient> own_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<client::AdminClient> store_alone_
      ABSL_GUARDED_BY(mutex_);  // of a global store, not of a daemon
  Cached<v1::GetStatusResponse> daemon_;
  Cached<v1::GetClusterStatusResponse> cluster_;
  Cached<std::vector<v1::Artifact>> artifacts_;
  Cached<v1::ListKeysResponse> keys_;
  Cached<v1::ListReplicationTasksResponse> tasks_;
};

absl::StatusOr<json> Documents::Maker::Status(const Query& /*query*/) {
  json document = {{"version", options_.version}, {"nodes", 0}, {"problems", json::array()}};
  const auto daemon = Daemon();
  if (daemon.ok()) {
    document["daemon"] = StatusRow(**daemon);
  } else if (!absl::IsUnimplemented(daemon.status())) {  // a global store has no such call
    document["problems"].push_back(Problem("daemon", daemon.status()));
  }
  const auto cluster = Cluster();
  if (!cluster.ok()) {
    document["problems"].push_back(Problem("global store", cluster.status()));
    return document;
  }
  document["nodes"] = (*cluster)->nodes_size();
  // The leader's time is given in whole minutes, since a time that changes with each look would send the
  // document each time.
  v1::GetClusterStatusResponse counts = **cluster;
  counts.clear_nodes();
  if (counts.has_leads_for()) {
    counts.mutable_leads_for()->set_seconds(counts.leads_for().seconds() / 60 * 60);
    counts.mutable_leads_for()->set_nanos(0);
  }
  document["cluster"] = ToDocument(counts);
  return document;
}

absl::StatusOr<json> Documents::Maker::Zones(const Query& query) {
  json problems = json::array();
  TC_ASSIGN_OR_RETURN(std::vector<v1::Node> nodes, KnownNodes(&problems));
  std::erase_if(nodes, [&](const v1::Node& node) { return !IsIn(query, node); });
  const auto statuses = AskNodes(nodes);
  struct Rack {
    json row = {{"nodes", 0},
                {"draining", 0},
                {"unreachable", 0},
                {"unhealthy", 0},
                {"late", 0},
                {"asked", 0},
                {"protocol_versions", json::object()}};
    std::map<std::string, json> pools;
    double received = 0;
    double served = 0;
  };
  const auto add = [](json& row, const char* name, uint64_t value) {
    row[name] = row.value(name, uint64_t{0}) + value;
  };
  std::map<std::string, std::map<std::string, Rack>> zones;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const v1::Node& node = nodes[i];
    Rack& rack = zones[LabelOf(node, "zone")][LabelOf(node, "rack")];
    add(rack.row, "nodes", 1);
    add(rack.row, "draining", node.draining() ? 1 : 0);
    add(rack.row, "unreachable", node.unreachable() ? 1 : 0);
    add(rack.row, "unhealthy", node.unhealthy_devices().empty() ? 0 : 1);
    add(rack.row, "late", IsLate(node) ? 1 : 0);
    const std::string version = absl::StrCat(node.protocol_version());
    rack.row["protocol_versions"][version] = rack.row["protocol_versions"].value(version, 0) + 1;
    for (const v1::Pool& pool : node.pools()) {
      json& row = rack.pools[KindOf(pool.location())];
      row["kind"] = KindOf(pool.location());
      add(row, "pools", 1);
      add(row, "capacity_bytes", pool.capacity_bytes());
      add(row, "used_bytes", pool.used_bytes());
      add(row, "pinned_bytes", pool.pinned_bytes());
      add(row, "evictions", pool.evictions());
      add(row, "failed_allocations", pool.failed_allocations());
    }
    // Pools are known of every node, from its heartbeat. Rates are known of those nodes alone that were asked
    // twice.
    if (i >= statuses.size() || !statuses[i].ok()) continue;
    add(rack.row, "asked", 1);
    const NodeStatus& status = **statuses[i];
    if (!status.previous.has_value()) continue;
    const absl::Duration between = status.counters.at - status.previous->at;
    rack.received += RateOf(status.counters.received, status.previous->received, between);
    rack.served += RateOf(status.counters.served, status.previous->served, between);
  }
  json document = {{"zones", json::array()}, {"nodes", nodes.size()}, {"problems", std::move(problems)}};
  for (auto& [zone, racks] : zones) {
    json rows = json::array();
    for (auto& [name, rack] : racks) {
      rack.row["rack"] = name;
      rack.row["received_bytes_per_second"] = static_cast<uint64_t>(rack.received);
      rack.row["served_bytes_per_second"] = static_cast<uint64_t>(rack.served);
      rack.row["pools"] = json::array();
      for (auto& [kind, pool] : rack.pools) rack.row["pools"].push_back(std::move(pool));
      rows.push_back(std::move(rack.row));
    }
    document["zones"].push_back({{"zone", zone}, {"racks", std::move(rows)}});
  }
  document["not_asked"] = nodes.size() - statuses.size();
  TC_ASSIGN_OR_RETURN(document["status"], Status(query));
  document["status"].erase("daemon");  // it changes with every byte that moves; the page of the node shows it
  return document;
}

absl::StatusOr<json> Documents::Maker::Nodes(const Query& query) {
  json document = {{"problems", json::array()}};
  TC_ASSIGN_OR_RETURN(const std::vector<v1::Node> all, KnownNodes(&document["problems"]));
  const std::string text = ParameterOf(query, "q");
  const std::string state = ParameterOf(query, "state");
  TC_RETURN_IF_ERROR(HasState(v1::Node(), state).status());  // also where no node has any
  std::vector<const v1::Node*> nodes;
  for (const v1::Node& node : all) {
    TC_ASSIGN_OR_RETURN(const bool in_state, HasState(node, state));
    const bool named = absl::StrContains(node.name(), text) || absl::StrContains(node.node_id(), text);
    if (in_state && named && IsIn(query, node)) nodes.push_back(&node);
  }
  TC_RETURN_IF_ERROR(AddPage(
      query, "nodes", nodes.size(), [&](size_t i) { return nodes[i]->name(); },
      [&](size_t i) { return NodeRow(*nodes[i]); }, &document));
  return document;
}

absl::StatusOr<json> Documents::Maker::Node(const Query& query) {
  json document = {{"problems", json::array()}, {"names", json::object()}, {"keys", json::object()}};
  TC_ASSIGN_OR_RETURN(const v1::Node node, FindNode(ParameterOf(query, "node"), &document["problems"]));
  document["node"] = NodeRow(node);
  const auto status = AskNodes({node}).front();
  if (!status.ok()) {
    document["problems"].push_back(Problem(absl::StrCat("node ", node.name()), status.status()));
    return document;
  }
  document["status"] = StatusRow((*status)->status);
  // Servings have the ids of their receivers. The page shows names.
  const auto by_id = NodesById();
  for (const v1::ServeReport& serving : (*status)->status.servings()) {
    if (!by_id.ok()) break;
    const auto receiver = by_id->find(serving.receiver_node_id());
    if (receiver != by_id->end()) document["names"][receiver->first] = receiver->second.name();
  }
  TC_ASSIGN_OR_RETURN(const auto client, nodes_.ClientOf(node));
  auto replicas = client->ListReplicas(RequestContext::Background(kTimeout), "");
  if (!replicas.ok()) {
    document["problems"].push_back(
        Problem(absl::StrCat("replicas of node ", node.name()), replicas.status()));
    return document;
  }
  std::ranges::sort(*replicas, {}, &v1::Replica::replica_id);
  TC_RETURN_IF_ERROR(AddPage(
      query, "replicas", replicas->size(), [&](size_t i) { return (*replicas)[i].replica_id(); },
      [&](size_t i) { return ToDocument((*replicas)[i]); }, &document));
  // The page needs the keys of its own artifacts alone.
  std::set<std::string> shown;
  for (const json& replica : document["replicas"]) shown.insert(replica.value("artifact_id", ""));
  if (const auto keys = AllKeys(); keys.ok()) {
    for (const v1::Key& key : (*keys)->keys()) {
      if (shown.contains(key.artifact_id())) document["keys"][key.artifact_id()].push_back(key.name());
    }
  }
  return document;
}

absl::StatusOr<json> Documents::Maker::Artifacts(const Query& query) {
  TC_ASSIGN_OR_RETURN(const auto all, AllArtifacts());
  // The search runs here, in the list that all tabs share, so it costs the store nothing.
  const std::string text = ParameterOf(query, "q");
  const auto has = [&](const std::string& part) { return absl::StrContains(part, text); };
  std::vector<const v1::Artifact*> artifacts;
  for (const v1::Artifact& artifact : *all) {
    const bool origin = std::ranges::any_of(artifact.origins(), [&](const v1::Origin& one) {
      return std::ranges::any_of(one.objects(), has, &v1::Origin::Object::uri);
    });
    if (has(artifact.artifact_id()) || origin || std::ranges::any_of(artifact.keys(), has) ||
        std::ranges::any_of(artifact.kept_by(), has)) {
      artifacts.push_back(&artifact);
    }
  }
  std::ranges::sort(artifacts, {}, &v1::Artifact::artifact_id);
  json document = json::object();
  TC_RETURN_IF_ERROR(AddPage(
      query, "artifacts", artifacts.size(), [&](size_t i) { return artifacts[i]->artifact_id(); },
      [&](size_t i) { return ToDocument(*artifacts[i]); }, &document));
  return document;
}

absl::StatusOr<json> Documents::Maker::Artifact(const Query& query) {
  std::string wanted = ParameterOf(query, "artifact");
  if (wanted.empty()) return absl::InvalidArgumentError("show artifact: the parameter artifact is missing");
  // A key was given: the document is of the artifact that the key names now.
  if (!IsArtifactId(wanted)) {
    TC_ASSIGN_OR_RETURN(const v1::ResolveKeyResponse resolved,
                        Ask([&](client::AdminClient& own, const RequestContext& context) {
                          return own.ResolveKey(context, wanted);
                        }));
    wanted = resolved.key().artifact_id();
  }
  TC_ASSIGN_OR_RETURN(v1::Artifact artifact,
                      Ask([&](client::AdminClient& own, const RequestContext& context) {
                        return own.DescribeArtifact(context, wanted);
                      }));
  std::vector<v1::Replica> replicas(artifact.replicas().begin(), artifact.replicas().end());
  // Two nodes may report replicas of the same id.
  const auto key = [](const v1::Replica& replica) {
    return absl::StrCat(replica.node_id(), "/", replica.replica_id());
  };
  std::ranges::sort(replicas, {}, key);
  // The replicas are paged by themselves, and then put where the message has them.
  artifact.clear_replicas();
  json document = json::object();
  TC_RETURN_IF_ERROR(AddPage(
      query, "replicas", replicas.size(), [&](size_t i) { return key(replicas[i]); },
      [&](size_t i) { return ToDocument(replicas[i]); }, &document));
  document["artifact"] = ToDocument(artifact);
  document["artifact"]["replicas"] = std::move(document["replicas"]);
  document.erase("replicas");
  document["names"] = json::object();
  const auto by_id = NodesById();
  std::set<std::string> shown;
  for (const json& row : document["artifact"]["replicas"]) shown.insert(row.value("node_id", ""));
  for (const v1::Origin& origin : artifact.origins()) shown.insert(origin.node_id());
  if (by_id.ok()) {
    for (const auto& [node_id, node] : *by_id) {
      if (shown.contains(node_id)) document["names"][node_id] = node.name();
    }
  }
  return document;
}

absl::StatusOr<json> Documents::Maker::Keys(const Query& query) {
  TC_ASSIGN_OR_RETURN(const auto all, AllKeys());
  std::vector<const v1::Key*> keys;
  for (const v1::Key& key : all->keys()) {
    if (absl::StartsWith(key.name(), ParameterOf(query, "prefix"))) keys.push_back(&key);
  }
  std::ranges::sort(keys, {}, &v1::Key::name);
  json document = json::object();
  TC_RETURN_IF_ERROR(AddPage(
      query, "keys", keys.size(), [&](size_t i) { return keys[i]->name(); },
      [&](size_t i) { return ToDocument(*keys[i]); }, &document));
  return document;
}

absl::StatusOr<json> Documents::Maker::Key(const Query& query) {
  // The global store itself is asked, since what this node remembers may be behind.
  TC_ASSIGN_OR_RETURN(const v1::ResolveKeyResponse resolved,
                      Ask([&](client::AdminClient& own, const RequestContext& context) {
                        return own.ResolveKey(context, ParameterOf(query, "name"), /*confirmed=*/true);
                      }));
  const v1::Key& key = resolved.key();
  std::vector<std::pair<uint64_t, std::string>> revisions = {{key.revision(), key.artifact_id()}};
  for (const v1::KeyVersion& version : key.earlier()) {
    revisions.emplace_back(version.revision(), version.artifact_id());
  }
  // The newest first: a node counts with the first version that it has.
  std::map<std::string, uint64_t> newest;  // by node id
  json document = {{"key", ToDocument(key)}, {"revisions", json::array()}};
  for (const auto& [revision, artifact_id] : revisions) {
    const auto artifact = Ask([&, id = artifact_id](client::AdminClient& own, const RequestContext& context) {
      return own.DescribeArtifact(context, id);
    });
    // A version that was deleted meanwhile does not fail the document: no node has it.
    if (!artifact.ok() && !absl::IsNotFound(artifact.status())) return artifact.status();
    size_t count = 0;
    if (artifact.ok()) {
      for (const v1::Replica& replica : artifact->replicas()) {
        const bool ready = replica.state() == v1::REPLICA_STATE_READY;
        if (ready && newest.try_emplace(replica.node_id(), revision).second) ++count;
      }
    }
    document["revisions"].push_back({{"revision", revision}, {"artifact_id", artifact_id}, {"nodes", count}});
  }
  TC_ASSIGN_OR_RETURN(const auto by_id, NodesById());
  struct Row {
    std::string key;
    json row;
  };
  std::vector<Row> rows;
  for (const auto& [node_id, revision] : newest) {
    const auto found = by_id.find(node_id);
    // A node that has left the cluster does not belong to the rollout.
    if (found == by_id.end()) continue;
    const v1::Node& node = found->second;
    // Those that are furthest behind come first, and a row's key says so.
    rows.push_back({absl::StrCat(absl::Dec(revision, absl::kZeroPad16), "/", node.name()),
                    {{"node_id", node_id},
                     {"name", node.name()},
                     {"zone", LabelOf(node, "zone")},
                     {"rack", LabelOf(node, "rack")},
                     {"revision", revision},
                     {"behind", key.revision() - revision}}});
  }
  std::ranges::sort(rows, {}, &Row::key);
  document["registered"] = by_id.size();
  TC_RETURN_IF_ERROR(AddPage(
      query, "nodes", rows.size(), [&](size_t i) { return rows[i].key; },
      [&](size_t i) { return rows[i].row; }, &document));
  return document;
}

absl::StatusOr<json> Documents::Maker::Transfers(const Query& query) {
  json problems = json::array();
  TC_ASSIGN_OR_RETURN(std::vector<v1::Node> nodes, KnownNodes(&problems));
  std::erase_if(nodes, [&](const v1::Node& node) { return !IsIn(query, node); });
  const auto statuses = AskNodes(nodes);
  json running = json::array(), shown = json::array();
  std::vector<std::pair<absl::Time, json>> recent;
  Edges edges;
  size_t asked = 0, left_out = 0;
  for (size_t i = 0; i < statuses.size(); ++i) {
    const v1::Node& node = nodes[i];
    shown.push_back({{"node_id", node.node_id()},
                     {"name", node.name()},
                     {"zone", LabelOf(node, "zone")},
                     {"rack", LabelOf(node, "rack")}});
    if (!statuses[i].ok()) {
      problems.push_back(Problem(absl::StrCat("node ", node.name()), statuses[i].status()));
      continue;
    }
    ++asked;
    const NodeStatus& status = **statuses[i];
    const auto row = [&](const v1::TransferReport& report) -> json {
      return {{"node_id", node.node_id()}, {"node", node.name()}, {"transfer", ToDocument(report)}};
    };
    for (const v1::TransferReport& report : status.status.running_transfers()) {
      AddEdges(node.name(), report, /*running=*/true, &edges);
      if (running.size() == kMaxRunning) {
        ++left_out;
        continue;
      }
      running.push_back(row(report));
      running.back()["bytes_per_second"] = static_cast<uint64_t>(TransferRate(status, report));
    }
    for (const v1::TransferReport& report : status.status.recent_transfers()) {
      const absl::Time end = rpc::FromProto(report.end());
      if (end > absl::Now() - kRecent) AddEdges(node.name(), report, /*running=*/false, &edges);
      recent.emplace_back(end, row(report));
    }
  }
  // The newest come first, of all nodes together.
  std::ranges::stable_sort(recent, std::greater<>(), &std::pair<absl::Time, json>::first);
  json rows = json::array();
  size_t bytes = running.dump(-1, ' ', false, json::error_handler_t::replace).size();
  // What moves comes first where a document would be too large. Rows go by the average size of one, so that
  // the rest need not be written out again for each.
  while (bytes > kMaxPageBytes && !running.empty()) {
    bytes -= bytes / running.size();
    running.erase(running.size() - 1);
    ++left_out;
  }
  bytes = 0;
  for (auto& [end, one] : recent) {
    bytes += one.dump(-1, ' ', false, json::error_handler_t::replace).size();
    if (rows.size() == kMaxRecent || bytes > kMaxPageBytes / 2) break;
    rows.push_back(std::move(one));
  }
  left_out += recent.size() - rows.size();
  json edge_rows = json::array();
  for (const auto& [key, edge] : edges) {
    const auto& [source, receiver, lane, is_running] = key;
    // The document is bounded, as its lists are.
    if (edge_rows.size() == 2000) break;
    edge_rows.push_back({{"source", source},
                         {"receiver", receiver},
                         {"lane", lane},
                         {"running", is_running},
                         {"transfers", edge.transfers},
                         {"bytes", edge.bytes},
                         {"bytes_per_second", static_cast<uint64_t>(edge.rate)}});
  }
  return json{{"running", std::move(running)},
              {"recent", std::move(rows)},
              {"edges", std::move(edge_rows)},
              {"nodes", std::move(shown)},
              {"asked", asked},
              {"not_asked", nodes.size() - statuses.size()},
              {"left_out", left_out},
              {"problems", std::move(problems)}};
}

absl::StatusOr<json> Documents::Maker::Transfer(const Query& query) {
  std::string wanted = ParameterOf(query, "transfer");
  if (wanted.empty()) wanted = "last";
  std::shared_ptr<client::AdminClient> client;
  if (const std::string name = ParameterOf(query, "node"); name.empty()) {
    TC_ASSIGN_OR_RETURN(client, Own());
  } else {
    KnowOwn();
    TC_ASSIGN_OR_RETURN(const v1::Node node, FindNode(name, nullptr));
    TC_ASSIGN_OR_RETURN(client, nodes_.ClientOf(node));
  }
  // The daemon asks the nodes on the way, so this is one call, however many hops there are.
  const RequestContext context = RequestContext::Background(kTimeout);
  TC_ASSIGN_OR_RETURN(const v1::GetStatusResponse status, client->GetStatus(context));
  TC_ASSIGN_OR_RETURN(explain::FoundTransfer found, explain::FindTransfer(status, wanted));
  const auto explained = client->ExplainTransfer(context, found.report.transfer_id());
  if (explained.ok() && explained->hops_size() > 0) {
    // As it is now: it may have ended meanwhile.
    found = {.report = explained->hops(0).transfer(), .under_way = explained->hops(0).under_way()};
  }
  TC_ASSIGN_OR_RETURN(const TransferReport report, rpc::FromProto(found.report));
  explain::Route route;
  if (explained.ok()) route = explain::RouteOf(*explained);
  std::vector<explain::SourceDetails> sources = explain::DetailsOf(route, report);
  if (!explained.ok()) {
    // No error of the document: what the others do not tell is said to be unknown.
    for (explain::SourceDetails& detail : sources) detail.problem = std::string(explained.status().message());
  }
  const std::string analysis = explain::AnalysisJson(report, sources, route);
  return json{{"transfer", ToDocument(found.report)},
              {"under_way", found.under_way},
              {"analysis", json::parse(analysis, nullptr, /*allow_exceptions=*/false)}};
}

absl::StatusOr<json> Documents::Maker::Tasks(const Query& query) {
  TC_ASSIGN_OR_RETURN(const auto all, AllTasks());
  static const std::map<std::string, v1::ReplicationTaskState> kStates = {
      {"waiting", v1::REPLICATION_TASK_STATE_WAITING},
      {"running", v1::REPLICATION_TASK_STATE_RUNNING},
      {"done", v1::REPLICATION_TASK_STATE_DONE},
      {"failed", v1::REPLICATION_TASK_STATE_FAILED}};
  const std::string state = ParameterOf(query, "state");
  const std::string artifact = ParameterOf(query, "artifact");
  if (!state.empty() && !kStates.contains(state)) {
    return absl::InvalidArgumentError(
        absl::StrCat("list tasks: state is ", state, "; give waiting, running, done or failed"));
  }
  // All states are counted, also those that the filter leaves out: they are the page's tabs.
  json document = {{"states", json::object()}};
  for (const auto& [name, value] : kStates) document["states"][name] = 0;
  std::vector<const v1::ReplicationTask*> tasks;
  for (const v1::ReplicationTask& task : all->tasks()) {
    if (!artifact.empty() && task.artifact_id() != artifact) continue;
    for (const auto& [name, value] : kStates) {
      if (value == task.state()) document["states"][name] = document["states"][name].get<int>() + 1;
    }
    if (state.empty() || kStates.at(state) == task.state()) tasks.push_back(&task);
  }
  std::ranges::sort(tasks, {}, &v1::ReplicationTask::task_id);
  TC_RETURN_IF_ERROR(AddPage(
      query, "tasks", tasks.size(), [&](size_t i) { return tasks[i]->task_id(); },
      [&](size_t i) { return ToDocument(*tasks[i]); }, &document));
  return document;
}

Documents::Documents(Options options) : maker_(std::make_unique<Maker>(std::move(options))) {}
Documents::~Documents() = default;

absl::StatusOr<json> Documents::Make(const std::string& view, const Query& query) {
  TC_ASSIGN_OR_RETURN(json document, maker_->Make(view, query));
  // This bound is the last one: lists are bounded by their views, but messages may be large.
  if (ToText(document).size() > kMaxDocumentBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("show ", view, ": the document has more than ",
                                                     kMaxDocumentBytes, " bytes; give a smaller page_size"));
  }
  return document;
}

}  // namespace tensorcast::dashboard
