// The receiver's end of a conversation: sends HELLO, requests the ranges of its fetches, receives them into
// their destinations, and digests them on arrival.
//
//   idle --(Connect)--> connecting --(connected)--> greeting --WELCOME--> open --(error, Close)--> closed
//
// A channel writes into a destination only within a call of this connection, or between OnReceiveStarted and
// OnReceived of a piece. A fetch without such a piece can therefore be completed at any moment, and nothing
// is written after that. A fetch with such a piece waits for it, up to Credit::drain_timeout; then the
// channel is closed by force.
//
// Belongs to the channel's thread, except for methods with another comment.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "core/artifact/digest.h"
#include "core/replica/availability.h"
#include "transport/pull/message_channel.h"
#include "transport/pull/wire.h"
#include "transport/silent_pull_stall.h"
#include "transport/transport.h"

namespace tensorcast::transport::pull {

// One Pull::Fetch, with a checked range and destination. `done` is called once, on a channel's thread.
struct Fetch {
  FetchId id = 0;  // none of the pull's is 0
  uint64_t offset = 0;
  uint64_t bytes = 0;
  std::vector<HostSpan> destination;
  SteadyTime deadline;
  FetchDone done;
  bool announced = false;  // the source has said that it has all of it
};

// The receiver's credit: a request has at most `request_bytes`, and another request is sent while fewer than
// `window_bytes` are outstanding.
struct Credit {
  uint64_t request_bytes = uint64_t{16} << 20;
  uint64_t window_bytes = uint64_t{16} << 20;
  // Max time for pieces that a channel is receiving to end by themselves.
  absl::Duration drain_timeout = absl::Milliseconds(500);
};

class PullConnection : private MessageChannel::Handler {
 public:
  // Called on the channel's thread; implementations are thread-safe.
  class Owner {
   public:
    virtual ~Owner() = default;
    // Keeps the owner and its connections alive.
    virtual std::shared_ptr<void> Hold() = 0;
    // Bytes of a fetch are in their place.
    virtual void OnBytes() = 0;
    // Whether bytes of any fetch of the pull arrived within this time.
    virtual bool MovedWithin(absl::Duration time) = 0;
    // A fetch is over; its `done` is called next.
    virtual void OnFetchOver() = 0;
    // An open connection was closed; its fetches complete next. Not called for a Close by the owner's task.
    virtual void OnLost(const absl::Status& why) = 0;
  };

  // `owner`, `descriptor` and `traceparent` must outlive it. `where`: the source, for people.
  PullConnection(std::shared_ptr<MessageChannel> channel, Owner* owner, const Credit& credit,
                 const Descriptor* descriptor, const std::string* traceparent, std::string where);
  // REQUIRES: closed, or never connected.
  ~PullConnection() override;

  // Thread-safe.
  MessageChannel& channel() { return *channel_; }
  bool open() const { return open_; }
  // Bytes of its fetches that have not arrived. The caller that starts a fetch adds the fetch's bytes at
  // once.
  uint64_t load() const { return load_; }
  void AddLoad(uint64_t bytes) { load_ += bytes; }

  // Calls `connected` exactly once: when the source has welcomed the pull, or when this connection is closed.
  void Connect(std::function<void(absl::Status)> connected);
  // The source's WELCOME. REQUIRES: the connection is open.
  const Welcome& welcome() const { return welcome_; }
  // Asks the source which chunks it has, and keeps the mirror up to date; the mirror ends OK when the source
  // has all. To be called once, within `connected`. REQUIRES: the source's image fills.
  void Follow(std::shared_ptr<Availability> mirror);

  // From the next fetch on, the connection breaks when it waits for bytes and no byte of the whole pull
  // arrives for this time.
  void SetSilenceLimit(absl::Duration limit) { silence_.set_limit(limit); }
  // Starts a fetch. If the connection is closed by now, the fetch fails. REQUIRES: it was open.
  void Start(Fetch fetch);
  // Completes one fetch with `why`, if it is here, and asks the source for no more of it.
  void Abandon(FetchId fetch, const absl::Status& why);
  // Completes every fetch with `why` and ends the channel. Calls `emptied`, if it is not null, when no fetch
  // is left.
  void Close(const absl::Status& why, std::function<void()> emptied = nullptr);

 private:
  enum class State { kIdle, kConnecting, kGreeting, kOpen, kClosed };
  struct Receiving {
    Fetch fetch;
    uint64_t asked = 0;        // bytes of it that were requested
    size_t span = 0;           // the destination of the next request begins in this span, which is trimmed
    uint64_t left = 0;         // bytes that have not arrived
    uint64_t digested_to = 0;  // image bytes before it are in `digest`
    DigestBuilder digest;
    int receives = 0;      // pieces into its destination that the channel is receiving
    absl::Status failure;  // waits for those alone
    TaskQueue::TimerId timer = TaskQueue::kNoTimer;
  };
  struct Outstanding {
    FetchId fetch = 0;  // which may be over: then what comes is dropped
    uint64_t offset = 0;
    HostSpan destination;
    uint64_t due = 0;                      // bytes that no DATA was for yet
    uint64_t left = 0;                     // bytes that have not arrived
    std::map<uint64_t, uint64_t> arrived;  // pieces, where they may come in any order: offset -> end
  };

  absl::Status OnFrame(const Frame& frame) override;
  void OnLost(const absl::Status& why) override { Fail(why, /*lost=*/true); }
  void OnDenied(const absl::Status& why) override;
  void Refill() override;
  void OnConnected() override;
  absl::Status OnPiece(const Data& piece) override;
  HostSpan Place(const Data& rest) override;
  void OnPieceBytes(const Data& arrived, ConstHostSpan held) override;
  void OnReceiveStarted(const Data& piece) override;
  void OnReceived(const Data& piece, const absl::Status& status) override;

  absl::Status On(const Welcome& welcome);
  absl::Status On(const Error& error);
  absl::Status On(const Have& have);
  absl::Status On(const NotHere& not_here);

  // Whether the source owes bytes of it.
  bool IsDue(uint64_t request_id) const;
  // The fetch of a request, if it still wants bytes; else null.
  Receiving* WantedFetch(const Outstanding& request);
  Outstanding NextRequest(FetchId fetch, Receiving& receiving);
  // So many bytes of a request came, or will not.
  void RequestMoved(uint64_t request_id, uint64_t bytes);
  // The source sends no more of it; the fetch that it was made for, 0 when none wants it any more.
  FetchId EndRequest(uint64_t request_id);
  // So many bytes of it are in their place.
  void FetchMoved(FetchId fetch, uint64_t bytes);
  // Completes it with its failure, or when it is whole, unless the channel receives for it.
  void MaybeFinish(FetchId fetch);
  void Silent();
  // `lost`: the channel is of no use any more.
  void Fail(const absl::Status& status, bool lost);
  void Shut(const absl::Status& why, bool lost);

  const std::shared_ptr<MessageChannel> channel_;
  Owner* const owner_;
  const Credit credit_;
  const Descriptor& descriptor_;
  const std::string& traceparent_;
  const std::string where_;
  State state_ = State::kIdle;
  std::atomic<bool> open_ = false;
  std::atomic<uint64_t> load_ = 0;
  absl::Status closed_;  // why, once it is
  std::function<void(absl::Status)> connected_;
  std::vector<std::function<void()>> emptied_;

  SilentPullStall silence_;
  Welcome welcome_;
  std::shared_ptr<Availability> mirror_;  // of what the source has; null: it is not asked

  absl::flat_hash_map<FetchId, Receiving> fetches_;
  std::deque<FetchId> to_ask_;  // fetches that were not asked for to their end, in order
  bool asking_ = false;
  absl::flat_hash_map<uint64_t, Outstanding> requests_;
  uint64_t outstanding_bytes_ = 0;
};

}  // namespace tensorcast::transport::pull
