#include "transport/pull/pull_connection.h"

#include <algorithm>
#include <utility>

#include "absl/log/check.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/replica/announcer.h"

namespace tensorcast::transport::pull {

PullConnection::PullConnection(std::shared_ptr<MessageChannel> channel, Owner* owner, const Credit& credit,
                               const Descriptor* descriptor, const std::string* traceparent,
                               std::string where)
    : channel_(std::move(channel)),
      owner_(owner),
      credit_(credit),
      descriptor_(*descriptor),
      traceparent_(*traceparent),
      where_(std::move(where)),
      silence_(&channel_->queue(), [this] { Silent(); }),
      requests_(channel_->keeps_order()) {}

PullConnection::~PullConnection() { CHECK(state_ == State::kIdle || state_ == State::kClosed); }

// Connecting, the handshake and WELCOME have one end together: the owner's timer closes the connection, and
// `connected_` then gets that error.
void PullConnection::Connect(std::function<void(absl::Status)> connected) {
  // It was closed before its turn came.
  if (state_ != State::kIdle) {
    connected(closed_);
    return;
  }
  connected_ = std::move(connected);
  state_ = State::kConnecting;
  channel_->Connect(this);
}

void PullConnection::OnConnected() {
  // A channel that lost its first connection, and made another, calls this again: HELLO is due on each.
  if (state_ == State::kClosed) return;
  state_ = State::kGreeting;
  channel_->Send(Hello{.max_piece_bytes = channel_->max_piece_bytes(),
                       .pull_id = descriptor_.pull_id,
                       .traceparent = traceparent_});
  channel_->Flush();
}

absl::Status PullConnection::OnFrame(const Frame& frame) {
  // What crossed the end is dropped.
  if (state_ == State::kClosed) return absl::OkStatus();
  if (const auto* error = std::get_if<Error>(&frame)) return On(*error);
  if (const auto* welcome = std::get_if<Welcome>(&frame)) return On(*welcome);
  if (const auto* have = std::get_if<Have>(&frame)) return On(*have);
  if (const auto* not_here = std::get_if<NotHere>(&frame)) return On(*not_here);
  return SourceBroke("a frame that no source sends");
}

absl::Status PullConnection::On(const Welcome& welcome) {
  if (welcome.version != kVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the source speaks version ", welcome.version,
        " of the pull protocol, and this receiver speaks version ", kVersion, "; upgrade the older daemon"));
  }
  // The descriptor came by way of the daemons, WELCOME from whatever listens at the address: both must agree.
  if (state_ != State::kGreeting || welcome.image_bytes != descriptor_.image_bytes) {
    return SourceBroke("a WELCOME that was not expected");
  }
  if (welcome.chunk_bytes != 0 && !CheckFilling(welcome.image_bytes, welcome.chunk_bytes).ok()) {
    return SourceBroke(absl::StrCat("an image of ", welcome.image_bytes, " bytes that fills in chunks of ",
                                    welcome.chunk_bytes, " bytes"));
  }
  if (absl::Status status = channel_->Welcomed(); !status.ok()) return status;
  welcome_ = welcome;
  state_ = State::kOpen;
  // For other threads, which choose among the open connections.
  open_ = true;
  std::exchange(connected_, nullptr)(absl::OkStatus());
  return absl::OkStatus();
}

absl::Status PullConnection::On(const Error& error) {
  if (error.request_id == kWholePull) {
    Fail(error.status, /*lost=*/false);
    return absl::OkStatus();
  }
  if (!requests_.IsDue(error.request_id)) {
    return SourceBroke("an ERROR for a request that was not made, or is over");
  }
  const FetchId fetch = EndRequest(error.request_id);
  if (fetch == 0) return absl::OkStatus();
  // This one is about the request alone. Any other breaks the pull (Pull::Fetch).
  if (absl::IsInvalidArgument(error.status)) {
    Abandon(fetch, error.status);
  } else {
    Fail(error.status, /*lost=*/false);
  }
  return absl::OkStatus();
}

void PullConnection::Follow(std::shared_ptr<Availability> mirror) {
  mirror_ = std::move(mirror);
  channel_->Send(pull::Follow{});
}

absl::Status PullConnection::On(const Have& have) {
  if (mirror_ == nullptr) return SourceBroke("a HAVE that was not asked for");
  if (!FitsImage(have.first, have.words, mirror_->chunks())) {
    return SourceBroke(absl::StrCat("a HAVE of chunks up to ", have.first + have.words.size() * kHaveWordBits,
                                    " of an image with ", mirror_->chunks(), " chunks"));
  }
  mirror_->AddWords(have.first, have.words);
  if (mirror_->complete()) mirror_->End(absl::OkStatus());
  return absl::OkStatus();
}

absl::Status PullConnection::On(const NotHere& not_here) {
  if (welcome_.chunk_bytes == 0 || !requests_.IsDue(not_here.id)) {
    return SourceBroke(welcome_.chunk_bytes == 0 ? "a NOT_HERE, although the source has the whole image"
                                                 : "a NOT_HERE for a request that was not made, or is over");
  }
  const FetchId fetch_id = EndRequest(not_here.id);
  if (fetch_id == 0) return absl::OkStatus();
  const Fetch& fetch = fetches_.at(fetch_id).fetch();
  // The receiver asked for what HAVE had told: a source that takes that back cannot be planned with.
  if (fetch.announced) return SourceBroke("a NOT_HERE for bytes that a HAVE announced");
  Abandon(
      fetch_id,
      absl::FailedPreconditionError(absl::StrCat(
          "fetch ", fetch.bytes, " bytes at offset ", fetch.offset, " from ", where_,
          ": the source does not have all of these bytes yet; wait until the source announces these bytes")));
  return absl::OkStatus();
}

absl::Status PullConnection::OnPiece(const Data& piece) {
  if (state_ != State::kOpen) return SourceBroke("a piece that was not asked for");
  return requests_.Book(piece);
}

FetchProgress* PullConnection::WantedFetch(const RequestedPart& part) {
  const auto found = fetches_.find(part.fetch);
  return found != fetches_.end() && !found->second.failed() ? &found->second : nullptr;
}

HostSpan PullConnection::Place(const Data& rest) {
  const RequestedPart& part = requests_.part(rest.request_id);
  // The fetch is over: what comes for it is dropped.
  if (WantedFetch(part) == nullptr) return {};
  return part.Place(rest.offset, rest.bytes);
}

void PullConnection::OnPieceBytes(const Data& arrived, ConstHostSpan held) {
  // A copy, since Moved ends the request if these are its last bytes.
  const RequestedPart part = requests_.part(arrived.request_id);
  FetchProgress* const fetch = WantedFetch(part);
  if (fetch != nullptr) fetch->Put(arrived.offset, part.Place(arrived.offset, arrived.bytes), held);
  requests_.Moved(arrived.request_id, arrived.bytes);
  if (fetch != nullptr) FetchMoved(part.fetch, arrived.bytes);
}

// From here to OnReceived the channel writes by itself; Abandon and MaybeFinish wait for that.
void PullConnection::OnReceiveStarted(const Data& piece) {
  fetches_.at(requests_.part(piece.request_id).fetch).ReceiveStarted();
}

void PullConnection::OnReceived(const Data& piece, const absl::Status& status) {
  const FetchId fetch_id = requests_.part(piece.request_id).fetch;
  // It is there: a fetch that is over waits for its receives (MaybeFinish).
  FetchProgress& fetch = fetches_.at(fetch_id);
  fetch.ReceiveEnded();
  requests_.Moved(piece.request_id, piece.bytes);
  if (!status.ok()) {
    // The channel is dying, and its OnLost names the cause.
    if (!fetch.failed()) {
      fetch.Fail(absl::UnavailableError(absl::StrCat("receive from ", where_, ": ", status.message())));
    }
    MaybeFinish(fetch_id);
  } else if (!fetch.failed()) {
    FetchMoved(fetch_id, piece.bytes);
  } else {
    MaybeFinish(fetch_id);
  }
  Refill();
}

// Bytes of a fetch that is over do not count as a sign of life.
void PullConnection::FetchMoved(FetchId fetch, uint64_t bytes) {
  fetches_.at(fetch).Arrived(bytes);
  load_ -= bytes;
  silence_.BytesArrived();
  owner_->OnBytes();
  MaybeFinish(fetch);
}

// On the channel's thread, by the task that the owner posted. The connection may have been closed in between.
void PullConnection::Start(Fetch fetch) {
  // The owner counted the fetch when it chose this connection.
  if (state_ == State::kClosed) {
    owner_->OnFetchOver();
    fetch.done(closed_);
    return;
  }
  const FetchId id = fetch.id;
  FetchProgress& started = fetches_.try_emplace(id, std::move(fetch)).first->second;
  const auto expire = [this, id] {
    Abandon(id, absl::DeadlineExceededError(
                    absl::StrCat("fetch from ", where_, ": the deadline passed; allow more time")));
  };
  if (started.fetch().deadline <= SteadyNow()) {
    expire();
    return;
  }
  if (started.left() == 0) {
    MaybeFinish(id);
    return;
  }
  started.set_timer(channel_->queue().At(started.fetch().deadline, expire));
  silence_.Start();
  to_ask_.push_back(id);
  channel_->Flush();
}

void PullConnection::Refill() {
  if (asking_ || state_ != State::kOpen) return;
  asking_ = true;  // a read that ends at once comes here again
  // Two bounds: bytes by this end's own window, requests by what the source offered. The fetches are asked
  // for in their order, each to its end before the next.
  while (!to_ask_.empty() && requests_.bytes() < credit_.window_bytes &&
         requests_.size() < welcome_.max_requests && state_ == State::kOpen) {
    const FetchId fetch_id = to_ask_.front();
    const auto found = fetches_.find(fetch_id);
    // It was over before all of it was asked for.
    if (found == fetches_.end() || found->second.failed()) {
      to_ask_.pop_front();
      continue;
    }
    FetchProgress& fetch = found->second;
    const RequestedPart part = fetch.NextPart(std::min(credit_.request_bytes, welcome_.max_request_bytes));
    if (fetch.all_requested()) to_ask_.pop_front();
    const Data piece{.request_id = channel_->NextRequestId(),
                     .offset = part.offset,
                     .bytes = static_cast<uint32_t>(part.destination.size())};
    const bool one_sided = channel_->one_sided();
    if (one_sided) fetch.ReceiveStarted();
    // Before the read begins, since that may end at once.
    requests_.Add(piece.request_id, part, /*remote_read=*/one_sided);
    if (one_sided) {
      channel_->ReadRemote(piece, part.destination);
    } else {
      channel_->Send(Request{.id = piece.request_id, .offset = piece.offset, .bytes = piece.bytes});
    }
  }
  asking_ = false;
}

FetchId PullConnection::EndRequest(uint64_t request_id) {
  const RequestedPart& part = requests_.part(request_id);
  const FetchId fetch = WantedFetch(part) == nullptr ? 0 : part.fetch;
  requests_.End(request_id);
  return fetch;
}

// What is under way of it is dropped when it comes. Until the source says that no more comes, it counts as
// outstanding: a source that does not answer is given no more to do.
void PullConnection::Abandon(FetchId fetch, const absl::Status& why) {
  const auto found = fetches_.find(fetch);
  if (found == fetches_.end() || found->second.failed()) return;
  FetchProgress& given_up = found->second;
  given_up.Fail(why);
  if (!channel_->one_sided()) {
    for (const uint64_t id : requests_.DueOf(fetch)) channel_->Send(Cancel{.id = id});
  }
  load_ -= given_up.left();
  channel_->queue().CancelTimer(given_up.timer());
  // The channel may still write to its memory. What does not end in time is ended with the channel.
  if (given_up.receiving()) {
    given_up.set_timer(
        channel_->queue().At(SteadyNow() + credit_.drain_timeout, [this, why] { Fail(why, /*lost=*/true); }));
  }
  MaybeFinish(fetch);
  channel_->Flush();
}

// Not while the channel receives for it: the caller may use the memory for something else once it is told.
void PullConnection::MaybeFinish(FetchId fetch) {
  const auto found = fetches_.find(fetch);
  if (found == fetches_.end() || !found->second.over()) return;
  // Taken out first: the callback may start a fetch, which changes the map.
  const FetchProgress over = std::move(found->second);
  channel_->queue().CancelTimer(over.timer());
  fetches_.erase(found);
  if (fetches_.empty()) silence_.Stop();
  owner_->OnFetchOver();
  over.fetch().done(over.Result());
  // The callback may have started another fetch.
  if (fetches_.empty()) {
    for (const std::function<void()>& emptied : std::exchange(emptied_, {})) emptied();
  }
}

void PullConnection::Silent() {
  // It may be this end that does not listen, or its turn has not come yet: the others share the link.
  if (channel_->held_back() || owner_->MovedWithin(silence_.limit())) {
    silence_.Start();
    return;
  }
  Fail(
      absl::DeadlineExceededError(absl::StrCat("no byte arrived for ", absl::FormatDuration(silence_.limit()),
                                               "; check the source's node and the network")),
      /*lost=*/true);
}

// The source was one to pull from, and is not any more.
void PullConnection::OnDenied(const absl::Status& why) {
  LOG(WARNING) << "pull from " << where_ << ": the source is no longer trusted: " << why.message();
  Fail(why, /*lost=*/true);
}

// Any failure of one connection breaks the whole pull (Owner::OnLost): a source that is gone on one
// connection is gone on all, and the engine has other sources.
void PullConnection::Fail(const absl::Status& status, bool lost) {
  if (state_ == State::kClosed) return;
  // Of another version, and of a replica that is not whole, Connect says so.
  const bool refused = state_ != State::kOpen && absl::IsFailedPrecondition(status);
  const absl::Status why = Annotate(refused ? status : AsPullEnd(status), absl::StrCat("pull from ", where_));
  if (state_ == State::kOpen) owner_->OnLost(why);
  Shut(why, lost);
}

// `emptied` comes when no fetch is left here. A fetch that the channel still receives for holds it back, for
// drain_timeout at most (Abandon, or the end by force).
void PullConnection::Close(const absl::Status& why, std::function<void()> emptied) {
  Shut(why, /*lost=*/false);
  if (emptied == nullptr) return;
  if (fetches_.empty()) {
    emptied();
  } else {
    emptied_.push_back(std::move(emptied));
  }
}

void PullConnection::Shut(const absl::Status& why, bool lost) {
  if (state_ == State::kClosed) return;
  const State before = std::exchange(state_, State::kClosed);
  open_ = false;
  closed_ = why;
  silence_.Stop();
  to_ask_.clear();
  if (before != State::kIdle) {
    // A source that has not answered HELLO may not be one.
    std::optional<Frame> last;
    if (!lost && before != State::kConnecting) last = Bye{};
    channel_->End(std::move(last), [hold = owner_->Hold()] {});
  }
  // Collected first, since to finish one changes the map.
  std::vector<FetchId> fetches;
  for (auto& [id, progress] : fetches_) {
    if (!progress.failed()) {
      progress.Fail(why);
      load_ -= progress.left();
    }
    fetches.push_back(id);
  }
  for (const FetchId fetch : fetches) MaybeFinish(fetch);
  // Last: the caller of Connect finds all else closed.
  if (connected_ != nullptr) std::exchange(connected_, nullptr)(why);
}

}  // namespace tensorcast::transport::pull
