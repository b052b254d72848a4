// The grants of one transfer that are offered and not opened yet, the best first. OpenBest takes the first of
// these steps that has sources:
//
// 1. Opens the sources without a known fault, in parallel. A whole replica on this host is opened alone.
// 2. Opens the sources of peers that were overtaken recently, in parallel.
// 3. After a pause, opens one source that delivered nothing before.
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

  // Also adds the grant to `held`.
  void Add(v1::TransportGrant grant);
  bool empty() const { return ids_.empty(); }
  // Removes all grants from this list. The caller must end the grants.
  void Clear() { ids_.clear(); }
  // Whether every grant's replica was tried before. True if no grant is offered.
  bool WereAllTried() const;
  // Whether every grant's peer was overtaken recently. True if no grant is offered.
  bool AllRest() const;
  // Call this when another source is available. Ends the grants with peers that were overtaken recently.
  void EndResting();

  // Begins the first of the steps above that has sources. Step 1 also ends the grants of step 2. Step 3
  // begins only if no grant is being opened, and reports its pause to `observer`. If the context ends during
  // the pause, ends all grants of the transfer. REQUIRES: no source is in use.
  absl::Status OpenBest(const RequestContext& context, const WaitObserver& observer);
  void OpenAll(const RequestContext& context);

  // If no source that is being opened has answered by this time, the transfer looks for other sources.
  SteadyTime look_elsewhere_at() const { return look_elsewhere_at_; }
  // Doubles the time until the transfer looks for other sources again.
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
