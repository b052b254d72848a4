#include "global_store/membership/membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast::global_store {
namespace {

// A measured rate counts for so long.
constexpr absl::Duration kRateAge = absl::Minutes(10);
// Incarnations are nanoseconds since 1970, or one more than the previous incarnation. This bound leaves room
// after any of them.
constexpr uint64_t kIncarnationsEnd = uint64_t{1} << 63;

absl::Status CheckFacts(const NodeFacts& facts) {
  if (facts.node_id.empty() || facts.name.empty() || facts.incarnation == 0) {
    const std::string_view missing = facts.node_id.empty() ? "node id"
                                     : facts.name.empty()  ? "name"
                                                           : "incarnation";
    return absl::InvalidArgumentError(absl::StrCat("register a node: the ", missing,
                                                   " is missing; send a node id, a name and an incarnation"));
  }
  if (facts.incarnation >= kIncarnationsEnd) {
    return absl::InvalidArgumentError(absl::StrCat(
        "register node ", facts.node_id, ": the incarnation ", facts.incarnation, " is not below ",
        kIncarnationsEnd, "; correct the host's clock, which gives the incarnation"));
  }
  return Annotate(CheckLabels(facts.labels), absl::StrCat("register node ", facts.name));
}

absl::Status Replaced(const NodeFacts& by, const NodeIdentity& node) {
  return absl::AbortedError(absl::StrCat("act as node ", node.node_id, ": the daemon ", by.name, " at ",
                                         by.grpc_address, " (incarnation ", by.incarnation,
                                         ") has replaced this daemon (incarnation ", node.incarnation,
                                         "); stop one of the two daemons"));
}

absl::Status NotRegistered(const NodeIdentity& node) {
  return absl::NotFoundError(absl::StrCat("act as node ", node.node_id, ": incarnation ", node.incarnation,
                                          " is not registered; register the node again"));
}

absl::Status NotAlive(std::string_view node_id) {
  return absl::NotFoundError(
      absl::StrCat("find node ", node_id, ": no live node has this id; start the daemon of the node"));
}

}  // namespace

NodeView Node::View(SteadyTime now) const {
  return NodeView{.facts = facts,
                  .draining = draining,
                  .unreachable = unreachable,
                  .pools = pools,
                  .since_heartbeat = std::max(now - last_heartbeat, absl::ZeroDuration())};
}

void Membership::Apply(const NodeBinding& binding) {
  // A node id has one name at a time, so the previous pair goes first. An empty name unbinds the id. A name
  // that moves to another id was unbound by the fact before this one (PrepareBindNode).
  if (const auto bound = names_of_nodes_.find(binding.node_id); bound != names_of_nodes_.end()) {
    nodes_of_names_.erase(bound->second);
    names_of_nodes_.erase(bound);
  }
  if (binding.name.empty()) return;
  names_of_nodes_[binding.node_id] = binding.name;
  nodes_of_names_[binding.name] = binding.node_id;
}

const Node* Membership::Find(std::string_view node_id) const {
  const auto node = nodes_.find(node_id);
  return node == nodes_.end() ? nullptr : &node->second;
}

const Node* Membership::FindNamed(std::string_view name) const {
  const auto live = live_names_.find(name);
  return live == live_names_.end() ? nullptr : Find(live->second);
}

absl::StatusOr<const Node*> Membership::FindLive(const NodeIdentity& node) const {
  TC_RETURN_IF_ERROR(CheckIdentity(node));
  return Find(node.node_id);
}

const std::set<std::string>& Membership::OnHost(std::string_view host_id) const {
  static const std::set<std::string> kNone;
  const auto host = nodes_of_host_.find(host_id);
  return host == nodes_of_host_.end() ? kNone : host->second;
}

absl::Status Membership::CheckName(const NodeFacts& facts) const {
  const auto named = live_names_.find(facts.name);
  if (named == live_names_.end() || named->second == facts.node_id) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat("register node ", facts.node_id, ": the name ", facts.name,
                                               " belongs to the live node ", named->second, " at ",
                                               nodes_.find(named->second)->second.facts.grpc_address,
                                               "; stop that node, or give this node another name"));
}

absl::Status Membership::CheckIdentity(const NodeIdentity& node) const {
  auto it = nodes_.find(node.node_id);
  if (it == nodes_.end()) return NotRegistered(node);
  const NodeFacts& facts = it->second.facts;
  // A lower incarnation is that of a process which was replaced, and has to stop. A higher one belongs to a
  // process that has yet to register, and may.
  if (node.incarnation == facts.incarnation) return absl::OkStatus();
  return node.incarnation < facts.incarnation ? Replaced(facts, node) : NotRegistered(node);
}

absl::Status Membership::CheckRegistration(const NodeFacts& facts) const {
  TC_RETURN_IF_ERROR(CheckFacts(facts));
  const NodeIdentity id = {facts.node_id, facts.incarnation};
  // NOT_FOUND is the normal answer here: a new node, or a new incarnation of one, is not registered yet.
  absl::Status identity = CheckIdentity(id);
  if (absl::IsAborted(identity)) return identity;
  if (auto it = nodes_.find(facts.node_id);
      identity.ok() && it->second.facts.grpc_address != facts.grpc_address) {
    // Two processes on copies of one state folder, with incarnations equal by chance: the first stays.
    return Replaced(it->second.facts, id);
  }
  return CheckName(facts);
}

absl::Status Membership::CheckBinding(std::string_view node_id, std::string_view name) const {
  const auto bound = names_of_nodes_.find(node_id);
  if (bound == names_of_nodes_.end() || bound->second == name) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "permission denied: node/", name, " may not act as node ", bound->second, " (", node_id,
      "); use the certificate of node ", bound->second,
      ", or, if the node was renamed, let an operator run `tensorcast node forget ", node_id, "`"));
}

absl::StatusOr<DurableFacts> Membership::PrepareBindNode(const NodeFacts& facts) const {
  TC_RETURN_IF_ERROR(CheckRegistration(facts));
  TC_RETURN_IF_ERROR(CheckBinding(facts.node_id, facts.name));
  DurableFacts binding;
  // Where the id is bound already the name is the same, since CheckBinding passed: nothing is written.
  if (names_of_nodes_.contains(facts.node_id)) return binding;
  if (const auto bound = nodes_of_names_.find(facts.name); bound != nodes_of_names_.end()) {
    binding.nodes.push_back({.node_id = bound->second, .name = ""});
  }
  binding.nodes.push_back({.node_id = facts.node_id, .name = facts.name});
  return binding;
}

absl::StatusOr<DurableFacts> Membership::PrepareForgetNode(std::string_view node_id) const {
  const auto bound = names_of_nodes_.find(node_id);
  if (bound == names_of_nodes_.end()) {
    return absl::NotFoundError(absl::StrCat(
        "forget node ", node_id,
        ": this node id is not bound to a certificate's name; see the node ids in `tensorcast node ls`"));
  }
  // The id of a live node stays bound. Else a node with another certificate could take the id over while the
  // first one runs.
  if (nodes_.contains(node_id)) {
    return absl::FailedPreconditionError(absl::StrCat("forget node ", bound->second, " (", node_id,
                                                      "): the node is alive; stop the node's daemon first"));
  }
  return DurableFacts{.nodes = {{.node_id = std::string(node_id), .name = ""}}};
}

Registration Membership::Register(const NodeFacts& facts, std::vector<PoolFacts> pools, SteadyTime now) {
  Node& node = nodes_[facts.node_id];
  SetFacts(node, facts);
  node.pools = std::move(pools);
  node.last_heartbeat = now;
  node.registered = now;
  // A node that the directory has dropped, or that comes with a higher incarnation, is a new entry here and
  // gets a new key: tokens for its predecessor open nothing.
  // The same incarnation may only be repeating a call with a lost answer: its running grants stay valid.
  if (node.grant_key.empty()) {
    node.grant_key = secrets_->NewGrantKey();
    node.grant_key_given = now;
  }
  return {.grant_key = node.grant_key,
          .grant_key_age = now - node.grant_key_given,
          .liveness = TellLiveness(node)};
}

void Membership::Remove(std::string_view node_id) {
  const auto node = nodes_.find(node_id);
  // Empty facts take the node out of the indices by name and by host.
  SetFacts(node->second, {});
  nodes_.erase(node);
}

Liveness Membership::LivenessNow() const {
  return LivenessOf({.heartbeat_interval = options_.heartbeat_interval, .node_ttl = options_.node_ttl},
                    std::max(nodes_.size(), largest_fleet_));
}

Liveness Membership::TellLiveness(Node& node) const {
  const Liveness now = LivenessNow();
  // The node may not receive this answer. Until the next heartbeat shows that it did, the node may go by what
  // it was told before, so the longer of both times holds.
  node.ttl = std::max(node.told_ttl, now.node_ttl);
  node.told_ttl = now.node_ttl;
  return now;
}

void Membership::SetFacts(Node& node, const NodeFacts& facts) {
  // The indices know the node by its previous facts, which `node` still holds here.
  if (auto host = nodes_of_host_.find(node.end.host_id); host != nodes_of_host_.end()) {
    host->second.erase(node.facts.node_id);
    if (host->second.empty()) nodes_of_host_.erase(host);
  }
  live_names_.erase(node.facts.name);
  if (!facts.name.empty()) live_names_[facts.name] = facts.node_id;
  node.facts = facts;
  const auto label = [&](const char* name) {
    const auto found = facts.labels.find(name);
    return found == facts.labels.end() ? "" : found->second;
  };
  node.end = {.host_id = facts.host_id,
              .handle_socket = facts.handle_socket,
              .lanes = facts.lanes,
              .has_devices = !facts.devices.empty(),
              .rack = label(kRackLabel),
              .zone = label(kZoneLabel),
              .measured_mbit = node.end.measured_mbit};
  // Text that is not a number says nothing.
  if (!absl::SimpleAtoi(label(kLinkLabel), &node.end.link_mbit)) node.end.link_mbit = 0;
  if (!facts.host_id.empty()) nodes_of_host_[facts.host_id].insert(facts.node_id);
}

Liveness Membership::NoteHeartbeat(std::string_view node_id, std::vector<PoolFacts> pools, SteadyTime now) {
  Node& node = nodes_.find(node_id)->second;
  node.last_heartbeat = now;
  node.pools = std::move(pools);
  return TellLiveness(node);
}

absl::Status Membership::SetDraining(std::string_view node_id, bool draining) {
  const auto node = nodes_.find(node_id);
  if (node == nodes_.end()) return NotAlive(node_id);
  node->second.draining = draining;
  return absl::OkStatus();
}

absl::Status Membership::SetUnreachable(const NodeIdentity& node, bool unreachable) {
  TC_RETURN_IF_ERROR(CheckIdentity(node));
  nodes_.find(node.node_id)->second.unreachable = unreachable;
  return absl::OkStatus();
}

absl::Status Membership::SetUnhealthyDevices(const NodeIdentity& node, std::vector<int> devices) {
  TC_RETURN_IF_ERROR(CheckIdentity(node));
  nodes_.find(node.node_id)->second.facts.unhealthy_devices = std::move(devices);
  return absl::OkStatus();
}

void Membership::SetBroadcasts(std::string_view node_id, BroadcastAbility ability) {
  if (const auto node = nodes_.find(node_id); node != nodes_.end()) {
    node->second.facts.broadcasts = std::move(ability);
  }
}

void Membership::NoteRate(std::string_view node_id, uint64_t mbit, SteadyTime now) {
  Node& node = nodes_.find(node_id)->second;
  node.end.measured_mbit = mbit;
  node.rate_measured = now;
}

void Membership::NoteSilent(std::string_view node_id, SteadyTime now) {
  if (const auto node = nodes_.find(node_id); node != nodes_.end()) node->second.silent_since = now;
}

uint64_t Membership::CountDraining() const {
  return static_cast<uint64_t>(
      std::ranges::count_if(nodes_, [](const auto& node) { return node.second.draining; }));
}

void Membership::AwaitNodes(SteadyTime now) {
  if (options_.awaits_nodes) awaited_until_ = now + options_.node_ttl;
}

std::vector<NodeView> Membership::TakeStock(SteadyTime now) {
  if (nodes_.size() >= largest_fleet_ || now >= largest_fleet_until_) {
    largest_fleet_ = nodes_.size();
    largest_fleet_until_ = now + kFleetAge;
  }
  std::vector<NodeView> silent;
  // A longer one holds at once for all: it costs a node nothing.
  const absl::Duration ttl = LivenessNow().node_ttl;
  for (auto& [node_id, node] : nodes_) {
    // A rate of a past load of the network is worse than none.
    if (now - node.rate_measured > kRateAge) node.end.measured_mbit = 0;
    if (now - node.last_heartbeat > std::max(node.ttl, ttl)) silent.push_back(node.View(now));
  }
  return silent;
}

void Membership::ExtendLiveness(absl::Duration gap) {
  awaited_until_ += gap;
  for (auto& [node_id, node] : nodes_) node.last_heartbeat += gap;
}

}  // namespace tensorcast::global_store
