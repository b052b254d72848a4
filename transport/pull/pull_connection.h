// One connection of a pull, at the receiver's end: it connects, introduces itself, asks for the ranges of the
// fetches that it is given, and receives them straight into their destinations, digesting on the way.
//
//   connecting --(socket connected)--> greeting --WELCOME--> open --(error, Close)--> closed
//        ^---(next address)---+
//
// The kernel writes into a destination only within a read that this connection makes, on its loop's thread:
// so a fetch can be completed at any moment between two reads, and after it, or after Close, nothing is
// written. Belongs to the loop's thread but for what says otherwise.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/address.h"
#include "base/steady_time.h"
#include "core/artifact/digest.h"
#include "core/replica/availability.h"
#include "transport/rate_limit.h"
#include "transport/silent_pull_stall.h"
#include "transport/tcp/byte_stream.h"
#include "transport/tcp/frame_io.h"
#include "transport/tcp/io_loop.h"
#include "transport/tcp/peer_watch.h"
#include "transport/tcp/socket.h"
#include "transport/pull/wire.h"
#include "transport/transport.h"

namespace tensorcast::transport::tcp {

// One Pull::Fetch, with a checked range and destination. `done` is called once, on a loop's thread.
struct Fetch {
  FetchId id = 0;  // none of the pull's is 0
  uint64_t offset = 0;
  uint64_t bytes = 0;
  std::vector<HostSpan> destination;
  SteadyTime deadline;
  FetchDone done;
  bool announced = false;  // the source has said that it has all of it
};

class PullStream : private IoLoop::Handler {
 public:
  // Told on the loop's thread; implementations are thread-safe.
  class Owner {
   public:
    virtual ~Owner() = default;
    // Bytes of a fetch are in their place.
    virtual void OnBytes() = 0;
    // Whether bytes of any fetch of the pull arrived within this time.
    virtual bool MovedWithin(absl::Duration time) = 0;
    // A fetch is over; its `done` is called next.
    virtual void OnFetchOver() = 0;
    // It was open and is closed; its fetches complete next. Not called for a Close by the owner's task.
    virtual void OnLost(const absl::Status& why) = 0;
  };
  struct Options {
    SocketOptions socket;
    RateLimit* limit = nullptr;  // of all that is received; null: none. Outlives the stream
    std::shared_ptr<const security::Identity> identity;  // for TLS; null: without
    // The receiver's credit: requests are of at most so many bytes, and one more is made while less than the
    // window is on its way.
    uint64_t request_bytes = uint64_t{16} << 20;
    uint64_t window_bytes = uint64_t{16} << 20;
  };

  // Everything given must outlive it.
  PullStream(IoLoop* loop, Owner* owner, const Options* options, const Descriptor* descriptor,
             const std::string* traceparent);
  // REQUIRES: closed, or never connected.
  ~PullStream() override;

  // Thread-safe.
  IoLoop& loop() { return *loop_; }
  bool open() const { return open_; }
  // Bytes that it was given to fetch and has not got. The caller that gives it a fetch counts it at once.
  uint64_t load() const { return load_; }
  void AddLoad(uint64_t bytes) { load_ += bytes; }

  // `connected` is called exactly once: the source welcomed the pull, or this is closed. Where the name has
  // several addresses they are tried one after the other. `where` is for people. `session`: of a connection
  // to the same source; null where there was none.
  void Connect(std::vector<SocketAddress> addresses, std::string where,
               std::shared_ptr<ssl_session_st> session, std::function<void(absl::Status)> connected);
  // Of the stream, for others of the pull. REQUIRES: it is open.
  std::shared_ptr<ssl_session_st> session() const { return stream_->session(); }
  // What the source said about the pull. REQUIRES: it is open.
  const Welcome& welcome() const { return welcome_; }
  // Asks for what the source has, and keeps the mirror so; it ends OK when everything is there. Once, in the
  // call of `connected`. REQUIRES: the source's image fills.
  void Follow(std::shared_ptr<Availability> mirror);
  // The address that it is connected to.
  const SocketAddress& address() const { return addresses_[next_address_ - 1]; }

  // From the next fetch on: breaks when it waits for bytes, and no byte of the whole pull arrives for so
  // long.
  void SetSilenceLimit(absl::Duration limit) { silence_.set_limit(limit); }
  // REQUIRES: it was open. Once closed, the fetch fails.
  void Start(Fetch fetch);
  // Completes one fetch with `why`, if it is here, and asks the source for no more of it.
  void Abandon(FetchId fetch, const absl::Status& why);
  // Completes every fetch with `why` and closes the socket. Idempotent.
  void Close(const absl::Status& why);

 private:
  enum class State { kIdle, kConnecting, kGreeting, kOpen, kClosed };
  struct Receiving {
    Fetch fetch;
    uint64_t asked = 0;        // bytes of it that were requested
    size_t span = 0;           // the destination of the next request begins in this span, which is trimmed
    uint64_t left = 0;         // bytes that have not arrived
    uint64_t digested_to = 0;  // image bytes before it are in `digest`
    DigestBuilder digest;
    TaskQueue::TimerId timer = TaskQueue::kNoTimer;
  };
  struct Outstanding {
    FetchId fetch = 0;    // 0: no fetch wants it any more, and what comes is dropped
    uint64_t offset = 0;  // of the next byte
    uint64_t left = 0;
    std::vector<HostSpan> destination;
    size_t span = 0;  // what is before it is full
  };

  void OnReady(uint32_t events) override;
  void Attempt();
  absl::StatusOr<std::unique_ptr<ByteStream>> Wrap(UniqueFd socket);
  void Connected();
  void Fail(const absl::Status& status);
  void Silent();
  void Refuse(const absl::Status& why);

  void ReadSome();
  // Whether nothing may be received yet; more is read when it may.
  bool WaitsForLimit();
  // Reads once; how many bytes came.
  absl::StatusOr<size_t> ReadOnce();
  // Takes the frames that have arrived, up to one with a piece that has to be read.
  absl::Status TakeFrames();
  absl::Status Take(const Frame& frame);
  absl::Status On(const Welcome& welcome);
  absl::Status On(const Error& error);
  absl::Status On(const Data& data);
  absl::Status On(const Have& have);
  absl::Status On(const NotHere& not_here);
  // Where the next bytes of the current piece go, at most `max` of them; how many.
  uint64_t AddRoom(uint64_t max);
  // So many of them are there.
  void Arrived(uint64_t bytes);

  void AskForMore();
  Outstanding NextRequest(FetchId fetch, Receiving& receiving);
  // The source sends no more of it; the fetch that it was made for, 0 when none wants it any more.
  FetchId EndRequest(uint64_t request_id);
  void Finish(FetchId fetch, const FetchResult& result);
  void Flush();
  void SetEvents(uint32_t events);

  IoLoop* const loop_;
  Owner* const owner_;
  const Options& options_;
  const Descriptor& descriptor_;
  const std::string& traceparent_;
  State state_ = State::kIdle;
  std::atomic<bool> open_ = false;
  std::atomic<uint64_t> load_ = 0;
  absl::Status closed_;  // why, once it is

  SilentPullStall silence_;
  PeerWatch peer_watch_;

  std::vector<SocketAddress> addresses_;
  size_t next_address_ = 0;
  std::string where_;
  std::shared_ptr<ssl_session_st> session_;  // to be introduced by
  absl::Status last_attempt_;
  std::function<void(absl::Status)> connected_;
  TaskQueue::TimerId attempt_timer_ = TaskQueue::kNoTimer;

  std::unique_ptr<ByteStream> stream_;
  std::optional<IoLoop::WatchId> watch_;
  uint32_t events_ = 0;
  TaskQueue::TimerId resume_timer_ = TaskQueue::kNoTimer;  // there are bytes that epoll is not asked about
  bool held_ = false;                                      // by the limit: the socket is not read
  bool gone_ = false;  // the other end is, and no limit holds its last bytes
  FrameReader reader_;
  FrameWriter writer_;
  Welcome welcome_;
  std::shared_ptr<Availability> mirror_;  // of what the source has; null: it is not asked

  absl::flat_hash_map<FetchId, Receiving> fetches_;
  std::deque<FetchId> to_ask_;  // fetches that were not asked for to their end, in order
  absl::flat_hash_map<uint64_t, Outstanding> requests_;
  uint64_t requests_made_ = 0;
  uint64_t outstanding_bytes_ = 0;
  // The piece that is being received.
  uint64_t piece_request_ = 0;
  uint64_t piece_left_ = 0;
  std::vector<iovec> parts_;
  std::vector<std::byte> dropped_;  // where bytes that no fetch wants go
};

}  // namespace tensorcast::transport::tcp
