#include "cli/dashboard/document_maker.h"

#include <algorithm>
#include <initializer_list>
#include <span>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cli/dashboard/documents.h"
#include "cli/dashboard/event_hub.h"
#include "rpc/convert/convert.h"

namespace tensorcast::dashboard {
namespace {

using nlohmann::json;

constexpr absl::Duration kLate = absl::Seconds(30);
constexpr size_t kMaxStatusBytes = 512 << 10;

}  // namespace

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

bool IsIn(const Query& query, const v1::Node& node) {
  return std::ranges::all_of(std::initializer_list<const char*>{"zone", "rack"}, [&](const char* name) {
    const auto wanted = query.find(name);
    return wanted == query.end() || wanted->second == LabelOf(node, name);
  });
}

json NodeRow(v1::Node node) {
  if (node.has_since_heartbeat()) {
    node.mutable_since_heartbeat()->set_seconds(node.since_heartbeat().seconds() / 10 * 10);
    node.mutable_since_heartbeat()->set_nanos(0);
  }
  return ToDocument(node);
}

json StatusRow(v1::GetStatusResponse status) {
  if (status.has_host()) {
    status.mutable_host()->clear_clock();
    status.mutable_host()->clear_descriptors_open();
    status.mutable_host()->clear_available_memory_bytes();
  }
  std::string text = cli::ToJson(status);
  // The halving needs few rounds even for long rings, and each round makes the whole text again.
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

double RateOf(uint64_t now, uint64_t before, absl::Duration between) {
  // A counter that went back began anew, with its daemon: the next look gives a rate.
  const double seconds = absl::ToDoubleSeconds(between);
  return seconds <= 0 || now < before ? 0 : static_cast<double>(now - before) / seconds;
}

absl::StatusOr<std::shared_ptr<client::AdminClient>> Documents::Maker::Own() {
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

auto Documents::Maker::Daemon() -> Shared<v1::GetStatusResponse> {
  return daemon_.Get([&]() -> absl::StatusOr<v1::GetStatusResponse> {
    TC_ASSIGN_OR_RETURN(const auto own, Own());
    {
      const absl::MutexLock lock(&mutex_);
      if (store_alone_ == own) {
        return absl::UnimplementedError(
            "show the daemon: the dashboard is connected to a global store; start a dashboard with the "
            "address of a daemon as --daemon");
      }
    }
    absl::StatusOr<v1::GetStatusResponse> status = Ask(
        [](client::AdminClient& asked, const RequestContext& context) { return asked.GetStatus(context); });
    const absl::MutexLock lock(&mutex_);
    // The connection is remembered, not the fact: the next connection may lead to a daemon.
    if (absl::IsUnimplemented(status.status())) store_alone_ = own;
    return status;
  });
}

auto Documents::Maker::Cluster() -> Shared<v1::GetClusterStatusResponse> {
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

auto Documents::Maker::AllArtifacts() -> Shared<std::vector<v1::Artifact>> {
  return artifacts_.Get([&] {
    return Ask([](client::AdminClient& own, const RequestContext& context) {
      return own.ListArtifacts(context, /*unkeyed_only=*/false, absl::ZeroDuration());
    });
  });
}

auto Documents::Maker::AllKeys() -> Shared<v1::ListKeysResponse> {
  return keys_.Get([&] {
    return Ask(
        [](client::AdminClient& own, const RequestContext& context) { return own.ListKeys(context, ""); });
  });
}

auto Documents::Maker::AllTasks() -> Shared<v1::ListReplicationTasksResponse> {
  return tasks_.Get([&] {
    return Ask([](client::AdminClient& own, const RequestContext& context) {
      return own.ListReplicationTasks(context, "");
    });
  });
}

// Without the global store the dashboard still shows the daemon that it is beside. Where both are away, the
// store's error says more about the cluster than the daemon's.
absl::StatusOr<std::vector<v1::Node>> Documents::Maker::KnownNodes(json* problems) {
  const auto cluster = Cluster();
  if (cluster.ok()) return std::vector<v1::Node>((*cluster)->nodes().begin(), (*cluster)->nodes().end());
  const auto daemon = Daemon();
  if (!daemon.ok()) return cluster.status();
  if (problems != nullptr) problems->push_back(Problem("global store", cluster.status()));
  return std::vector<v1::Node>{(*daemon)->node()};
}

absl::StatusOr<v1::Node> Documents::Maker::FindNode(const std::string& wanted, json* problems) {
  TC_ASSIGN_OR_RETURN(const std::vector<v1::Node> nodes, KnownNodes(problems));
  auto found = std::ranges::find(nodes, wanted, &v1::Node::node_id);
  if (found == nodes.end()) found = std::ranges::find(nodes, wanted, &v1::Node::name);
  if (found != nodes.end()) return *found;
  return absl::NotFoundError(absl::StrCat(
      "show node ", wanted, ": no registered node has this name or id; choose a node of the page Nodes"));
}

absl::StatusOr<std::map<std::string, v1::Node>> Documents::Maker::NodesById() {
  TC_ASSIGN_OR_RETURN(const std::vector<v1::Node> nodes, KnownNodes(nullptr));
  std::map<std::string, v1::Node> by_id;
  for (const v1::Node& node : nodes) by_id[node.node_id()] = node;
  return by_id;
}

std::vector<Cached<NodeStatus>::Value> Documents::Maker::AskNodes(const std::vector<v1::Node>& nodes) {
  KnowOwn();
  return nodes_.Ask(std::span(nodes).first(std::min(nodes.size(), kMaxAskedNodes)));
}

void Documents::Maker::KnowOwn() {
  // The daemon beside the dashboard is asked over the connection that there is: its node's address may not
  // be reachable from here.
  const auto daemon = Daemon();
  const auto own = Own();
  if (daemon.ok() && own.ok()) nodes_.SetOwn((*daemon)->node().node_id(), *own);
}

absl::StatusOr<json> Documents::Maker::Make(const std::string& view, const Query& query) {
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
  return absl::NotFoundError(
      absl::StrCat("show ", view, ": the dashboard has no such view; open one of the dashboard's pages"));
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
