// Membership: which nodes are alive and under which incarnation, what each says of itself, and the owners of
// node ids where nodes have certificates. The owners are durable facts, all else is soft state.
//
// Calls that name a NodeIdentity fail with ABORTED for an incarnation that was replaced by one that is alive,
// and with NOT_FOUND for a node that is not registered (any more): it registers again and sends its
// inventory.
//
// Owns the nodes: other rooms may keep a pointer to a Node until it is removed. Knows no replicas and no
// grants: the directory ends those before it removes a node. Thread-compatible: one caller at a time.
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

// The only source of randomness of the rooms.
class Secrets {
 public:
  virtual ~Secrets() = default;
  virtual std::string NewGrantId() = 0;
  virtual std::string NewGrantKey() = 0;  // 32 secret bytes
};

struct MembershipOptions {
  // Of a small fleet; both grow with it (liveness.h).
  absl::Duration heartbeat_interval = absl::Seconds(2);
  absl::Duration node_ttl = absl::Seconds(10);
  // After a start, nodes that were here before get a node's time to live to come back: until then what no
  // node has is waited for. False where no other node can be (a daemon that works alone).
  bool awaits_nodes = true;
};

class Membership {
 public:
  using Nodes = std::map<std::string, Node, std::less<>>;

  // `secrets` must outlive the membership.
  Membership(const MembershipOptions& options, Secrets* secrets) : options_(options), secrets_(secrets) {}

  void Apply(const NodeBinding& binding);
  // Why a certificate's name may not speak for this node id: PERMISSION_DENIED when it is another's.
  absl::Status CheckBinding(std::string_view node_id, std::string_view name) const;
  // Binds the node id to the node's name, as its certificate has it; no facts where it is. A name has one
  // node id: the previous one is then unbound. Errors as CheckBinding's and CheckRegistration's.
  absl::StatusOr<DurableFacts> PrepareBindNode(const NodeFacts& facts) const;
  // The next node to register may have the node id. NOT_FOUND when it is bound to none, FAILED_PRECONDITION
  // while the node is alive.
  absl::StatusOr<DurableFacts> PrepareForgetNode(std::string_view node_id) const;

  // OK, or why calls of this identity are refused.
  absl::Status CheckIdentity(const NodeIdentity& node) const;
  // ALREADY_EXISTS when another live node has the name; ABORTED when the node is alive with a higher
  // incarnation, or with the same one at another address.
  absl::Status CheckRegistration(const NodeFacts& facts) const;
  // The same incarnation registering again keeps its state and key. REQUIRES: CheckRegistration is OK, and an
  // earlier incarnation was removed.
  Registration Register(const NodeFacts& facts, std::vector<PoolFacts> pools, SteadyTime now);
  // REQUIRES: the node is alive.
  void Remove(std::string_view node_id);

  // Returns what the node is told with the answer. REQUIRES: the node is alive.
  Liveness NoteHeartbeat(std::string_view node_id, std::vector<PoolFacts> pools, SteadyTime now);
  // Until the end of its incarnation, or until this is called with `draining` false. NOT_FOUND when the node
  // is not alive.
  absl::Status SetDraining(std::string_view node_id, bool draining);
  // Its advertised port does not answer, as it says itself: until it does the node is not offered as a
  // source.
  absl::Status SetUnreachable(const NodeIdentity& node, bool unreachable);
  // GPUs on which nothing works, by ordinal; for people.
  absl::Status SetUnhealthyDevices(const NodeIdentity& node, std::vector<int> devices);
  void SetBroadcasts(std::string_view node_id, BroadcastAbility ability);
  // How fast a transfer to the node goes. It counts for ten minutes, where no label says the node's rate.
  // REQUIRES: the node is alive.
  void NoteRate(std::string_view node_id, uint64_t mbit, SteadyTime now);
  // It did not answer when it was asked of an origin.
  void NoteSilent(std::string_view node_id, SteadyTime now);

  const Nodes& nodes() const { return nodes_; }
  // Null: it is not alive.
  const Node* Find(std::string_view node_id) const;
  const Node* FindNamed(std::string_view name) const;
  absl::StatusOr<const Node*> FindLive(const NodeIdentity& node) const;
  // The ids of the nodes on a host.
  const std::set<std::string>& OnHost(std::string_view host_id) const;
  // Names by node id: those that are bound, alive or not.
  const absl::btree_map<std::string, std::string>& bound_names() const { return names_of_nodes_; }
  uint64_t CountDraining() const;

  Liveness LivenessNow() const;
  // Nodes from before the start are waited for until a node's time to live is over.
  void AwaitNodes(SteadyTime now);
  SteadyTime awaited_until() const { return awaited_until_; }
  // Those that were silent for longer than their time to live. Notes how large the fleet is.
  std::vector<NodeView> TakeStock(SteadyTime now);
  // The times by which silent nodes would end, and nodes from before the start are awaited, move by the gap.
  void ExtendLiveness(absl::Duration gap);

 private:
  friend class DirectoryInvariants;  // tests

  absl::Status CheckName(const NodeFacts& facts) const;
  // With the indices that are made of them. None: it is about to go.
  void SetFacts(Node& node, const NodeFacts& facts);
  // What the node is told with the next answer.
  Liveness TellLiveness(Node& node) const;

  const MembershipOptions options_;
  Secrets* const secrets_;
  Nodes nodes_;
  absl::flat_hash_map<std::string, std::string> live_names_;               // node id by name
  absl::flat_hash_map<std::string, std::set<std::string>> nodes_of_host_;  // node ids by host id
  absl::btree_map<std::string, std::string> names_of_nodes_;               // by node id: those that are bound
  absl::flat_hash_map<std::string, std::string> nodes_of_names_;  // the way back: a name has one node id
  size_t largest_fleet_ = 0;                                      // of the time up to kFleetAge ago
  SteadyTime largest_fleet_until_ = SteadyTime::InfinitePast();
  SteadyTime awaited_until_ = SteadyTime::InfinitePast();
};

}  // namespace tensorcast::global_store
