// Decides which chunks of a replica the server announces to a client, and when. Announces only chunks in
// memory for which the client has handles. The server calls Take only after the client has read the previous
// message, so at most one message waits for a slow client. Internal to this folder; used only on the server's
// thread.
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

  // The time at which to call Take; InfiniteFuture if the availability has not changed, or after HAVE_END.
  SteadyTime due() const;
  // The frames to send now; possibly none.
  std::vector<Frame> Take(SteadyTime now);

 private:
  // The status for HAVE_END; nullopt if more chunks may come.
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
