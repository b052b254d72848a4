// The grants of one transfer: each from when it was given, by the opening of its source, to its end.
//
// Grants are opened side by side (opening.h). One that has not answered long after another did is overtaken.
// Each grant ends exactly once, in the background: the global store is told how, and the pull that it opened
// is closed at its source.
//
// One thread at a time.
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

// What a transfer had of one grant so far.
struct GrantShare {
  std::string transfer_id;
  uint64_t bytes = 0;
  friend bool operator==(const GrantShare&, const GrantShare&) = default;
};
// Finds it by the grant's id; nullopt: no transfer uses it. Called on the thread of the transfer.
using FindGrantShare = std::function<std::optional<GrantShare>(std::string_view grant_id)>;
// Among these.
std::optional<GrantShare> FindShare(const std::vector<TransferReport>& transfers, std::string_view grant_id);

struct HeldGrant {
  v1::TransportGrant grant;
  // At most one of these two; neither: it is offered, and nothing was done with it yet.
  std::shared_ptr<Opening> opening;
  bool in_use = false;
  bool pull_opened = false;                          // at the source
  std::shared_ptr<const PulledBytes> pulled;         // as in GrantOpening
  bool on_host = false;                              // of this one
  std::shared_ptr<const Availability> availability;  // of one in use; null: it has everything

  bool offered() const { return opening == nullptr && !in_use; }
  // With its node's id: nodes choose the ids of their replicas, and one that lies may take another's.
  std::string replica_name() const {
    return absl::StrCat(grant.source().node_id(), "/", grant.replica().replica_id());
  }
  OvertakenPeers::Peer peer() const { return {grant.source().node_id(), grant.source().incarnation()}; }
};

class HeldGrants {
 public:
  struct Parts {
    GlobalStoreClient* global_store = nullptr;  // all must outlive the grants, and what they leave in the
    GlobalStoreLink* link = nullptr;            // background
    PeerClient* peers = nullptr;
    const GrantedSourceOpener* opener = nullptr;
    RunningGrants* running = nullptr;
    Conservation* conservation = nullptr;
    TaskLoop* background = nullptr;  // tells how grants ended
    // May be null, or empty: then only the bytes of pulls are told. Set before the first transfer.
    const FindGrantShare* find_share = nullptr;
    std::shared_ptr<OvertakenPeers> overtaken = std::make_shared<OvertakenPeers>();
  };
  // `lane`: forced; empty: the fastest that works.
  HeldGrants(Parts parts, std::shared_ptr<const Manifest> manifest, std::string lane);
  // Ends those that are left as cancelled.
  ~HeldGrants();
  HeldGrants(const HeldGrants&) = delete;
  HeldGrants& operator=(const HeldGrants&) = delete;

  // Sets the trace of the request for which grants are opened and ended from now on.
  void SetTrace(const TraceContext& trace) { trace_ = trace; }

  // Its id.
  std::string Add(v1::TransportGrant grant);
  const std::map<std::string, HeldGrant>& all() const { return held_; }  // by grant id
  bool Holds(const std::string& replica_name) const;
  // Its peer was overtaken lately, here or by another transfer.
  bool Rests(const std::string& grant_id) const;

  // REQUIRES: it is offered.
  void Open(const RequestContext& context, const std::string& grant_id);
  std::vector<std::string> BeingOpened() const;
  bool IsOpening() const { return !BeingOpened().empty(); }
  bool IsAnyInUse() const;
  // Where all that are in use are of this host and fill yet, and any is: how many chunks they have together.
  std::optional<uint64_t> ChunksOfHostmates() const;
  // Waits until an opening is over, or the context ends, or then.
  void AwaitOpening(const RequestContext& context, SteadyTime until);
  // The openings that are over. Those with a source are in use now; the others are for the caller to end.
  std::vector<GrantOpening> TakeOpened();
  // The openings that are overtaken by now, for the caller to end.
  std::vector<std::string> Overtaken() const;
  // What an opening that is overtaken ended with.
  absl::Status OvertakenStatus() const;

  // DEADLINE_EXCEEDED: it was overtaken, since it gave nothing while it was asked. What ends for this node's
  // own reasons ends as CANCELLED. `corrupt`: its bytes were wrong. An opening that is under way when its
  // transfer succeeds gets what is left of its time, in the background, so that it is known whether it was
  // overtaken.
  void End(const std::string& grant_id, absl::Status status, bool corrupt = false);
  // Those that are offered or being opened.
  void EndUnused(const absl::Status& status);
  // As its transfer ended.
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
  // The first that could be opened: its peer's name, and how long that took.
  std::optional<std::pair<std::string, absl::Duration>> first_opened_;
};

}  // namespace tensorcast::daemon
