// Transfers: decides which replicas a receiver may pull, and what the receiver waits for while no source has
// bytes. The scheduler chooses the sources from a sample of bounded size.
//
// Owns the grants and the waits, which are soft state. Writes the pace of filling replicas, the measured
// rates of nodes, accusations and the rollout log. All objects that the constructor gets must outlive this
// object. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "global_store/catalog/catalog.h"
#include "global_store/inventory/accusations.h"
#include "global_store/inventory/inventory.h"
#include "global_store/membership/membership.h"
#include "global_store/rollouts/rollout_log.h"
#include "global_store/scheduler/scheduler.h"
#include "global_store/transfers/grant.h"
#include "global_store/transfers/grants.h"
#include "global_store/transfers/waits.h"

namespace tensorcast::global_store {

struct TransferOptions {
  absl::Duration grant_ttl = absl::Seconds(30);
  // A node that serves this many grants of an artifact is offered only to receivers that would otherwise have
  // no source.
  uint32_t soft_grants_per_source = 7;
  // Lanes over which filling replicas serve; empty: filling replicas are not sources.
  std::vector<std::string> filling_lanes = {};
  // Borrowed: the rules must outlive the Transfers object.
  std::span<const SourceRule> source_rules = SourceRules();
};

class Transfers {
 public:
  // `origin_finding_age`: see DirectoryOptions.
  Transfers(const TransferOptions& options, absl::Duration origin_finding_age, Secrets* secrets,
            Membership* nodes, const Catalog& catalog, Inventory* inventory, Accusations* accusations,
            RolloutLog* rollouts)
      : options_(options),
        origin_finding_age_(origin_finding_age),
        nodes_(*nodes),
        catalog_(catalog),
        inventory_(*inventory),
        accusations_(*accusations),
        rollouts_(*rollouts),
        grants_(options.grant_ttl, *nodes, secrets),
        waits_(*nodes, *inventory, grants_) {}

  absl::StatusOr<GrantOffer> RequestGrant(const GrantRequest& request, SteadyTime now);
  // Makes the offer of this grant again while the grant lives; nullopt afterwards.
  std::optional<GrantOffer> RepeatOffer(std::string_view grant_id, SteadyTime now) const;
  // Ends a grant as its receiver reports, and reports the end to the source. `receipt`: the bytes that came
  // under the grant. OK also if the grant is unknown or has ended. PERMISSION_DENIED: the receiver of the
  // grant is another node. If the artifact is a difference, and the receiver has no other grant for it, a
  // success makes the receiver's replica ready.
  absl::Status CompleteGrant(const NodeIdentity& receiver, std::string_view grant_id, GrantEnd end,
                             bool source_corrupt, SteadyTime now, const GrantReceipt& receipt = {});
  // Records the outcome of GrantOffer::origin_to_read. Receivers wait for this call, at most an hour. After a
  // failure, the store tries the origin again some seconds later.
  void NoteReading(const OriginToCheck& origin, const absl::Status& read, SteadyTime now);

  // Call this after a node reported its replicas and the inventory changed.
  void NoteReported(const std::string& node_id, const InventoryChange& change, SteadyTime now);
  // Call this before the node is removed.
  void EndOfNode(std::string_view node_id, SteadyTime now) { grants_.EndOf(node_id, now); }
  // Call this after the artifact was deleted.
  void EndOfArtifact(const std::string& artifact_id, SteadyTime now);
  void Tick(SteadyTime now);

  Grants& grants() { return grants_; }
  const Grants& grants() const { return grants_; }

 private:
  friend class DirectoryInvariants;  // tests

  // One request for sources.
  struct Asking {
    const GrantRequest& request;
    const Node& receiver;
    const Catalog::Artifact& artifact;
    SourceQuery query;
    SteadyTime now;
  };
  // Possible sources for a request: a sample of bounded size.
  struct Candidates {
    std::vector<SourceCandidate> candidates;
    std::vector<SourceRef> sources;  // with the same indices
    size_t elsewhere = 0;            // replicas on other nodes, in any state
  };
  // A node of the receiver's host or zone that was just given sources outside that host or zone.
  struct Mate {
    std::string name;
    bool of_host = true;  // false: of the receiver's zone
    absl::Duration retry_after;
  };

  // candidates.cc
  SourceQuery QueryOf(const GrantRequest& request, const Node& receiver,
                      const ArtifactRecord& artifact) const;
  Candidates FindCandidates(const Asking& asking) const;
  // Whether the node was recently given sources on other hosts and now pulls for its host.
  bool HasTurn(const Node& node, const Asking& asking) const;
  // The node that the receiver waits for: a hostmate, or a node of its zone, that pulls from outside now.
  // nullopt: no node pulls for this receiver, or the receiver has waited long enough.
  std::optional<Mate> FindPullingMate(const Asking& asking);
  // A grant that was issued after `issued_after` and brings the artifact into the receiver's zone. Its
  // receiver can serve this receiver. Null: there is none.
  const Grant* FindZonePuller(const Asking& asking, SteadyTime issued_after) const;
  // Whether `names` has a replica of the artifact on the node.
  bool HasReplicaNamed(const std::vector<std::string>& names, const Node& node,
                       const GrantRequest& request) const;
  // Whether a filling replica on the node can be a source for the receiver.
  bool CanServeFilling(const Node& node, const Asking& asking) const;
  ZoneRole RoleInZone(const Asking& asking, const Candidates& candidates) const;

  // Lets the receiver read a share of a shared origin in parallel with its grants, if no node has the whole
  // image, or if the receiver's sources deliver nothing.
  void OfferShared(const Asking& asking, GrantOffer& offer);

  // transfers.cc
  HeldReplica* FindDestination(const GrantRequest& request) {
    return inventory_.FindFilling(request.artifact_id, request.receiver.node_id, request.destination);
  }
  absl::Duration LookAgain(const Asking& asking);
  OfferedGrant Offer(const Grant& grant, SteadyTime now) const;
  std::vector<Origin> LiveOrigins(const Catalog::Artifact& artifact) const;
  GrantOffer RefuseDraining(const Asking& asking);
  // For a receiver without a source: adds origins and waits to the offer.
  void OfferOther(const Asking& asking, const Candidates& candidates, GrantOffer& offer);

  // If a node may become a source for this receiver, names the node in the offer and records that the
  // receiver waits.
  void OfferToWait(const Asking& asking, size_t elsewhere, GrantOffer& offer);
  void AddFilling(const Asking& asking, Waits::Waiting& waiting, GrantOffer& offer) const;
  std::vector<std::string> NodesThatWillReport(const Asking& asking) const;
  std::vector<std::string> NodesAwayWith(const Asking& asking) const;
  // The nodes that could serve this receiver if they were reachable.
  std::vector<std::string> UnreachableNodesWith(const Asking& asking) const;
  // If the receiver has no origin itself, asks in the offer to read an origin on another node. Returns the
  // nodes to wait for; empty: none.
  std::vector<std::string> OfferOrigins(const Asking& asking, GrantOffer& offer);

  const TransferOptions options_;
  const absl::Duration origin_finding_age_;
  Membership& nodes_;
  const Catalog& catalog_;
  Inventory& inventory_;
  Accusations& accusations_;
  RolloutLog& rollouts_;
  Grants grants_;
  Waits waits_;
};

}  // namespace tensorcast::global_store
