#include "transport/tcp/tcp_channel.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "otel/api/metrics_catalogue.h"

namespace tensorcast::transport::tcp {
namespace {

// What is received in one step, so that it is still in the cache when it is digested, and sent in one where
// there is a limit.
constexpr uint64_t kStepBytes = uint64_t{256} << 10;
// What one connection moves before the others of its loop have their turn.
constexpr uint64_t kBytesATurn = uint64_t{4} << 20;
// An address that does not answer for so long is left for the next, where there is one.
constexpr absl::Duration kAttemptTimeout = absl::Seconds(3);
// A timer that fires later than this is late for another reason: the process was stopped, or had no CPU.
constexpr absl::Duration kMaxTimerLateness = absl::Milliseconds(3);

}  // namespace

// How the two directions work. Reading: epoll says that bytes are there; ReadSome moves them, straight to the
// place of the current piece and into the reader's buffer else, and hands on the frames. Writing: Flush asks
// the handler for more (Refill) and gives the socket what it takes; what is left waits for EPOLLOUT. Either
// ends its turn after kBytesATurn, so that all connections of a loop move. A direction that its limit holds
// back has its epoll event masked, and its own timer instead.
TcpChannel::TcpChannel(IoLoop* loop, RateLimit* send_limit, RateLimit* receive_limit)
    : loop_(loop),
      send_limit_(send_limit),
      receive_limit_(receive_limit),
      peer_watch_(&loop->queue(), [this](const absl::Status& why) {
        otel::metrics::kP2pConnectionsRefused.Add(1, {kTcpLane, "ended"});
        peer_watch_.Stop();
        handler_->OnDenied(why);
      }) {}

TcpChannel::~TcpChannel() { CHECK(!watch_.has_value()); }

void TcpChannel::Open(std::unique_ptr<ByteStream> stream, pull::MessageChannel::Handler* handler) {
  handler_ = handler;
  if (absl::Status status = Adopt(std::move(stream), EPOLLIN); !status.ok()) {
    // In a task of its own: the caller is still opening this channel.
    loop_->Post([self = shared_from_this(), status = std::move(status)] { self->Lose(status); });
  }
  WatchPeer();
}

absl::Status TcpChannel::Adopt(std::unique_ptr<ByteStream> stream, uint32_t events) {
  DropStream();
  stream_ = std::move(stream);
  TC_ASSIGN_OR_RETURN(watch_, loop_->Watch(stream_->fd(), events_ = events, this));
  return absl::OkStatus();
}

// The timers hold a plain pointer to this channel, so they end with the stream.
void TcpChannel::DropStream() {
  if (watch_.has_value()) loop_->Unwatch(*std::exchange(watch_, std::nullopt), stream_->fd());
  peer_watch_.Stop();
  loop_->queue().CancelTimer(reading_.timer);
  loop_->queue().CancelTimer(sending_.timer);
  stream_.reset();
  reader_ = FrameReader();
  writer_.Clear();
  piece_.reset();
  gone_ = false;
}

// The handler answers with End, so most callers of this return at once: the stream may be gone.
void TcpChannel::Lose(const absl::Status& why) {
  if (handler_ != nullptr && !std::exchange(lost_, true)) handler_->OnLost(why);
}

void TcpChannel::End(std::optional<Frame> last, std::function<void()> ended) {
  const std::shared_ptr<TcpChannel> self = shared_from_this();
  handler_ = nullptr;
  // Within a frame it would be taken for the rest of that frame.
  if (stream_ != nullptr && last.has_value() && !writer_.within_frame()) {
    writer_.Clear();
    writer_.Put(*last);
    // The other end learns of the end in any case; this says why, where the socket has room for it.
    (void)writer_.Flush(*stream_, pull::kMaxFrameHeadBytes);
  }
  // Releases what was read, so before a serving may count as idle; and the socket closes last: a peer that
  // sees the end finds the connection's place free.
  writer_.Clear();
  ended();
  DropStream();
}

void TcpChannel::OnReady(uint32_t events) {
  const std::shared_ptr<TcpChannel> self = shared_from_this();
  // Of these epoll tells again and again, until they are read.
  gone_ = gone_ || (events & (EPOLLHUP | EPOLLERR)) != 0;
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
    ReadSome();
  } else {
    Flush();
  }
}

void TcpChannel::ReadSome() {
  const std::shared_ptr<TcpChannel> self = shared_from_this();
  NoteLateTimer(LimitedDirection::kReceive, reading_);
  const auto waits = [this] {
    return handler_ != nullptr && !gone_ && limits_reads_ &&
           WaitsFor(receive_limit_, LimitedDirection::kReceive, reading_, &TcpChannel::ReadSome);
  };
  read_held_ = waits();
  for (uint64_t read = 0; read < kBytesATurn && handler_ != nullptr && !read_held_;) {
    const absl::StatusOr<size_t> bytes = ReadOnce();
    if (!bytes.ok()) {
      StreamLost(bytes.status());
      return;
    }
    if (*bytes == 0) break;
    if (const absl::Status status = TakeFrames(); !status.ok()) {
      Lose(status);
      return;
    }
    read += *bytes;
    if (receive_limit_ != nullptr) receive_limit_->Spend(*bytes, SteadyNow());
    read_held_ = waits();
  }
  if (handler_ == nullptr) return;
  // These bytes have left the socket, so epoll will not tell of them.
  if (stream_->has_buffered() && !read_held_) {
    loop_->queue().CancelTimer(reading_.timer);
    reading_.timer = loop_->queue().At(SteadyNow(), [this] { ReadSome(); });
  }
  Flush();
}

// What waits to be received stays in the socket. Its window then closes, so the source is held back too, and
// not only this end.
bool TcpChannel::WaitsFor(RateLimit* limit, LimitedDirection direction, Direction& own,
                          void (TcpChannel::*resume)()) {
  if (limit == nullptr) return false;
  const SteadyTime now = SteadyNow();
  const SteadyTime ready = limit->ReadyAt(now);
  if (ready <= now) return false;
  otel::metrics::kP2pHeldBack.Add(1, {kTcpLane, direction == LimitedDirection::kSend ? "serve" : "receive"});
  ProcessTime::Get().NoteHeld(direction, now, ready);
  loop_->queue().CancelTimer(own.timer);
  own.timer = loop_->queue().At(own.held_until = ready, [this, resume] { (this->*resume)(); });
  return true;
}

// Timers go by whole milliseconds, and a limit holds bytes back for less than one at a time: without the
// lateness most of the time that a limit costs would be told as waiting for the other end.
void TcpChannel::NoteLateTimer(LimitedDirection direction, Direction& own) {
  const SteadyTime until = std::exchange(own.held_until, SteadyTime::InfinitePast());
  const SteadyTime now = SteadyNow();
  if (until == SteadyTime::InfinitePast() || until >= now) return;
  ProcessTime::Get().NoteHeld(direction, until, std::min(now, until + kMaxTimerLateness));
}

absl::StatusOr<size_t> TcpChannel::ReadOnce() {
  parts_.clear();
  const uint64_t left = piece_.has_value() ? piece_->bytes : 0;
  uint64_t room = 0;
  if (left > 0) {
    const HostSpan place = PieceRoom(std::min(left, kStepBytes));
    parts_.push_back({place.data(), place.size()});
    room = place.size();
  }
  // The head of the next frame comes along with the end of a piece.
  if (room == left) {
    parts_.push_back(reader_.Room(room > 0 ? pull::kDataHeadBytes : pull::kMaxFrameHeadBytes));
  }
  TC_ASSIGN_OR_RETURN(const size_t bytes, stream_->Read(parts_));
  const uint64_t of_piece = std::min<uint64_t>(bytes, room);
  reader_.Received(bytes - of_piece);
  if (of_piece > 0) PieceArrived(of_piece);
  return bytes;
}

// Stops at a DATA frame with a piece that is not here in full: ReadOnce then reads the rest to its place. A
// handler may end this channel in any call.
absl::Status TcpChannel::TakeFrames() {
  while (!piece_.has_value() && handler_ != nullptr) {
    TC_ASSIGN_OR_RETURN(const std::optional<Frame> frame, reader_.Next());
    if (!frame.has_value()) break;
    if (const auto* data = std::get_if<Data>(&*frame)) {
      TC_RETURN_IF_ERROR(handler_->OnPiece(*data));
      piece_ = *data;
    } else {
      TC_RETURN_IF_ERROR(handler_->OnFrame(*frame));
    }
    // What came with the head of a piece, in the reader's buffer.
    while (piece_.has_value() && !reader_.empty()) PieceArrived(reader_.TakePiece(PieceRoom(piece_->bytes)));
  }
  return absl::OkStatus();
}

// Bytes that no fetch wants still have to leave the socket: they go to one buffer, over each other.
HostSpan TcpChannel::PieceRoom(uint64_t max) {
  Data rest = *piece_;
  rest.bytes = static_cast<uint32_t>(max);
  const HostSpan place = handler_->Place(rest);
  if (!place.empty()) return place;
  dropped_.resize(kStepBytes);
  return HostSpan(dropped_).first(std::min(max, kStepBytes));
}

void TcpChannel::PieceArrived(uint64_t bytes) {
  Data arrived = *piece_;
  arrived.bytes = static_cast<uint32_t>(bytes);
  piece_->offset += bytes;
  piece_->bytes -= arrived.bytes;
  if (piece_->bytes == 0) piece_.reset();
  handler_->OnPieceBytes(arrived, {});
}

uint64_t TcpChannel::BytesAStep() const {
  return send_limit_ != nullptr && send_limit_->bytes_per_second() > 0 ? kStepBytes : kQueuedBytes;
}

void TcpChannel::Flush() {
  const std::shared_ptr<TcpChannel> self = shared_from_this();
  NoteLateTimer(LimitedDirection::kSend, sending_);
  uint64_t sent = 0;
  send_held_ = false;
  while (handler_ != nullptr && sent < kBytesATurn) {
    handler_->Refill();
    // Refill may have ended this channel.
    if (handler_ == nullptr || (writer_.empty() && !stream_->has_unsent())) break;
    send_held_ = WaitsFor(send_limit_, LimitedDirection::kSend, sending_, &TcpChannel::Flush);
    if (send_held_) break;
    const absl::StatusOr<uint64_t> of_pieces = writer_.Flush(*stream_, BytesAStep());
    if (!of_pieces.ok()) {
      StreamLost(of_pieces.status());
      return;
    }
    if (*of_pieces > 0) handler_->OnSent(*of_pieces);
    if (send_limit_ != nullptr) send_limit_->Spend(*of_pieces, SteadyNow());
    sent += *of_pieces;
    // The socket is full, or TLS waits for the other end.
    if (*of_pieces == 0 && (!writer_.empty() || stream_->has_unsent())) break;
  }
  // After a full turn epoll brings this channel back behind the others of its loop.
  if (handler_ != nullptr) SetEvents(!writer_.empty() || sent >= kBytesATurn);
}

void TcpChannel::SetEvents(bool has_output) {
  if (!watch_.has_value()) return;
  uint32_t events = stream_->Events(has_output);
  // Of what is held back epoll would tell again and again.
  if (read_held_) events &= ~static_cast<uint32_t>(EPOLLIN);
  if (send_held_) events &= ~static_cast<uint32_t>(EPOLLOUT);
  if (events != events_) loop_->Change(*watch_, stream_->fd(), events_ = events);
}

void TcpReceiverChannel::Connect(pull::MessageChannel::Handler* handler) {
  handler_ = handler;
  Attempt();
}

// One address after the other, until one welcomes the pull or none is left. The timer runs until WELCOME, so
// an address that accepts and then says nothing is left as well; the last address has as much time as the
// whole pull has to connect. A peer that closes before WELCOME is left at once (StreamLost).
void TcpReceiverChannel::Attempt() {
  queue().CancelTimer(attempt_timer_);
  DropStream();
  // All were tried: the error of the last one is as good as any.
  if (next_address_ == target_->addresses.size()) {
    Lose(last_attempt_);
    return;
  }
  absl::StatusOr<std::unique_ptr<ByteStream>> stream = NewStream(target_->addresses[next_address_++]);
  if (!stream.ok()) {
    last_attempt_ = stream.status();
    Attempt();
    return;
  }
  connecting_ = true;
  if (absl::Status status = Adopt(*std::move(stream), EPOLLOUT); !status.ok()) {
    Lose(status);
    return;
  }
  if (next_address_ < target_->addresses.size()) {
    attempt_timer_ = queue().At(SteadyNow() + kAttemptTimeout, [this] {
      last_attempt_ = absl::DeadlineExceededError(
          "connect by TCP: the source did not answer; check the address of the source");
      Attempt();
    });
  }
}

absl::StatusOr<std::unique_ptr<ByteStream>> TcpReceiverChannel::NewStream(const SocketAddress& address) {
  TC_ASSIGN_OR_RETURN(UniqueFd socket, StartConnecting(address, target_->socket));
  if (target_->identity == nullptr) return NewPlainStream(std::move(socket));
  return NewTlsClientStream(std::move(socket), target_->identity, target_->source,
                            leads_ ? target_->sessions->Find(target_->source) : target_->session);
}

// The first event after StartConnecting tells whether the socket is connected. The TLS handshake, if any,
// comes with the first reads and writes.
void TcpReceiverChannel::OnReady(uint32_t events) {
  if (!connecting_) {
    TcpChannel::OnReady(events);
    return;
  }
  const std::shared_ptr<TcpChannel> self = shared_from_this();
  connecting_ = false;
  if (absl::Status status = ConnectResult(stream()->fd()); !status.ok()) {
    last_attempt_ = std::move(status);
    Attempt();
    return;
  }
  handler_->OnConnected();
}

// The source may be at the next address all the same: a private address, such as that of a bridge, may be
// another host's here. A peer that answers in frames is not left, and its ERROR ends the pull.
void TcpReceiverChannel::StreamLost(const absl::Status& why) {
  if (welcome_) {
    Lose(why);
    return;
  }
  last_attempt_ = why;
  Attempt();
}

absl::Status TcpReceiverChannel::Welcomed() {
  queue().CancelTimer(attempt_timer_);
  WatchPeer();
  welcome_ = true;
  limits_reads_ = true;
  if (!leads_) return absl::OkStatus();
  // The other channels of the pull use the address that worked, and the session that came of it.
  target_->addresses = {target_->addresses[next_address_ - 1]};
  target_->session = stream()->session();
  if (target_->identity != nullptr) target_->sessions->Keep(target_->source, target_->session);
  return absl::OkStatus();
}

void TcpReceiverChannel::End(std::optional<Frame> last, std::function<void()> ended) {
  queue().CancelTimer(attempt_timer_);
  // Perhaps because of the session that it brought.
  if (leads_ && !welcome_ && target_->identity != nullptr) target_->sessions->Keep(target_->source, {});
  // Nothing can be said before there is a connection.
  if (connecting_) last.reset();
  TcpChannel::End(std::move(last), std::move(ended));
}

}  // namespace tensorcast::transport::tcp
