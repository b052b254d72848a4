// The peers that this node's transfers overtook: they were asked, gave nothing, and another source gave it
// sooner. Such a peer rests: transfers do not open it while another source is offered. The rest ends by
// time, and doubles with each time that the peer is overtaken again; a peer that serves a transfer to its
// end is forgotten. Restarted daemons begin anew, since a peer is a node's id and incarnation.
//
// It only orders sources. A peer that rests is opened where nothing better is offered.
//
// Thread-safe. Callers pass the time.
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
