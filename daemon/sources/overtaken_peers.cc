#include "daemon/sources/overtaken_peers.h"

#include <algorithm>

namespace tensorcast::daemon {

void OvertakenPeers::NoteOvertaken(const Peer& peer, SteadyTime now) {
  absl::MutexLock lock(&mutex_);
  // What has not been overtaken for long begins anew, so that this does not grow with every node there was.
  std::erase_if(rests_, [&](const auto& rest) { return rest.second.until + kLongestRest < now; });
  Rest& rest = rests_[peer];
  // Several transfers at one moment learn of one fault.
  if (rest.length > absl::ZeroDuration() && now < rest.until) return;
  rest.length = rest.length == absl::ZeroDuration() ? kFirstRest : std::min(rest.length * 2, kLongestRest);
  rest.until = now + rest.length;
}

void OvertakenPeers::NoteServed(const Peer& peer) {
  absl::MutexLock lock(&mutex_);
  rests_.erase(peer);
}

bool OvertakenPeers::Rests(const Peer& peer, SteadyTime now) const {
  absl::MutexLock lock(&mutex_);
  const auto rest = rests_.find(peer);
  return rest != rests_.end() && now < rest->second.until;
}

}  // namespace tensorcast::daemon
