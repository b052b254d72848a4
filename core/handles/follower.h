// What a client that follows a replica is told, and when: the chunks that are there, then what comes, then
// the end. Only chunks in memory that the client was given are announced.
//
// Belongs to the server's thread. The writer of the replica only notes that there is news; it is taken from
// the replica's availability when its time has come and the client has read what it was told before. So what
// waits for a client that does not read is one message, however long it pauses.
// Internal to this folder.
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
  static constexpr absl::Duration kInterval = absl::Milliseconds(10);  // between two messages at least

  // `on_news` is called on any thread when due() may have become sooner; it must not block.
  Follower(const Claim& claim, std::function<void()> on_news);

  // When there is something to be told; InfiniteFuture: not yet, or the end was told.
  SteadyTime due() const;
  // Those to be sent now; perhaps none.
  std::vector<Frame> Take(SteadyTime now);

 private:
  // Why no more will be told; nullopt: there may be more.
  std::optional<absl::Status> End(bool ended) const;

  const std::shared_ptr<const Availability> availability_;  // null: everything is there
  const std::function<void()> on_news_;
  std::vector<uint64_t> readable_;  // chunks in the memory that was given, a bit each; empty: all
  std::optional<Announcer> announcer_;
  bool begun_ = false;
  bool over_ = false;
  SteadyTime next_ = SteadyTime::InfinitePast();
  std::atomic<bool> noted_ = true;  // something changed since it was looked at
  Availability::Watch watch_;       // last: its observer uses the rest
};

}  // namespace tensorcast
