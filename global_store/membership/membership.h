// Membership holds the live nodes, which are soft state. If nodes have certificates, it also holds the owner
// of each node id, which is a durable fact.
//
// A call with a NodeIdentity fails with ABORTED if another live incarnation has replaced that identity. The
// call fails with NOT_FOUND if the node is not registered; the node must then register again.
//
// A pointer to a Node is valid until Remove. The directory ends a node's replicas and grants before it
// removes the node. Thread-compatible: one caller at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "global_store/catalog/facts.h"
#include "global_store/membership/node.h"

namespace tensorcast::global_store {

// The only source of randomness in the directory's rooms.
class Secrets {
 public:
  virtual ~Secrets() = default;
  virtual std::string NewGrantId() = 0;
  virtual std::string NewGrantKey() = 0;  // 32 secret bytes
};

struct MembershipOptions {
  // Values for a small fleet; both grow with the fleet (liveness.h).
  absl::Duration heartbeat_interval = absl::Seconds(2);
  absl::Duration node_ttl = absl::Seconds(10);
  // True: after its start, the store gives earlier nodes one node_ttl to register again. During that time a
  // request waits if its artifact is on none of the nodes. False in a daemon without a shared global store.
  bool awaits_nodes = true;
};

class Membership {
 public:
  using Nodes = std::map<std::string, Node, std::less<>>;

  // `secrets` must outlive the membership.
  Membership(const MembershipOptions& options, Secrets* secrets) : options_(options), secrets_(secrets) {}

  void Apply(const NodeBinding& binding);
  // PERMISSION_DENIED when another name owns this node id. `name`: the name in a certificate.
  absl::Status CheckBinding(std::string_view node_id, std::string_view name) const;
  // Plans to bind the node id to the name in the node's certificate, and to unbind the name's previous node
  // id. No facts if the node id is already bound to the name. Errors are those of CheckBinding and
  // CheckRegistration.
  absl::StatusOr<DurableFacts> PrepareBindNode(const NodeFacts& facts) const;
  // Plans to unbind the node id from its name. NOT_FOUND when the id is bound to no name, FAILED_PRECONDITION
  // while the node is alive.
  absl::StatusOr<DurableFacts> PrepareForgetNode(std::string_view node_id) const;

  // OK if this incarnation is registered, otherwise ABORTED or NOT_FOUND (see above).
  absl::Status CheckIdentity(const NodeIdentity& node) const;
  // ALREADY_EXISTS when another live node has the name; ABORTED when the node is alive with a higher
  // incarnation, or with the same incarnation at another address; INVALID_ARGUMENT for invalid facts.
  absl::Status CheckRegistration(const NodeFacts& facts) const;
  // An incarnation that registers again keeps its state and its grant key. REQUIRES: CheckRegistration is OK,
  // and an earlier incarnation, if there was one, was removed.
  Registration Register(const NodeFacts& facts, std::vector<PoolFacts> pools, SteadyTime now);
  // REQUIRES: the node is alive.
  void Remove(std::string_view node_id);

  // Returns the liveness for the answer to the node. REQUIRES: the node is alive.
  Liveness NoteHeartbeat(std::string_view node_id, std::vector<PoolFacts> pools, SteadyTime now);
  // Draining holds until the node's incarnation ends, or until a call with `draining` false. NOT_FOUND when
  // the node is not alive.
  absl::Status SetDraining(std::string_view node_id, bool draining);
  // Records the node's report on whether its advertised port answers. An unreachable node is not offered as a
  // source.
  absl::Status SetUnreachable(const NodeIdentity& node, bool unreachable);
  // Sets the ordinals of GPUs that do not work; for people.
  absl::Status SetUnhealthyDevices(const NodeIdentity& node, std::vector<int> devices);
  void SetBroadcasts(std::string_view node_id, BroadcastAbility ability);
  // Notes the rate of a transfer to the node, in Mbit/s. The rate is valid for ten minutes. A label with the
  // node's rate takes precedence. REQUIRES: the node is alive.
  void NoteRate(std::string_view node_id, uint64_t mbit, SteadyTime now);
  // Records that the node did not answer a question about an origin.
  void NoteSilent(std::string_view node_id, SteadyTime now);

  const Nodes& nodes() const { return nodes_; }
  // Null: the node is not alive.
  const Node* Find(std::string_view node_id) const;
  const Node* FindNamed(std::string_view name) const;
  absl::StatusOr<const Node*> FindLive(const NodeIdentity& node) const;
  // The ids of the nodes on a host.
  const std::set<std::string>& OnHost(std::string_view host_id) const;
  // The names that own node ids, by node id.
  const absl::btree_map<std::string, std::string>& bound_names() const { return names_of_nodes_; }
  uint64_t CountDraining() const;

  Liveness LivenessNow() const;
  // Begins the wait for earlier nodes (MembershipOptions::awaits_nodes).
  void AwaitNodes(SteadyTime now);
  SteadyTime awaited_until() const { return awaited_until_; }
  // Returns the nodes that were silent for longer than their TTL, and notes the number of nodes.
  std::vector<NodeView> TakeStock(SteadyTime now);
  // Delays by `gap` the expiry of silent nodes and the end of the wait for earlier nodes.
  void ExtendLiveness(absl::Duration gap);

 private:
  friend class DirectoryInvariants;  // tests

  absl::Status CheckName(const NodeFacts& facts) const;
  // Sets the facts and their indices. Empty facts: the node is about to be removed.
  void SetFacts(Node& node, const NodeFacts& facts);
  // The liveness for the next answer to the node.
  Liveness TellLiveness(Node& node) const;

  const MembershipOptions options_;
  Secrets* const secrets_;
  Nodes nodes_;
  absl::flat_hash_map<std::string, std::string> live_names_;               // node id by name
  absl::flat_hash_map<std::string, std::set<std::string>> nodes_of_host_;  // node ids by host id
  absl::btree_map<std::string, std::string> names_of_nodes_;               // owner's name by node id
  absl::flat_hash_map<std::string, std::string> nodes_of_names_;  // the inverse: a name has one node id
  size_t largest_fleet_ = 0;                                      // max size within the last kFleetAge
  SteadyTime largest_fleet_until_ = SteadyTime::InfinitePast();
  SteadyTime awaited_until_ = SteadyTime::InfinitePast();
};

}  // namespace tensorcast::global_store
