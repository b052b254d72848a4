// Decides what to announce to a client that follows a replica, and when: first the present chunks, then new
// chunks, then the end. Announces only chunks in memory that the client has handles for.
//
// Used only on the server's thread. The writer of the replica only notes that there are new chunks. The
// follower reads them from the replica's availability when the interval has passed and the client has read
// the previous message. So at most one message waits for a client that does not read. Internal to this
// folder.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "base/steady_time.h"
#include "core/handles/codec.h"
#include "core/handles/handles.h"
#include "core/replica/announcer.h"
#include "core/replica/availability.h"

namespace tensorcast {

class Follower {
 public:
  static constexpr absl::Duration kInterval = absl::Milliseconds(10);  // min time between two messages

  // `on_news` is called on any thread when due() may have become earlier; it must not block.
  Follower(const Claim& claim, std::function<void()> on_news);

  // The time at which to send the next message; InfiniteFuture if there is no news, or if the end was sent.
  SteadyTime due() const;
  // The frames to send now; possibly none.
  std::vector<Frame> Take(SteadyTime now);

 private:
  // The reason why there will be no more news; nullopt if there may be more.
  std::optional<absl::Status> End(bool ended) const;

  const std::shared_ptr<const Availability> availability_;  // null: all chunks are present
  const std::function<void()> on_news_;
  std::vector<uint64_t> readable_;  // ReadableChunks of the claim; empty: all
  std::optional<Announcer> announcer_;
  bool begun_ = false;
  bool over_ = false;
  SteadyTime next_ = SteadyTime::InfinitePast();
  std::atomic<bool> noted_ = true;  // the availability changed since the last Take
  Availability::Watch watch_;       // declared last: its observer uses the other members
};

}  // namespace tensorcast
