// The receiver's end of one connection. It requests the byte ranges of its fetches, and receives the bytes
// into the fetches' destinations.
//
//   idle --(Connect)--> connecting --(connected)--> greeting --WELCOME--> open --(error, Close)--> closed
//
// After a fetch has completed, the channel no longer writes to the fetch's destination. A failed fetch
// therefore completes only after OnReceived of its started pieces. If these calls take longer than
// Credit::drain_timeout, the channel is closed by force.
//
// Belongs to the channel's thread, except for members that are marked thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "core/replica/availability.h"
#include "transport/pull/fetch_progress.h"
#include "transport/pull/message_channel.h"
#include "transport/pull/outstanding_requests.h"
#include "transport/pull/wire.h"
#include "transport/silent_pull_stall.h"
#include "transport/transport.h"

namespace tensorcast::transport::pull {

// How many bytes a receiver requests at a time.
struct Credit {
  uint64_t request_bytes = uint64_t{16} << 20;  // max bytes of one request
  uint64_t window_bytes = uint64_t{16} << 20;   // sends requests while fewer bytes than this are outstanding
  // Max time from the failure of a fetch to the last OnReceived of its pieces. After that time the channel is
  // closed by force.
  absl::Duration drain_timeout = absl::Milliseconds(500);
};

class PullConnection : private MessageChannel::Handler {
 public:
  // The pull of this connection. Called on the threads of several channels: implementations must be
  // thread-safe.
  class Owner {
   public:
    virtual ~Owner() = default;
    // The result keeps the owner and its connections alive.
    virtual std::shared_ptr<void> Hold() = 0;
    // Bytes of a fetch are in their destination.
    virtual void OnBytes() = 0;
    // Whether bytes of any fetch of the pull have arrived within the last `time`.
    virtual bool MovedWithin(absl::Duration time) = 0;
    // A fetch has completed; its `done` is called next.
    virtual void OnFetchOver() = 0;
    // An open connection has failed; its fetches complete next. Not called after Close.
    virtual void OnLost(const absl::Status& why) = 0;
  };

  // `owner`, `descriptor` and `traceparent` must outlive the connection. `where`: the source, for messages.
  PullConnection(std::shared_ptr<MessageChannel> channel, Owner* owner, const Credit& credit,
                 const Descriptor* descriptor, const std::string* traceparent, std::string where);
  // REQUIRES: closed, or Connect was never called.
  ~PullConnection() override;

  // The next four functions are thread-safe.
  MessageChannel& channel() { return *channel_; }
  bool open() const { return open_; }
  // The number of bytes, of all fetches of this connection, that have not arrived. Before Start, call AddLoad
  // with the number of bytes of the fetch.
  uint64_t load() const { return load_; }
  void AddLoad(uint64_t bytes) { load_ += bytes; }

  // Calls `connected` exactly once: when WELCOME has arrived, or when this connection is closed.
  void Connect(std::function<void(absl::Status)> connected);
  // The source's WELCOME. REQUIRES: the connection is open.
  const Welcome& welcome() const { return welcome_; }
  // Asks the source for announcements, and adds the announced chunks to `mirror`. `mirror` ends OK when the
  // source has all chunks. Call once, in Connect's callback. REQUIRES: the source's image is filling.
  void Follow(std::shared_ptr<Availability> mirror);

  // See Pull::SetSilenceLimit. Bytes on any connection of the pull end the silence.
  void SetSilenceLimit(absl::Duration limit) { silence_.set_limit(limit); }
  // Starts a fetch; if the connection is already closed, the fetch fails. REQUIRES: Connect's callback ran.
  void Start(Fetch fetch);
  // If this connection has the fetch, completes the fetch with `why` and requests no more of its bytes.
  void Abandon(FetchId fetch, const absl::Status& why);
  // Completes every fetch with `why` and ends the channel. Calls `emptied`, which may be null, when the last
  // fetch has completed.
  void Close(const absl::Status& why, std::function<void()> emptied = nullptr);

 private:
  enum class State { kIdle, kConnecting, kGreeting, kOpen, kClosed };

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

  // The fetch of a request; null if the fetch has ended.
  FetchProgress* WantedFetch(const RequestedPart& part);
  // The source sends no more bytes of the request. Returns the request's fetch; 0 if the fetch has ended.
  FetchId EndRequest(uint64_t request_id);
  // `bytes` bytes of the fetch are in their destination.
  void FetchMoved(FetchId fetch, uint64_t bytes);
  // Completes the fetch if FetchProgress::over().
  void MaybeFinish(FetchId fetch);
  void Silent();
  // `lost`: the channel can no longer send.
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
  absl::Status closed_;  // the reason, once closed
  std::function<void(absl::Status)> connected_;
  std::vector<std::function<void()>> emptied_;

  SilentPullStall silence_;
  Welcome welcome_;
  std::shared_ptr<Availability> mirror_;  // the announced chunks; null before Follow

  // fetches_ has the fetches that have not completed. A request in requests_ may outlive its fetch.
  absl::flat_hash_map<FetchId, FetchProgress> fetches_;
  std::deque<FetchId> to_ask_;  // fetches with bytes that are not requested yet, in order
  bool asking_ = false;         // Refill is running
  OutstandingRequests requests_;
};

}  // namespace tensorcast::transport::pull
