// The grants of one transfer that are offered and not opened yet, the best first, and the order in which
// their sources are opened: those of which nothing bad is known side by side, before peers that were
// overtaken recently; a source that delivered nothing before alone, after a pause.
//
// The only error is that of a context that ends during a pause. Thread-compatible.
#pragma once

#include <deque>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "core/source/chunk_source.h"
#include "daemon/sources/grant_requests.h"
#include "daemon/sources/held_grants.h"
#include "proto/global_store.pb.h"

namespace tensorcast::daemon {

class OfferedGrants {
 public:
  // Both must outlive this object.
  OfferedGrants(HeldGrants* held, GrantRequests* requests) : held_(*held), requests_(*requests) {}

  // The grant is held from now on, too.
  void Add(v1::TransportGrant grant);
  bool empty() const { return ids_.empty(); }
  // The caller ends the grants.
  void Clear() { ids_.clear(); }
  // Whether every grant is of a replica that was tried before. True if none is offered; also AllRest.
  bool WereAllTried() const;
  // Whether every grant's peer was overtaken recently.
  bool AllRest() const;
  // Ends the grants with peers that were overtaken recently: another source is available.
  void EndResting();

  // Begins to open, side by side, the grants of which nothing bad is known; if there are none, those with
  // peers that were overtaken recently. If there are none of these either, and none is being opened, opens
  // the best grant of a source that delivered nothing before, after a pause of which it tells `observer`. If
  // the context ends during the pause, ends all grants of the transfer. REQUIRES: no source is in use.
  absl::Status OpenBest(const RequestContext& context, const WaitObserver& observer);
  void OpenAll(const RequestContext& context);

  // If no source that is being opened has answered by then, others are looked for.
  SteadyTime look_elsewhere_at() const { return look_elsewhere_at_; }
  // Others were looked for: the next time comes after twice as long.
  void NoteLookedElsewhere();

 private:
  void Open(const RequestContext& context, const std::string& grant_id);
  absl::Status PauseBefore(const RequestContext& context, const std::string& grant_id,
                           const WaitObserver& observer);
  bool IsWholeOnThisHost(const std::string& grant_id) const;
  std::string ReplicaOf(const std::string& grant_id) const;

  HeldGrants& held_;
  GrantRequests& requests_;
  std::deque<std::string> ids_;  // the best first
  SteadyTime look_elsewhere_at_;
  absl::Duration look_elsewhere_after_;
};

}  // namespace tensorcast::daemon
