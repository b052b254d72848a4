// The table of grants: each is given once, renewed by its receiver's heartbeats, and ends exactly once. Both
// ends are told of an end that they did not bring about, with their heartbeats, for one node time to live.
//
// Soft state. Reads membership, which must outlive it; a grant ends before one of its nodes, its replica or
// its artifact goes. Thread-compatible.
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
  // A grant that ended, as a node is told.
  struct Revoked {
    SteadyTime until;     // when to stop repeating it
    uint32_t served = 0;  // heartbeats by which the node served it all the same
  };
  // The grants of one node.
  struct OfNode {
    std::vector<const Grant*> serving;                   // with this node as the source, the oldest first
    absl::flat_hash_map<std::string, uint32_t> uploads;  // parts of slots that those take, by artifact id
    std::vector<const Grant*> receiving;                 // and as the receiver
    absl::btree_map<std::string, Revoked> revoked;       // by grant id
    // A receiver of a grant had nothing of it in time: until then others are asked first.
    SteadyTime overtaken_until = SteadyTime::InfinitePast();
    absl::Duration overtaken_rest = absl::ZeroDuration();  // the last one; zero: it has served since

    // The upload slots that are taken.
    uint32_t UploadsOf(std::string_view artifact_id) const;
  };

  // `ttl`: without a heartbeat of the receiver, in a small fleet. `secrets` must outlive the grants.
  Grants(absl::Duration ttl, const Membership& nodes, Secrets* secrets)
      : ttl_(ttl), nodes_(nodes), secrets_(secrets) {}

  // Counted from here, not from the pull, so that many that ask at one moment are spread over the sources.
  const Grant& Give(const GrantRequest& request, const Node& source, const std::string& replica_id,
                    std::string lane, SteadyTime now);
  // Of the receiver, as its heartbeat names them.
  void Renew(std::string_view receiver, const std::vector<std::string>& grant_ids, SteadyTime now);
  // The grants under which the node serves pulls, as its heartbeat names them. Returns what must not be, for
  // people, each once: a grant that the node still serves although it was told of its end several times.
  std::vector<std::string> NoteServed(const std::string& node_id, const std::vector<std::string>& grant_ids);
  // The node's rate changed, and with it the parts of slots that its grants take.
  void Reweigh(std::string_view node_id);
  // As its receiver says. The source is told although the receiver closes the pull itself: that call may be
  // lost. REQUIRES: there is such a grant.
  void Complete(std::string_view grant_id, GrantEnd end, SteadyTime now);
  // Ends them without their receiver's word, and tells both ends.
  void EndAll(const std::vector<std::string>& grant_ids, GrantEnd end, SteadyTime now);
  void EndOfArtifact(std::string_view artifact_id, SteadyTime now);
  // Before the node goes.
  void EndOf(std::string_view node_id, SteadyTime now);
  void Tick(SteadyTime now);
  void ExtendLiveness(absl::Duration gap);

  const Grant* Find(std::string_view grant_id) const;
  const OfNode& Of(std::string_view node_id) const;
  // The grants by which nodes of the zone pull the artifact from other zones, the oldest first.
  const std::vector<const Grant*>& Into(std::string_view zone, std::string_view artifact_id) const;
  // Ids of grants that ended, which the node is told of.
  std::vector<std::string> RevokedOf(std::string_view node_id) const;
  // Grants that ended since the last call, each once.
  std::vector<EndedGrant> TakeEnded() { return std::exchange(ended_, {}); }
  size_t size() const { return grants_.size(); }
  // Receivers renew grants with their heartbeats, of which one may be lost.
  absl::Duration Ttl() const;

 private:
  friend class DirectoryInvariants;  // tests

  // What the end of a grant says of its source.
  static void NoteServing(OfNode& source, GrantEnd end, SteadyTime now);
  void Weigh(Grant& grant);
  void End(const std::string& grant_id, GrantEnd end);
  void TellRevoked(const std::string& node_id, const std::string& grant_id, SteadyTime now);

  const absl::Duration ttl_;
  const Membership& nodes_;
  Secrets* const secrets_;
  std::map<std::string, Grant, std::less<>> grants_;  // pointed at by their nodes
  absl::flat_hash_map<std::string, OfNode> of_node_;  // by node id
  // Grants with an `into_zone`, by that zone and by artifact id. No entry is empty.
  absl::flat_hash_map<std::string, absl::flat_hash_map<std::string, std::vector<const Grant*>>> into_;
  std::vector<EndedGrant> ended_;
};

}  // namespace tensorcast::global_store
