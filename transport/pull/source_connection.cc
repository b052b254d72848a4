#include "transport/pull/source_connection.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast::transport::pull {
namespace {

// A receiver may know that a request is over, and send the next one, before this source does.
constexpr size_t kLateRequests = 2;
// A receiver that asks on without reading its answers is let go.
constexpr size_t kMaxQueuedFrames = 1024;
// How long a receiver may take to read why its pull ends, and to close: one that is not let in any more, and
// one with an image that failed.
constexpr absl::Duration kDismissTime = absl::Seconds(1);
constexpr absl::Duration kFailureTime = absl::Seconds(10);

// What a receiver of the same release never sends. The source logs it, and the receiver is told.
absl::Status Violation(std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("the receiver broke the pull protocol with ", what, "; run one release on both nodes"));
}

std::string_view NameOf(const SourceServing& serving) {
  if (serving.receiver().empty()) return "a receiver without a certificate";
  return serving.receiver();
}

}  // namespace

// Made on a listener's thread, started on its channel's. Between the two it may be revoked: End then finds no
// channel, and Start says so.
SourceConnection::SourceConnection(TaskQueue* queue, ServingThreads* threads, const SourceLimits& limits,
                                   std::shared_ptr<SourceServing> serving)
    : queue_(queue), threads_(threads), limits_(limits), serving_(std::move(serving)) {}

void SourceConnection::Start(std::shared_ptr<MessageChannel> channel) {
  channel_ = std::move(channel);
  if (ended_) {  // it was revoked before its turn came
    Close(Error{.status = end_});
    return;
  }
  const Availability* const availability = serving_->availability().get();
  // For all of this conversation: it is what WELCOME says.
  fills_ = serving_->filling();
  channel_->Send(Welcome{.max_requests = limits_.requests,
                         .max_request_bytes = limits_.request_bytes,
                         .image_bytes = serving_->image_bytes(),
                         .chunk_bytes = fills_ ? availability->chunk_bytes() : 0});
  if (availability != nullptr) {
    filling_watch_ = availability->OnChange([this] { PostFillingChanged(); });
    FillingChanged();  // it may have failed before it was watched
  }
  if (channel_ != nullptr) channel_->Flush();
}

// A connection leaves its serving only when its channel has ended (Close), since until then the channel may
// read the image.
void SourceConnection::End(const absl::Status& why) {
  if (ended_) return;
  if (channel_ == nullptr) {
    ended_ = true;
    end_ = why;
    serving_->Leave(shared_from_this());
  } else if (leaving_) {
    Close(std::nullopt);
  } else {
    Close(Error{.status = why});
  }
}

void SourceConnection::PostEnd(const absl::Status& why) {
  queue_->Post([self = shared_from_this(), why] { self->End(why); });
}

void SourceConnection::Close(std::optional<Frame> last) {
  ended_ = true;
  queue_->CancelTimer(leave_timer_);
  queue_->CancelTimer(news_timer_);
  filling_watch_ = {};
  announcer_.reset();
  DropRequests();
  // What is left of a farewell.
  if (leaving_) channel_->Flush();
  channel_->End(std::move(last), [self = shared_from_this()] {
    self->serving_->Leave(self);
    self->channel_ = nullptr;
  });
}

void SourceConnection::OnLost(const absl::Status& why) {
  if (ended_) return;
  if (!requests_.empty() || absl::IsInvalidArgument(why)) {
    LOG(WARNING) << "serve a pull to " << NameOf(*serving_) << ": the pull ended early: " << why;
  }
  End(why);
}

void SourceConnection::OnDenied(const absl::Status& why) {
  LOG(WARNING) << "serve a pull to " << NameOf(*serving_)
               << ": the receiver is no longer trusted: " << why.message();
  Leave(why, kDismissTime);
}

// It takes patience: a receiver cannot be told after half a piece, and while bytes move there is always half
// a piece; and to close a socket with unread bytes may lose what was written last. So the rest of the piece
// goes first, and the receiver is left to close, for a while.
void SourceConnection::Leave(const absl::Status& why, absl::Duration patience) {
  const std::shared_ptr<SourceConnection> self = shared_from_this();
  if (ended_ || std::exchange(leaving_, true)) return;
  announcer_.reset();
  DropRequests();
  channel_->DropUnsent();
  channel_->Send(Error{.status = why});
  leave_timer_ = queue_->At(SteadyNow() + patience, [self, why] { self->End(why); });
  channel_->Flush();
}

void SourceConnection::PostFillingChanged() {
  // One task for all the changes until it runs.
  if (change_posted_.exchange(true)) return;
  queue_->Post([self = shared_from_this()] {
    // Before the look: a change after it posts another task.
    self->change_posted_ = false;
    self->FillingChanged();
    if (self->channel_ != nullptr) self->channel_->Flush();
  });
}

void SourceConnection::FillingChanged() {
  const Availability& availability = *serving_->availability();
  if (ended_ || leaving_) return;
  has_news_ = true;
  if (!availability.ended()) return;
  if (absl::Status end = availability.end(); !end.ok()) Leave(end, kFailureTime);
}

// Called by Refill, so news go out whenever the channel has room for something: before pieces, since a
// receiver may wait for them with nothing else to ask for.
void SourceConnection::SendNews() {
  // A receiver that does not read what it was told is told the rest together, later.
  if (!has_news_ || !announcer_.has_value() || channel_->has_ahead()) return;
  const SteadyTime now = SteadyNow();
  if (now < next_news_) {
    if (news_timer_ != TaskQueue::kNoTimer) return;
    news_timer_ = queue_->At(next_news_, [self = shared_from_this()] {
      self->news_timer_ = TaskQueue::kNoTimer;
      self->channel_->Flush();
    });
    return;
  }
  has_news_ = false;
  const std::vector<Announcement> news = announcer_->TakeNews(kMaxHaveWords);
  for (const Announcement& have : news) channel_->SendAhead(Have{.first = have.first, .words = have.words});
  if (!news.empty()) next_news_ = now + limits_.announce_interval;
}

absl::Status SourceConnection::OnFrame(const Frame& frame) {
  // What crossed the end is dropped.
  if (ended_ || leaving_) return absl::OkStatus();
  if (const auto* request = std::get_if<Request>(&frame)) return On(*request);
  if (const auto* cancel = std::get_if<Cancel>(&frame)) return On(*cancel);
  if (const auto* follow = std::get_if<Follow>(&frame)) return On(*follow);
  if (!std::holds_alternative<Bye>(frame)) return Violation("a frame that no receiver sends here");
  Close(Bye{});
  return absl::OkStatus();
}

absl::Status SourceConnection::CheckRange(const Request& request) const {
  if (request.offset > serving_->image_bytes() || request.bytes > serving_->image_bytes() - request.offset) {
    return Violation(absl::StrCat("a REQUEST for ", request.bytes, " bytes at offset ", request.offset,
                                  " of an image of ", serving_->image_bytes(), " bytes"));
  }
  if (request.bytes > limits_.request_bytes) {
    return Violation(absl::StrCat("a REQUEST for ", request.bytes, " bytes, where at most ",
                                  limits_.request_bytes, " bytes were offered"));
  }
  return absl::OkStatus();
}

absl::Status SourceConnection::On(const Request& request) {
  if (limits_.one_sided) return Violation("a REQUEST on a lane of one-sided reads");
  // Ids grow, so that a CANCEL of a request that is over is told from one of a request that was never made.
  if (request.id <= last_request_id_) {
    return Violation(absl::StrCat("REQUEST ", request.id, " after REQUEST ", last_request_id_));
  }
  if (requests_.size() >= kLateRequests * limits_.requests) {
    return Violation(absl::StrCat("more than ", kLateRequests * limits_.requests, " REQUESTs at a time"));
  }
  if (channel_->queued_frames() >= kMaxQueuedFrames) {
    return Violation(
        absl::StrCat("another REQUEST, although ", kMaxQueuedFrames, " earlier answers are not read yet"));
  }
  last_request_id_ = request.id;
  // An error of this request alone: the receiver may have another idea of what was offered.
  if (absl::Status status = CheckRange(request); !status.ok()) {
    channel_->Send(Error{.request_id = request.id, .status = std::move(status)});
    return absl::OkStatus();
  }
  const Availability* const availability = serving_->availability().get();
  if (availability != nullptr && !availability->HasRange(request.offset, request.bytes)) {
    channel_->Send(NotHere{.id = request.id});
    return absl::OkStatus();
  }
  serving_->counter().AddRequest(request.bytes);
  owed_bytes_ += request.bytes;
  Asked asked{.id = request.id, .offset = request.offset, .left = request.bytes, .in_place = {}};
  if (serving_->in_place()) {
    for (const ConstHostSpan& slice : serving_->image().Segments(request.offset, request.bytes)) {
      asked.in_place.push_back(slice);
    }
  }
  requests_.push_back(std::move(asked));
  return absl::OkStatus();
}

// A CANCEL of a request that is over is ignored: it crossed the last piece. The ERROR that answers one tells
// the receiver that no more bytes of it come.
absl::Status SourceConnection::On(const Cancel& cancel) {
  if (cancel.id > last_request_id_) {
    return Violation(absl::StrCat("a CANCEL of REQUEST ", cancel.id, ", which was not made"));
  }
  if (Find(cancel.id) != requests_.end()) {
    Refuse(cancel.id, absl::CancelledError("the receiver cancelled the request"));
  }
  return absl::OkStatus();
}

absl::Status SourceConnection::On(const Follow&) {
  if (!fills_ || announcer_.has_value()) {
    return Violation(fills_ ? "a second FOLLOW" : "a FOLLOW of an image that does not fill");
  }
  announcer_.emplace(serving_->availability());
  has_news_ = true;
  return absl::OkStatus();
}

void SourceConnection::Refill() {
  if (ended_ || leaving_ || channel_ == nullptr) return;
  SendNews();
  if (serving_->in_place()) {
    SendPieces();
  } else {
    StartReads();
  }
}

// Requests are served one after the other, each to its end, so that a receiver has whole chunks early. Over
// the limit of the channel this stops; OnSent leads here again.
void SourceConnection::SendPieces() {
  while (!requests_.empty() && channel_->has_room()) {
    Asked& asked = requests_.front();
    ConstHostSpan& span = asked.in_place.front();
    const ConstHostSpan piece = span.first(std::min<size_t>(span.size(), limits_.piece_bytes));
    span = span.subspan(piece.size());
    if (span.empty()) asked.in_place.pop_front();
    // A segment without bytes.
    if (piece.empty()) continue;
    SendNextPiece(asked, piece, nullptr);
    if (asked.left == 0) requests_.pop_front();
  }
}

void SourceConnection::SendNextPiece(Asked& asked, ConstHostSpan piece, std::shared_ptr<void> hold) {
  const Data head{
      .request_id = asked.id, .offset = asked.offset, .bytes = static_cast<uint32_t>(piece.size())};
  asked.offset += piece.size();
  asked.left -= piece.size();
  channel_->SendPiece(head, piece, std::move(hold));
}

// One read brings one piece of ServedImage::Read, which may be shorter than the request; the request is then
// read again from where it is. Several requests are read at a time, so their pieces may come in turn.
void SourceConnection::StartReads() {
  for (Asked& asked : requests_) {
    // What a slow receiver does not take must not fill the buffers that others are read through, of which
    // even a piece of one byte has a whole one.
    if (reading_ >= limits_.reads || *held_ > limits_.reads || !channel_->has_room()) return;
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
      TaskQueue& queue = self->queue();
      queue.Post([self, id, piece = std::move(piece)]() mutable { self->ReadDone(id, std::move(piece)); });
    });
  }
}

void SourceConnection::ReadDone(uint64_t request_id, absl::StatusOr<ServedPiece> piece) {
  --reading_;
  if (ended_ || leaving_) return;
  if (const auto asked = Find(request_id); asked != requests_.end()) {
    if (!piece.ok()) {
      Refuse(request_id, piece.status());
    } else {
      SendRead(*asked, *piece);
      if (asked->left == 0) requests_.erase(asked);
    }
  }
  // From here on it is the channel's alone: what Flush sends is released, and the next read may follow.
  piece = absl::CancelledError();
  channel_->Flush();
}

void SourceConnection::SendRead(Asked& asked, const ServedPiece& read) {
  asked.reading = false;
  // Each piece holds what was read, and the last one that was sent lets go of it.
  for (ConstHostSpan rest = read.bytes; !rest.empty();) {
    const ConstHostSpan piece = rest.first(std::min<size_t>(rest.size(), limits_.piece_bytes));
    SendNextPiece(asked, piece, read.hold);
    rest = rest.subspan(piece.size());
  }
}

// Counted when the kernel or the receiver has the bytes, not when they are queued.
void SourceConnection::OnSent(uint64_t piece_bytes) {
  // What was dropped meanwhile is not owed any more, and settled: the counter is that of all connections of
  // the pull, and would take it from what another one owes.
  const uint64_t owed = std::min(owed_bytes_, piece_bytes);
  owed_bytes_ -= owed;
  serving_->counter().AddBytes(piece_bytes, owed);
}

void SourceConnection::DropRequests() {
  requests_.clear();
  serving_->counter().DropRequested(std::exchange(owed_bytes_, 0));
}

void SourceConnection::Refuse(uint64_t request_id, absl::Status status) {
  const auto refused = Find(request_id);
  serving_->counter().DropRequested(refused->left);
  owed_bytes_ -= std::min(owed_bytes_, refused->left);
  requests_.erase(refused);
  channel_->Send(Error{.request_id = request_id, .status = std::move(status)});
}

std::deque<SourceConnection::Asked>::iterator SourceConnection::Find(uint64_t request_id) {
  return std::ranges::find(requests_, request_id, &Asked::id);
}

}  // namespace tensorcast::transport::pull
