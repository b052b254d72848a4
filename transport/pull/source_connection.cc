#include "transport/pull/source_connection.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "absl/log/check.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "otel/api/metrics_catalogue.h"
#include "transport/registered_memory.h"

namespace tensorcast::transport::tcp {
namespace {

// A receiver may know that a request is over, and send the next one, before this source does.
constexpr size_t kLateRequests = 2;
// Pieces in place are made into frames up to here, ahead of what the socket took.
constexpr uint64_t kQueuedBytes = uint64_t{1} << 20;
// What one connection sends before the others of its loop have their turn.
constexpr uint64_t kBytesATurn = uint64_t{4} << 20;
// A receiver that asks on without reading its answers is let go.
constexpr size_t kMaxQueuedFrames = 1024;
// How long a receiver may take to read why its pull ends, and to close: one that is not let in any more, and
// one with an image that failed.
constexpr absl::Duration kDismissTime = absl::Seconds(1);
constexpr absl::Duration kFailureTime = absl::Seconds(10);

// What is handed to the kernel before the others of the process are asked for again.
uint64_t BytesAStep(const SourceLimits& limits) {
  const bool limited = limits.rate != nullptr && limits.rate->bytes_per_second() > 0;
  return limited ? limits.piece_bytes : kQueuedBytes;
}

absl::Status Revoked() { return absl::NotFoundError("the source revoked the pull"); }

}  // namespace

SourceServing::SourceServing(PullId id, std::shared_ptr<ServedImage> image, std::string receiver)
    : id_(id),
      receiver_(std::move(receiver)),
      image_(std::move(image)),
      image_bytes_(image_->image_bytes()),
      in_place_(image_->in_place()),
      availability_(image_->availability()) {}

absl::Status SourceServing::Join(std::shared_ptr<SourceConnection> connection) {
  if (availability_ != nullptr && availability_->ended()) TC_RETURN_IF_ERROR(availability_->end());
  absl::MutexLock lock(&mutex_);
  if (revoked_) return Revoked();
  if (connections_.size() >= kMaxConnections) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a pull may have ", kMaxConnections, " connections, and this one has them"));
  }
  connections_.insert(std::move(connection));
  return absl::OkStatus();
}

void SourceServing::Leave(const std::shared_ptr<SourceConnection>& connection) {
  absl::MutexLock lock(&mutex_);
  connections_.erase(connection);
}

absl::StatusOr<ServedPiece> SourceServing::Read(uint64_t offset, uint64_t bytes) {
  {
    absl::MutexLock lock(&mutex_);
    if (revoked_) return absl::CancelledError("the pull was revoked");
    ++reads_;
  }
  absl::StatusOr<ServedPiece> piece = image_->Read(offset, bytes);
  if (piece.ok() && (piece->bytes.empty() || piece->bytes.size() > bytes)) {
    piece = absl::InternalError("a served image read more bytes than it was asked for, or none");
  }
  if (!piece.ok()) ReadReleased();
  return piece;
}

void SourceServing::ReadReleased() {
  absl::MutexLock lock(&mutex_);
  --reads_;
}

void SourceServing::Revoke() {
  std::vector<std::shared_ptr<SourceConnection>> connections;
  {
    absl::MutexLock lock(&mutex_);
    revoked_ = true;
    connections.assign(connections_.begin(), connections_.end());
  }
  for (const std::shared_ptr<SourceConnection>& connection : connections) {
    connection->loop().Post([connection] { connection->End(Revoked()); });
  }
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &SourceServing::Idle));
}

SourceConnection::SourceConnection(IoLoop* loop, ServingThreads* threads, const SourceLimits& limits,
                                   std::shared_ptr<SourceServing> serving)
    : loop_(loop),
      threads_(threads),
      limits_(limits),
      serving_(std::move(serving)),
      peer_watch_(&loop->queue(), [this](const absl::Status& why) { Dismiss(why); }) {}

SourceConnection::~SourceConnection() { CHECK(!watch_.has_value()); }

void SourceConnection::Start(std::unique_ptr<ByteStream> stream) {
  if (ended_) return;  // it was revoked before its turn came
  stream_ = std::move(stream);
  events_ = EPOLLIN;
  absl::StatusOr<IoLoop::WatchId> watch = loop_->Watch(stream_->fd(), events_, this);
  if (!watch.ok()) {
    End(watch.status());
    return;
  }
  watch_ = *watch;
  peer_watch_.Start(stream_.get());
  const Availability* const availability = serving_->availability().get();
  fills_ = serving_->filling();
  writer_.Put(Welcome{.max_requests = limits_.requests,
                      .max_request_bytes = limits_.request_bytes,
                      .image_bytes = serving_->image_bytes(),
                      .chunk_bytes = fills_ ? availability->chunk_bytes() : 0});
  if (availability != nullptr) {
    filling_watch_ = availability->OnChange([this] { PostFillingChanged(); });
    FillingChanged();  // it may have failed before it was watched
  }
  Flush();
}

void SourceConnection::End(const absl::Status& why) {
  if (ended_) return;
  if (leaving_) {
    (void)writer_.Flush(*stream_, BytesAStep(limits_));
  } else if (!why.ok() && stream_ != nullptr && !writer_.within_frame()) {
    writer_.Clear();
    writer_.Put(Error{.status = why});
    // The receiver learns of the end in any case; this says why, where the socket has room for it.
    (void)writer_.Flush(*stream_, kMaxFrameHeadBytes);
  }
  Close();
}

void SourceConnection::Dismiss(const absl::Status& why) {
  otel::metrics::kP2pConnectionsRefused.Add(1, {kTcpLane, "ended"});
  LOG(WARNING) << "the pull of a receiver ends: " << why.message();
  Leave(why, kDismissTime);
}

// It takes patience: a receiver cannot be told after half a piece, and while bytes move there is always half
// a piece; and to close a socket with unread bytes may lose what was written last. So the rest of the piece
// goes first, and the receiver is left to close, for a while.
void SourceConnection::Leave(const absl::Status& why, absl::Duration patience) {
  const std::shared_ptr<SourceConnection> self = shared_from_this();
  if (ended_ || std::exchange(leaving_, true)) return;
  peer_watch_.Stop();
  announcer_.reset();
  requests_.clear();
  writer_.ClearUnsent();
  writer_.Put(Error{.status = why});
  leave_timer_ = loop_->queue().At(SteadyNow() + patience, [self] { self->Close(); });
  Flush();
}

void SourceConnection::PostFillingChanged() {
  if (change_posted_.exchange(true)) return;
  loop_->Post([self = shared_from_this()] {
    self->change_posted_ = false;
    self->FillingChanged();
    self->Flush();
  });
}

void SourceConnection::FillingChanged() {
  const Availability& availability = *serving_->availability();
  if (ended_ || leaving_) return;
  has_news_ = true;
  if (!availability.ended()) return;
  if (absl::Status end = availability.end(); !end.ok()) Leave(end, kFailureTime);
}

void SourceConnection::QueueNews() {
  // A receiver that does not read what it was told is told the rest together, later.
  if (!has_news_ || !announcer_.has_value() || writer_.has_ahead()) return;
  const SteadyTime now = SteadyNow();
  if (now < next_news_) {
    if (news_timer_ != TaskQueue::kNoTimer) return;
    news_timer_ = loop_->queue().At(next_news_, [self = shared_from_this()] {
      self->news_timer_ = TaskQueue::kNoTimer;
      self->Flush();
    });
    return;
  }
  has_news_ = false;
  const std::vector<Announcement> news = announcer_->TakeNews(kMaxHaveWords);
  for (const Announcement& have : news) writer_.PutAhead(Have{.first = have.first, .words = have.words});
  if (!news.empty()) next_news_ = now + limits_.announce_interval;
}

void SourceConnection::Close() {
  ended_ = true;
  if (watch_.has_value()) loop_->Unwatch(*watch_, stream_->fd());
  watch_.reset();
  peer_watch_.Stop();
  loop_->queue().CancelTimer(rate_timer_);
  loop_->queue().CancelTimer(leave_timer_);
  loop_->queue().CancelTimer(news_timer_);
  filling_watch_ = {};
  announcer_.reset();
  requests_.clear();
  // Releases what was read, so before the serving may count as idle.
  writer_.Clear();
  serving_->Leave(shared_from_this());
  stream_.reset();  // last: a caller that sees the end finds the connection's place free
}

void SourceConnection::OnReady(uint32_t events) {
  const std::shared_ptr<SourceConnection> self = shared_from_this();
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) ReadFrames();
  if (!ended_ && (events & EPOLLOUT) != 0) Flush();
}

void SourceConnection::ReadFrames() {
  absl::Status status;
  do {
    const iovec room = reader_.Room();
    const absl::StatusOr<size_t> bytes = stream_->Read({&room, 1});
    if (!bytes.ok()) {
      if (!requests_.empty()) LOG(WARNING) << "a receiver's pull ended early: " << bytes.status();
      Close();
      return;
    }
    reader_.Received(*bytes);
    status = TakeFrames();
  } while (status.ok() && !ended_ && stream_->has_buffered());
  if (ended_) return;
  if (!status.ok()) {
    LOG(WARNING) << "a receiver broke the pull protocol and was let go: " << status;
    End(status);
    return;
  }
  Flush();
}

absl::Status SourceConnection::TakeFrames() {
  while (!ended_) {
    TC_ASSIGN_OR_RETURN(const std::optional<Frame> frame, reader_.Next());
    if (!frame.has_value()) break;
    TC_RETURN_IF_ERROR(Take(*frame));
  }
  return absl::OkStatus();
}

absl::Status SourceConnection::Take(const Frame& frame) {
  if (leaving_) return absl::OkStatus();
  if (const auto* request = std::get_if<Request>(&frame)) return On(*request);
  if (const auto* cancel = std::get_if<Cancel>(&frame)) return On(*cancel);
  if (const auto* follow = std::get_if<Follow>(&frame)) return On(*follow);
  if (!std::holds_alternative<Bye>(frame)) {
    return absl::InvalidArgumentError("a frame that no receiver sends here");
  }
  Close();
  return absl::OkStatus();
}

absl::Status SourceConnection::CheckRange(const Request& request) const {
  if (request.offset > serving_->image_bytes() || request.bytes > serving_->image_bytes() - request.offset) {
    return absl::InvalidArgumentError(absl::StrCat("a request for ", request.bytes, " bytes at ",
                                                   request.offset, " of an image of ",
                                                   serving_->image_bytes()));
  }
  if (request.bytes > limits_.request_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("a request for ", request.bytes, " bytes; at most ",
                                                   limits_.request_bytes, " were offered"));
  }
  return absl::OkStatus();
}

absl::Status SourceConnection::On(const Request& request) {
  if (request.id <= last_request_id_) {
    return absl::InvalidArgumentError(absl::StrCat("REQUEST ", request.id, " after ", last_request_id_));
  }
  if (requests_.size() >= kLateRequests * limits_.requests) {
    return absl::InvalidArgumentError(absl::StrCat("more REQUESTs at a time than ", limits_.requests));
  }
  if (writer_.frames() >= kMaxQueuedFrames) {
    return absl::InvalidArgumentError("the receiver does not read what it is answered");
  }
  last_request_id_ = request.id;
  if (absl::Status status = CheckRange(request); !status.ok()) {
    writer_.Put(Error{.request_id = request.id, .status = std::move(status)});
    return absl::OkStatus();
  }
  const Availability* const availability = serving_->availability().get();
  if (availability != nullptr && !availability->HasRange(request.offset, request.bytes)) {
    writer_.Put(NotHere{.id = request.id});
    return absl::OkStatus();
  }
  serving_->counter().AddRequest();
  Asked asked{.id = request.id, .offset = request.offset, .left = request.bytes, .in_place = {}};
  if (serving_->in_place()) {
    for (const ConstHostSpan& slice : serving_->image().Segments(request.offset, request.bytes)) {
      asked.in_place.push_back(slice);
    }
  }
  requests_.push_back(std::move(asked));
  return absl::OkStatus();
}

absl::Status SourceConnection::On(const Cancel& cancel) {
  if (cancel.id > last_request_id_) {
    return absl::InvalidArgumentError(absl::StrCat("CANCEL of REQUEST ", cancel.id, ", which was not made"));
  }
  if (Find(cancel.id) != requests_.end()) Refuse(cancel.id, absl::CancelledError("as the receiver asked"));
  return absl::OkStatus();
}

absl::Status SourceConnection::On(const Follow&) {
  if (!fills_ || announcer_.has_value()) {
    return absl::InvalidArgumentError("a FOLLOW of what does not fill, or is followed already");
  }
  announcer_.emplace(serving_->availability());
  has_news_ = true;
  return absl::OkStatus();
}

void SourceConnection::QueuePieces() {
  if (!serving_->in_place()) return;
  while (!requests_.empty() && writer_.piece_bytes() < kQueuedBytes) {
    Asked& asked = requests_.front();
    const auto bytes = static_cast<uint32_t>(std::min<uint64_t>(asked.left, limits_.piece_bytes));
    std::vector<ConstHostSpan> piece;
    for (uint64_t left = bytes; left > 0;) {
      ConstHostSpan& span = asked.in_place.front();
      const uint64_t take = std::min<uint64_t>(left, span.size());
      piece.push_back(span.first(take));
      span = span.subspan(take);
      if (span.empty()) asked.in_place.pop_front();
      left -= take;
    }
    writer_.PutPiece({.request_id = asked.id, .offset = asked.offset, .bytes = bytes}, std::move(piece),
                     nullptr);
    asked.offset += bytes;
    asked.left -= bytes;
    if (asked.left == 0) requests_.pop_front();
  }
}

void SourceConnection::StartReads() {
  for (Asked& asked : requests_) {
    // What a slow receiver does not take must not fill the buffers that others are read through, of which
    // even a piece of one byte has a whole one.
    if (reading_ >= limits_.reads || *held_ > limits_.reads || writer_.piece_bytes() >= kQueuedBytes) return;
    if (asked.reading) continue;
    asked.reading = true;
    ++reading_;
    ++*held_;
    threads_->Submit([self = shared_from_this(), id = asked.id, offset = asked.offset, bytes = asked.left] {
      absl::StatusOr<ServedPiece> piece = self->serving_->Read(offset, bytes);
      // Counted as read until the piece is released, wherever that is.
      if (piece.ok()) {
        piece->hold = std::shared_ptr<void>(nullptr, [serving = self->serving_, held = self->held_,
                                                      hold = std::move(piece->hold)](void*) mutable {
          hold.reset();
          --*held;
          serving->ReadReleased();
        });
      } else {
        --*self->held_;
      }
      IoLoop& loop = self->loop();
      loop.Post([self, id, piece = std::move(piece)]() mutable { self->ReadDone(id, std::move(piece)); });
    });
  }
}

void SourceConnection::ReadDone(uint64_t request_id, absl::StatusOr<ServedPiece> piece) {
  --reading_;
  if (ended_) return;
  if (const auto asked = Find(request_id); asked != requests_.end()) {
    if (!piece.ok()) {
      Refuse(request_id, piece.status());
    } else {
      QueueRead(*asked, *piece);
      if (asked->left == 0) requests_.erase(asked);
    }
  }
  // From here on it is the writer's alone: what Flush sends is released, and the next read may follow.
  piece = absl::CancelledError();
  Flush();
}

void SourceConnection::QueueRead(Asked& asked, const ServedPiece& read) {
  asked.reading = false;
  for (ConstHostSpan rest = read.bytes; !rest.empty();) {
    const ConstHostSpan piece = rest.first(std::min<size_t>(rest.size(), limits_.piece_bytes));
    const auto bytes = static_cast<uint32_t>(piece.size());
    writer_.PutPiece({.request_id = asked.id, .offset = asked.offset, .bytes = bytes}, {piece}, read.hold);
    asked.offset += bytes;
    asked.left -= bytes;
    rest = rest.subspan(bytes);
  }
}

void SourceConnection::Refuse(uint64_t request_id, absl::Status status) {
  requests_.erase(Find(request_id));
  writer_.Put(Error{.request_id = request_id, .status = std::move(status)});
}

std::deque<SourceConnection::Asked>::iterator SourceConnection::Find(uint64_t request_id) {
  return std::ranges::find(requests_, request_id, &Asked::id);
}

bool SourceConnection::WaitsForRate() {
  if (limits_.rate == nullptr) return false;
  const SteadyTime now = SteadyNow();
  const SteadyTime ready = limits_.rate->ReadyAt(now);
  if (ready <= now) return false;
  otel::metrics::kP2pHeldBack.Add(1, {kTcpLane, "serve"});
  loop_->queue().CancelTimer(rate_timer_);
  rate_timer_ = loop_->queue().At(ready, [self = shared_from_this()] { self->Flush(); });
  return true;
}

void SourceConnection::Flush() {
  if (ended_ || stream_ == nullptr) return;
  QueueNews();
  bool full = false;
  bool held = false;
  for (uint64_t sent = 0; !full && sent < kBytesATurn;) {
    QueuePieces();
    if (writer_.empty() && !stream_->has_unsent()) break;
    held = WaitsForRate();
    if (held) break;
    const absl::StatusOr<uint64_t> of_pieces = writer_.Flush(*stream_, BytesAStep(limits_));
    if (!of_pieces.ok()) {
      LOG(WARNING) << "a receiver's pull ended early: " << of_pieces.status();
      Close();
      return;
    }
    if (*of_pieces > 0) serving_->counter().AddBytes(*of_pieces);
    if (limits_.rate != nullptr) limits_.rate->Spend(*of_pieces, SteadyNow());
    sent += *of_pieces;
    full = *of_pieces == 0;
  }
  if (!serving_->in_place()) StartReads();
  QueueNews();  // what those before it held up, which are sent
  const bool more = !writer_.empty() || (serving_->in_place() && !requests_.empty());
  uint32_t events = stream_->Events(more);
  if (held) events &= ~static_cast<uint32_t>(EPOLLOUT);
  if (events != events_) loop_->Change(*watch_, stream_->fd(), events_ = events);
}

}  // namespace tensorcast::transport::tcp
