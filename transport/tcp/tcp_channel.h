// A message channel over TCP, with or without TLS. A channel belongs to its loop's thread. A source's channel
// obeys the send limit, and a receiver's channel obeys the receive limit.
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
  // A null limit means no limit. The loop and the limits must outlive the channel. Any thread may call the
  // constructor.
  TcpChannel(IoLoop* loop, RateLimit* send_limit, RateLimit* receive_limit);
  ~TcpChannel() override;

  // For a source: starts to read and write an accepted connection.
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
  // Whether the receive limit applies. False during a receiver's handshake.
  bool limits_reads_ = true;

  // Replaces the stream, and drops the frames of the previous stream.
  absl::Status Adopt(std::unique_ptr<ByteStream> stream, uint32_t events);
  void DropStream();
  // Starts to check the peer's certificate regularly. REQUIRES: the handshake has accepted the certificate.
  void WatchPeer() { peer_watch_.Start(stream_.get()); }
  // Calls the handler's OnLost, at most once, unless the channel has ended.
  void Lose(const absl::Status& why);
  // The stream broke, was closed by the other end, or was refused. StreamLost may replace or destroy the
  // stream.
  virtual void StreamLost(const absl::Status& why) { Lose(why); }

  IoLoop& loop() { return *loop_; }
  ByteStream* stream() { return stream_.get(); }

  pull::MessageChannel::Handler* handler_ = nullptr;

 private:
  // While fewer bytes of pieces than this are queued, the channel takes more pieces.
  static constexpr uint64_t kQueuedBytes = uint64_t{1} << 20;

  // Max bytes of one step of Flush. Flush checks the send limit before each step.
  uint64_t BytesAStep() const;
  void ReadSome();
  // Reads once from the stream; returns the number of bytes.
  absl::StatusOr<size_t> ReadOnce();
  // Handles the frames that have arrived, up to a DATA frame with a piece that has not arrived in full.
  absl::Status TakeFrames();
  // Memory for the next bytes of the current piece, at most `max` bytes.
  HostSpan PieceRoom(uint64_t max);
  // `bytes` more bytes of the current piece have arrived in PieceRoom's memory.
  void PieceArrived(uint64_t bytes);
  // One direction of this channel. While a rate limit delays the direction, `timer` runs until `held_until`.
  struct Direction {
    TaskQueue::TimerId timer = TaskQueue::kNoTimer;
    SteadyTime held_until = SteadyTime::InfinitePast();
  };
  // True if the limit delays this direction now; `resume` is called when the limit allows bytes again.
  bool WaitsFor(RateLimit* limit, LimitedDirection direction, Direction& own, void (TcpChannel::*resume)());
  // Called when a delayed direction continues. Counts the lateness of the timer as delay by the limit.
  static void NoteLateTimer(LimitedDirection direction, Direction& own);
  void SetEvents(bool has_output);

  IoLoop* const loop_;
  RateLimit* const send_limit_;
  RateLimit* const receive_limit_;
  PeerWatch peer_watch_;
  std::unique_ptr<ByteStream> stream_;  // null before the channel connects and after its end
  std::optional<IoLoop::WatchId> watch_;
  uint32_t events_ = 0;
  bool lost_ = false;
  bool read_held_ = false;  // the limit forbids reading the socket now
  bool send_held_ = false;  // the limit forbids sending now
  bool gone_ = false;       // the connection is closed or broken; its last bytes are read without the limit
  Direction reading_;
  Direction sending_;
  FrameReader reader_;
  FrameWriter writer_;
  uint64_t requests_made_ = 0;
  std::optional<Data> piece_;  // the rest of the piece that is being received
  std::vector<iovec> parts_;
  std::vector<std::byte> dropped_;  // buffer for bytes that no fetch wants
};

// The source of a pull, for all channels of the pull. The leading channel connects first. After WELCOME the
// leading channel stores here its TLS session, and as the only address the one that answered. After that, the
// other channels start; they only read this object.
struct TcpTarget {
  std::vector<SocketAddress> addresses;  // tried one after the other
  SocketOptions socket;
  std::shared_ptr<const security::Identity> identity;  // for TLS; null: no TLS
  std::string source;                                  // the name in the source's certificate
  SessionCache* sessions = nullptr;
  TlsSession session;  // of the leading channel's connection
};

// The receiver's end of a connection.
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

 protected:
  // Before WELCOME, connects to the next address.
  void StreamLost(const absl::Status& why) override;

 private:
  void Attempt();
  absl::StatusOr<std::unique_ptr<ByteStream>> NewStream(const SocketAddress& address);

  const std::shared_ptr<TcpTarget> target_;
  const bool leads_;
  size_t next_address_ = 0;
  bool connecting_ = false;
  bool welcome_ = false;
  absl::Status last_attempt_;
  TaskQueue::TimerId attempt_timer_ = TaskQueue::kNoTimer;
};

}  // namespace tensorcast::transport::tcp
