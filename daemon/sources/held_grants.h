// The grants of one transfer, from their arrival to their end.
//
// Sources are opened in parallel (opening.h). An opening is overtaken if it takes much longer than the first
// opening took, and another source is in use. Each grant ends exactly once, in the background: the global
// store gets the outcome, and the pull is closed at its source. Thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "base/task_loop.h"
#include "core/artifact/manifest.h"
#include "core/replica/availability.h"
#include "core/replica/transfer_report.h"
#include "daemon/global_store_link/global_store_client.h"
#include "daemon/global_store_link/global_store_link.h"
#include "daemon/sources/granted_source.h"
#include "daemon/sources/opening.h"
#include "daemon/sources/overtaken_peers.h"
#include "daemon/sources/peer_client.h"
#include "daemon/sources/running_grants.h"

namespace tensorcast::daemon {

// The bytes of a transfer that came under one grant so far.
struct GrantShare {
  std::string transfer_id;
  uint64_t bytes = 0;
  friend bool operator==(const GrantShare&, const GrantShare&) = default;
};
// Finds the share by the grant's id; nullopt: no transfer uses the grant. Called on the transfer's thread.
using FindGrantShare = std::function<std::optional<GrantShare>(std::string_view grant_id)>;
// Finds the share among these transfers.
std::optional<GrantShare> FindShare(const std::vector<TransferReport>& transfers, std::string_view grant_id);

struct HeldGrant {
  v1::TransportGrant grant;
  // At most one of the next two is set. If neither is set, the grant is offered and not used yet.
  std::shared_ptr<Opening> opening;
  bool in_use = false;
  bool pull_opened = false;                          // at the source
  std::shared_ptr<const PulledBytes> pulled;         // as GrantOpening::pulled
  bool on_host = false;                              // the source is on this host
  std::shared_ptr<const Availability> availability;  // of a source in use; null: the source has all chunks

  bool offered() const { return opening == nullptr && !in_use; }
  // The replica's name, with the node's id. A replica id alone is not unique: a malicious node may choose the
  // id of another node's replica.
  std::string replica_name() const {
    return absl::StrCat(grant.source().node_id(), "/", grant.replica().replica_id());
  }
  OvertakenPeers::Peer peer() const { return {grant.source().node_id(), grant.source().incarnation()}; }
};

class HeldGrants {
 public:
  struct Parts {
    GlobalStoreClient* global_store = nullptr;  // all must outlive the grants, and their work in
    GlobalStoreLink* link = nullptr;            // the background
    PeerClient* peers = nullptr;
    const GrantedSourceOpener* opener = nullptr;
    RunningGrants* running = nullptr;
    Conservation* conservation = nullptr;
    TaskLoop* background = nullptr;  // reports how grants ended
    // If null or empty, only the bytes of pulls are reported. Set it before the first transfer.
    const FindGrantShare* find_share = nullptr;
    std::shared_ptr<OvertakenPeers> overtaken = std::make_shared<OvertakenPeers>();
  };
  // `lane`: the forced lane; empty: the fastest that works.
  HeldGrants(Parts parts, std::shared_ptr<const Manifest> manifest, std::string lane);
  // Ends the remaining grants as cancelled.
  ~HeldGrants();
  HeldGrants(const HeldGrants&) = delete;
  HeldGrants& operator=(const HeldGrants&) = delete;

  // Sets the trace of the request for which grants are opened and ended from now on.
  void SetTrace(const TraceContext& trace) { trace_ = trace; }

  // Adds an offered grant and returns its id.
  std::string Add(v1::TransportGrant grant);
  const std::map<std::string, HeldGrant>& all() const { return held_; }  // by grant id
  bool Holds(const std::string& replica_name) const;
  // Whether the grant's peer was overtaken recently, in this or another transfer.
  bool Rests(const std::string& grant_id) const;

  // Begins to open the grant's source. REQUIRES: the grant is offered().
  void Open(const RequestContext& context, const std::string& grant_id);
  std::vector<std::string> BeingOpened() const;
  bool IsOpening() const { return !BeingOpened().empty(); }
  bool IsAnyInUse() const;
  // The sum of the chunks that the sources in use have, if all of these sources are on this host and still
  // filling; otherwise nullopt.
  std::optional<uint64_t> ChunksOfHostmates() const;
  // Waits until an opening is over, the context ends, or the time `until` has come.
  void AwaitOpening(const RequestContext& context, SteadyTime until);
  // Returns the openings that are over. Grants with an opened source are in use from now on; the caller must
  // end the other grants of these openings.
  std::vector<GrantOpening> TakeOpened();
  // The grants with overtaken openings; the caller must end them.
  std::vector<std::string> Overtaken() const;
  // The status of an overtaken opening.
  absl::Status OvertakenStatus() const;

  // Ends a grant. `status`: DEADLINE_EXCEEDED if the source was overtaken, CANCELLED if the grant ends for a
  // reason of this node. `corrupt`: the source's bytes were wrong. If the transfer succeeds while a source is
  // being opened, the opening continues in the background until the opening ends or is overtaken.
  void End(const std::string& grant_id, absl::Status status, bool corrupt = false);
  // Ends all grants that are offered or being opened.
  void EndUnused(const absl::Status& status);
  // Ends all grants with the transfer's status.
  void EndAll(const absl::Status& status);

 private:
  class Signal;

  absl::Duration OvertakenAfter() const;
  GrantShare ShareOf(const std::string& grant_id, const HeldGrant& held) const;

  const Parts parts_;
  const std::shared_ptr<const Manifest> manifest_;
  const std::string lane_;
  const std::shared_ptr<Signal> signal_;
  TraceContext trace_;
  std::map<std::string, HeldGrant> held_;
  // The first opened source: its peer's name, and the duration of the opening.
  std::optional<std::pair<std::string, absl::Duration>> first_opened_;
};

}  // namespace tensorcast::daemon
