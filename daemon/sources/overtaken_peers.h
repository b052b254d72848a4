// The peers that were overtaken: opening a source of the peer took much longer than opening another source
// (held_grants.h). Such a peer rests: transfers use it only if no better source is offered. The resting time
// doubles each time the peer is overtaken again. A rest also ends when the peer serves a transfer to its end.
// A restarted daemon is a new peer: a peer is a node's id with its incarnation.
//
// Thread-safe. Callers pass the current time.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/steady_time.h"

namespace tensorcast::daemon {

class OvertakenPeers {
 public:
  using Peer = std::pair<std::string, uint64_t>;  // node id, incarnation

  static constexpr absl::Duration kFirstRest = absl::Seconds(5);
  static constexpr absl::Duration kLongestRest = absl::Minutes(5);

  void NoteOvertaken(const Peer& peer, SteadyTime now);
  void NoteServed(const Peer& peer);
  bool Rests(const Peer& peer, SteadyTime now) const;

 private:
  struct Rest {
    absl::Duration length;
    SteadyTime until;
  };

  mutable absl::Mutex mutex_;
  std::map<Peer, Rest> rests_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::daemon
