// The table of grants. The heartbeats of the receiver renew a grant. A grant ends exactly once. If a node did
// not end the grant itself, the answers to its heartbeats report the end to it for one node TTL.
//
// Soft state. Reads membership, which must outlive this object. REQUIRES: the caller ends a node's grants
// before it removes the node, and ends the grants of a removed replica or artifact. Thread-compatible.
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
  // An ended grant that heartbeat answers report to a node.
  struct Revoked {
    SteadyTime until;     // when to stop reporting it
    uint32_t served = 0;  // heartbeats in which the node still served it
  };
  // The grants of one node.
  struct OfNode {
    std::vector<const Grant*> serving;                   // grants with this node as source, oldest first
    absl::flat_hash_map<std::string, uint32_t> uploads;  // slot parts that `serving` uses, by artifact id
    std::vector<const Grant*> receiving;                 // grants with this node as receiver
    absl::btree_map<std::string, Revoked> revoked;       // by grant id
    // Until this time other sources are offered first, because a receiver got nothing from this node in time.
    SteadyTime overtaken_until = SteadyTime::InfinitePast();
    absl::Duration overtaken_rest = absl::ZeroDuration();  // length of that time; zero: the node served since

    // The number of upload slots that pulls of the artifact use.
    uint32_t UploadsOf(std::string_view artifact_id) const;
  };

  // `ttl`: how long a grant lives without a heartbeat of the receiver; longer in a large fleet (liveness.h).
  // `secrets` must outlive the grants.
  Grants(absl::Duration ttl, const Membership& nodes, Secrets* secrets)
      : ttl_(ttl), nodes_(nodes), secrets_(secrets) {}

  // Makes a grant. The grant uses the source's slots from now on, before the pull begins.
  const Grant& Give(const GrantRequest& request, const Node& source, const std::string& replica_id,
                    std::string lane, SteadyTime now);
  // Renews the receiver's grants that its heartbeat names.
  void Renew(std::string_view receiver, const std::vector<std::string>& grant_ids, SteadyTime now);
  // Records the grants under which the node serves pulls, from its heartbeat. Returns violations, for people,
  // each once. A violation is a grant that the node still serves although several answers reported its end.
  std::vector<std::string> NoteServed(const std::string& node_id, const std::vector<std::string>& grant_ids);
  // Recomputes the slot parts of the node's grants. Call this when the node's rate changed.
  void Reweigh(std::string_view node_id);
  // Ends a grant as its receiver reports, and reports the end to the source. REQUIRES: the grant exists.
  void Complete(std::string_view grant_id, GrantEnd end, SteadyTime now);
  // Ends grants, and reports the end to both nodes.
  void EndAll(const std::vector<std::string>& grant_ids, GrantEnd end, SteadyTime now);
  void EndOfArtifact(std::string_view artifact_id, SteadyTime now);
  // Call this before the node is removed.
  void EndOf(std::string_view node_id, SteadyTime now);
  void Tick(SteadyTime now);
  void ExtendLiveness(absl::Duration gap);

  const Grant* Find(std::string_view grant_id) const;
  const OfNode& Of(std::string_view node_id) const;
  // The grants by which nodes of the zone pull the artifact from other zones, oldest first.
  const std::vector<const Grant*>& Into(std::string_view zone, std::string_view artifact_id) const;
  // The ids of the ended grants to report to the node.
  std::vector<std::string> RevokedOf(std::string_view node_id) const;
  // The grants that ended since the last call, each once.
  std::vector<EndedGrant> TakeEnded() { return std::exchange(ended_, {}); }
  size_t size() const { return grants_.size(); }
  // The lifetime of a grant without a heartbeat of its receiver; more than one heartbeat interval.
  absl::Duration Ttl() const;

 private:
  friend class DirectoryInvariants;  // tests

  // Updates the source's `overtaken` fields after the end of a grant.
  static void NoteServing(OfNode& source, GrantEnd end, SteadyTime now);
  void Weigh(Grant& grant);
  void End(const std::string& grant_id, GrantEnd end);
  void TellRevoked(const std::string& node_id, const std::string& grant_id, SteadyTime now);

  const absl::Duration ttl_;
  const Membership& nodes_;
  Secrets* const secrets_;
  std::map<std::string, Grant, std::less<>> grants_;  // `of_node_` and `into_` point at these
  absl::flat_hash_map<std::string, OfNode> of_node_;  // by node id
  // Grants with an `into_zone`, by that zone and by artifact id. No entry is empty.
  absl::flat_hash_map<std::string, absl::flat_hash_map<std::string, std::vector<const Grant*>>> into_;
  std::vector<EndedGrant> ended_;
};

}  // namespace tensorcast::global_store
