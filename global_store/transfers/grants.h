// The table of grants: each is given once, renewed by its receiver's heartbeats, and ends exactly once. If an
// end was not brought about by the node at one end of the grant, that node's heartbeat responses report it,
// for one node time to live.
//
// Soft state. Reads membership, which must outlive it. A grant ends before one of its nodes, its replica or
// its artifact is removed. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "global_store/membership/membership.h"
#include "global_store/transfers/grant.h"

namespace tensorcast::global_store {

class Grants {
 public:
  // An ended grant that a node is told of.
  struct Revoked {
    SteadyTime until;     // when to stop telling it
    uint32_t served = 0;  // heartbeats in which the node still served it
  };
  // The grants of one node.
  struct OfNode {
    std::vector<const Grant*> serving;                   // grants with this node as source, oldest first
    absl::flat_hash_map<std::string, uint32_t> uploads;  // parts of slots that `serving` takes, by artifact
                                                         // id
    std::vector<const Grant*> receiving;                 // grants with this node as receiver
    absl::btree_map<std::string, Revoked> revoked;       // by grant id
    // A receiver of a grant got nothing from this node in time: until then other sources are asked first.
    SteadyTime overtaken_until = SteadyTime::InfinitePast();
    absl::Duration overtaken_rest = absl::ZeroDuration();  // the last rest; zero: the node has served since

    // The upload slots that are taken.
    uint32_t UploadsOf(std::string_view artifact_id) const;
  };

  // `ttl`: how long a grant lives without a heartbeat of the receiver, in a small fleet. `secrets` must
  // outlive the grants.
  Grants(absl::Duration ttl, const Membership& nodes, Secrets* secrets)
      : ttl_(ttl), nodes_(nodes), secrets_(secrets) {}

  // A grant counts from here, not from its pull, so that many simultaneous requests are spread over the
  // sources.
  const Grant& Give(const GrantRequest& request, const Node& source, const std::string& replica_id,
                    std::string lane, SteadyTime now);
  // Renews the receiver's grants that its heartbeat names.
  void Renew(std::string_view receiver, const std::vector<std::string>& grant_ids, SteadyTime now);
  // The grants under which the node serves pulls, as its heartbeat names them. Returns violations, for
  // people, each once: a grant that the node still serves after it was told several times that the grant
  // ended.
  std::vector<std::string> NoteServed(const std::string& node_id, const std::vector<std::string>& grant_ids);
  // Call it when the node's rate changed: recomputes the parts of slots that its grants take.
  void Reweigh(std::string_view node_id);
  // Ends a grant as its receiver reports. The source is told too, although the receiver closes the pull
  // itself: that call may be lost. REQUIRES: the grant exists.
  void Complete(std::string_view grant_id, GrantEnd end, SteadyTime now);
  // Ends grants without a report of their receivers, and tells both nodes.
  void EndAll(const std::vector<std::string>& grant_ids, GrantEnd end, SteadyTime now);
  void EndOfArtifact(std::string_view artifact_id, SteadyTime now);
  // Call it before the node is removed.
  void EndOf(std::string_view node_id, SteadyTime now);
  void Tick(SteadyTime now);
  void ExtendLiveness(absl::Duration gap);

  const Grant* Find(std::string_view grant_id) const;
  const OfNode& Of(std::string_view node_id) const;
  // The grants by which nodes of the zone pull the artifact from other zones, oldest first.
  const std::vector<const Grant*>& Into(std::string_view zone, std::string_view artifact_id) const;
  // Ids of ended grants that the node is told of.
  std::vector<std::string> RevokedOf(std::string_view node_id) const;
  // The grants that ended since the last call, each once.
  std::vector<EndedGrant> TakeEnded() { return std::exchange(ended_, {}); }
  size_t size() const { return grants_.size(); }
  // The lifetime of a grant: receivers renew grants with heartbeats, and one heartbeat may be lost.
  absl::Duration Ttl() const;

 private:
  friend class DirectoryInvariants;  // tests

  // Records what the end of a grant says about its source.
  static void NoteServing(OfNode& source, GrantEnd end, SteadyTime now);
  void Weigh(Grant& grant);
  void End(const std::string& grant_id, GrantEnd end);
  void TellRevoked(const std::string& node_id, const std::string& grant_id, SteadyTime now);

  const absl::Duration ttl_;
  const Membership& nodes_;
  Secrets* const secrets_;
  std::map<std::string, Grant, std::less<>> grants_;  // their nodes point at these
  absl::flat_hash_map<std::string, OfNode> of_node_;  // by node id
  // Grants with an `into_zone`, by that zone and by artifact id. No entry is empty.
  absl::flat_hash_map<std::string, absl::flat_hash_map<std::string, std::vector<const Grant*>>> into_;
  std::vector<EndedGrant> ended_;
};

}  // namespace tensorcast::global_store
