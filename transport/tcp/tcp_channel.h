// A message channel over TCP, in clear or by TLS: frames on a socket, one owner loop.
//
// Bytes are handed to the kernel, and taken from it, by copies within a call of the loop's thread: so when a
// channel has ended nothing reads or writes memory for it. A source's channel spends the limit on
// what is sent, a receiver's the limit on what is received.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/address.h"
#include "base/posix/process_time.h"
#include "base/rate_limit.h"
#include "base/steady_time.h"
#include "transport/pull/message_channel.h"
#include "transport/tcp/byte_stream.h"
#include "transport/tcp/frame_io.h"
#include "transport/tcp/io_loop.h"
#include "transport/tcp/peer_watch.h"
#include "transport/tcp/session_cache.h"
#include "transport/tcp/socket.h"

namespace tensorcast::transport::tcp {

// The lane's name, in configurations, grants and metrics.
inline constexpr std::string_view kTcpLane = "tcp";

class TcpChannel : public pull::MessageChannel,
                   public IoLoop::Handler,
                   public std::enable_shared_from_this<TcpChannel> {
 public:
  // The limits, null for none, must outlive it. Made on any thread.
  TcpChannel(IoLoop* loop, RateLimit* send_limit, RateLimit* receive_limit);
  ~TcpChannel() override;

  // A source's end, of a connection that was accepted.
  void Open(std::unique_ptr<ByteStream> stream, pull::MessageChannel::Handler* handler);

  TaskQueue& queue() override { return loop_->queue(); }
  bool OnThread() const override { return loop_->OnThread(); }
  void Send(const Frame& frame) override { writer_.Put(frame); }
  void SendAhead(const Frame& frame) override { writer_.PutAhead(frame); }
  void SendPiece(const Data& head, ConstHostSpan piece, std::shared_ptr<void> hold) override {
    writer_.PutPiece(head, piece, std::move(hold));
  }
  bool has_room() const override { return writer_.piece_bytes() < kQueuedBytes; }
  size_t queued_frames() const override { return writer_.frames(); }
  bool has_ahead() const override { return writer_.has_ahead(); }
  void DropUnsent() override { writer_.ClearUnsent(); }
  void Flush() override;
  void End(std::optional<Frame> last, std::function<void()> ended) override;
  void OnReady(uint32_t events) override;
  bool held_back() const override { return read_held_; }
  uint64_t NextRequestId() override { return ++requests_made_; }

 protected:
  // The limit holds for what is received now; what a handshake receives does not wait for others' bytes.
  bool limits_reads_ = true;

  // Takes the place of the stream before, if there was one, and drops its frames.
  absl::Status Adopt(std::unique_ptr<ByteStream> stream, uint32_t events);
  void DropStream();
  // Of a peer that has been let in.
  void WatchPeer() { peer_watch_.Start(stream_.get()); }
  // Tells the handler, once, unless it has ended.
  void Lose(const absl::Status& why);

  IoLoop& loop() { return *loop_; }
  ByteStream* stream() { return stream_.get(); }

  pull::MessageChannel::Handler* handler_ = nullptr;

 private:
  // Pieces are made into frames up to here, ahead of what the socket took.
  static constexpr uint64_t kQueuedBytes = uint64_t{1} << 20;

  // What is handed to the kernel before the others of the process are asked for again.
  uint64_t BytesAStep() const;
  void ReadSome();
  // Reads once; how many bytes came.
  absl::StatusOr<size_t> ReadOnce();
  // Takes the frames that have arrived, up to one with a piece that has to be read.
  absl::Status TakeFrames();
  // Where the next bytes of the current piece go, at most `max` of them.
  HostSpan PieceRoom(uint64_t max);
  // So many of them are there.
  void PieceArrived(uint64_t bytes);
  // One direction of this channel, and what keeps it from moving bytes that epoll is not asked about.
  struct Direction {
    TaskQueue::TimerId timer = TaskQueue::kNoTimer;
    SteadyTime held_until = SteadyTime::InfinitePast();  // by the limit
  };
  // Whether nothing may be received, or sent, yet; `resume` is called when it may.
  bool WaitsFor(RateLimit* limit, LimitedDirection direction, Direction& own, void (TcpChannel::*resume)());
  // Called first when the direction goes on.
  static void NoteLateTimer(LimitedDirection direction, Direction& own);
  void SetEvents(bool has_output);

  IoLoop* const loop_;
  RateLimit* const send_limit_;
  RateLimit* const receive_limit_;
  PeerWatch peer_watch_;
  std::unique_ptr<ByteStream> stream_;  // null before it is connected and after the end
  std::optional<IoLoop::WatchId> watch_;
  uint32_t events_ = 0;
  bool lost_ = false;
  bool read_held_ = false;  // by the limit: the socket is not read
  bool send_held_ = false;
  bool gone_ = false;  // the other end is, and no limit holds its last bytes
  Direction reading_;
  Direction sending_;
  FrameReader reader_;
  FrameWriter writer_;
  uint64_t requests_made_ = 0;
  std::optional<Data> piece_;  // what is left of the one that is being received
  std::vector<iovec> parts_;
  std::vector<std::byte> dropped_;  // where bytes that no fetch wants go
};

// Where the channels of one pull connect to. The one that leads connects first; once it is welcome the others
// use what it left here, and no channel changes it any more.
struct TcpTarget {
  std::vector<SocketAddress> addresses;  // tried one after the other
  SocketOptions socket;
  std::shared_ptr<const security::Identity> identity;  // for TLS; null: without
  std::string source;                                  // the name in its certificate
  SessionCache* sessions = nullptr;
  SessionCache::Session session;  // of an earlier connection; null: there was none
};

// A receiver's end.
class TcpReceiverChannel : public TcpChannel {
 public:
  TcpReceiverChannel(IoLoop* loop, RateLimit* receive_limit, std::shared_ptr<TcpTarget> target, bool leads)
      : TcpChannel(loop, /*send_limit=*/nullptr, receive_limit), target_(std::move(target)), leads_(leads) {
    limits_reads_ = false;
  }

  void Connect(pull::MessageChannel::Handler* handler) override;
  absl::Status Welcomed() override;
  void End(std::optional<Frame> last, std::function<void()> ended) override;
  void OnReady(uint32_t events) override;

 private:
  void Attempt();
  absl::StatusOr<std::unique_ptr<ByteStream>> NewStream(const SocketAddress& address);

  const std::shared_ptr<TcpTarget> target_;
  const bool leads_;
  SessionCache::Context tls_;  // that its stream was made by; null in clear
  size_t next_address_ = 0;
  bool connecting_ = false;
  bool welcome_ = false;
  absl::Status last_attempt_;
  TaskQueue::TimerId attempt_timer_ = TaskQueue::kNoTimer;
};

}  // namespace tensorcast::transport::tcp
