// The grants of one transfer that are offered and not opened yet, the best first. Their sources are opened in
// this order:
//
// - first, in parallel, the sources of which nothing bad is known (a whole replica on this host: alone);
// - if there are none, in parallel, the sources of peers that were overtaken recently (else those end);
// - if there are none of these either, alone and after a pause, a source that delivered nothing before.
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
  // Whether every grant is of a replica that was tried before. Both WereAllTried and AllRest are true if no
  // grant is offered.
  bool WereAllTried() const;
  // Whether every grant's peer was overtaken recently.
  bool AllRest() const;
  // Ends the grants with peers that were overtaken recently: another source is available.
  void EndResting();

  // Begins to open the grants of which nothing bad is known, in parallel, and ends those with peers that were
  // overtaken recently. If there are none, opens the latter, in parallel. If there are none of these, and
  // no grant is being opened, opens the best grant of a source that delivered nothing before. This follows a
  // pause, which is reported to `observer`. If the context ends during the pause, ends all grants of the
  // transfer. REQUIRES: no source is in use.
  absl::Status OpenBest(const RequestContext& context, const WaitObserver& observer);
  void OpenAll(const RequestContext& context);

  // If no source that is being opened has answered by this time, the transfer looks for other sources.
  SteadyTime look_elsewhere_at() const { return look_elsewhere_at_; }
  // Call this when the transfer looked for other sources: doubles the time until it looks again.
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
