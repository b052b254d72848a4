#include "transport/pull/pull_connection.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/log/check.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/replica/announcer.h"

namespace tensorcast::transport::pull {
namespace {

absl::Status Broken(std::string_view what) {
  return absl::InternalError(
      absl::StrCat("the source broke the pull protocol: ", what, "; run one release on both nodes"));
}

// The pieces that have arrived do not overlap each other, so only the neighbours on both sides can.
bool Overlaps(const std::map<uint64_t, uint64_t>& arrived, uint64_t offset, uint64_t end) {
  const auto next = arrived.lower_bound(offset);
  return (next != arrived.end() && next->first < end) ||
         (next != arrived.begin() && std::prev(next)->second > offset);
}

}  // namespace

// Two accounts. A fetch (`fetches_`) is complete when all of its bytes are in their place. A request
// (`requests_`) is a part of a fetch and is over when the source has sent all of it, or said that it sends no
// more. A request may outlive its fetch: what still comes is dropped, but counts in the credit until then.
PullConnection::PullConnection(std::shared_ptr<MessageChannel> channel, Owner* owner, const Credit& credit,
                               const Descriptor* descriptor, const std::string* traceparent,
                               std::string where)
    : channel_(std::move(channel)),
      owner_(owner),
      credit_(credit),
      descriptor_(*descriptor),
      traceparent_(*traceparent),
      where_(std::move(where)),
      silence_(&channel_->queue(), [this] { Silent(); }) {}

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
  return Broken("a frame that no source sends");
}

absl::Status PullConnection::On(const Welcome& welcome) {
  if (welcome.version != kVersion) {
    return absl::FailedPreconditionError(absl::StrCat("the source speaks version ", welcome.version,
                                                      " of the pull protocol, this receiver ", kVersion,
                                                      "; upgrade the older one"));
  }
  // The descriptor came by way of the daemons, WELCOME from whatever listens at the address: both must agree.
  if (state_ != State::kGreeting || welcome.image_bytes != descriptor_.image_bytes) {
    return Broken("a WELCOME that was not expected");
  }
  if (welcome.chunk_bytes != 0 && !CheckFilling(welcome.image_bytes, welcome.chunk_bytes).ok()) {
    return Broken(absl::StrCat("an image of ", welcome.image_bytes, " bytes that fills in chunks of ",
                               welcome.chunk_bytes));
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
  if (!IsDue(error.request_id)) return Broken("an ERROR for a request that was not made, or is over");
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
  if (mirror_ == nullptr) return Broken("a HAVE that was not asked for");
  if (!FitsImage(have.first, have.words, mirror_->chunks())) {
    return Broken(absl::StrCat("a HAVE of chunks up to ", have.first + have.words.size() * kHaveWordBits,
                               " where there are ", mirror_->chunks()));
  }
  mirror_->AddWords(have.first, have.words);
  if (mirror_->complete()) mirror_->End(absl::OkStatus());
  return absl::OkStatus();
}

absl::Status PullConnection::On(const NotHere& not_here) {
  if (welcome_.chunk_bytes == 0 || !IsDue(not_here.id)) {
    return Broken("a NOT_HERE for a request that was not made, or where everything is there");
  }
  const FetchId fetch_id = EndRequest(not_here.id);
  if (fetch_id == 0) return absl::OkStatus();
  const Fetch& fetch = fetches_.at(fetch_id).fetch;
  // The receiver asked for what HAVE had told: a source that takes that back cannot be planned with.
  if (fetch.announced) return Broken("it does not have what it announced");
  Abandon(fetch_id, absl::FailedPreconditionError(
                        absl::StrCat("fetch ", fetch.bytes, " bytes at ", fetch.offset, " from ", where_,
                                     ": the source does not have all of them yet; wait for its HAVE")));
  return absl::OkStatus();
}

// Books a piece before its bytes arrive: a source that sends what was not asked for, twice, or outside its
// request, is given up before anything is written.
absl::Status PullConnection::OnPiece(const Data& piece) {
  if (state_ != State::kOpen) return Broken("a piece that was not asked for");
  const auto found = requests_.find(piece.request_id);
  if (found == requests_.end()) return Broken("a piece that was not asked for");
  Outstanding& request = found->second;
  // The numbers are the source's: `end` counts only once the offset was found to lie in the request.
  const uint64_t size = request.destination.size();
  const uint64_t next = request.offset + (size - request.due);
  const uint64_t end = piece.offset + piece.bytes;
  const bool fits = channel_->keeps_order()
                        ? piece.offset == next
                        : piece.offset >= request.offset && piece.offset - request.offset <= size &&
                              piece.bytes <= size - (piece.offset - request.offset) &&
                              !Overlaps(request.arrived, piece.offset, end);
  if (!fits || piece.bytes > request.due) {
    return Broken(absl::StrCat("a piece of ", piece.bytes, " bytes at ", piece.offset, " where ", request.due,
                               " at ", next, " are due"));
  }
  // Where pieces may come in any order, each byte must come once all the same.
  if (!channel_->keeps_order()) request.arrived.emplace(piece.offset, end);
  request.due -= piece.bytes;
  return absl::OkStatus();
}

bool PullConnection::IsDue(uint64_t request_id) const {
  const auto found = requests_.find(request_id);
  return found != requests_.end() && found->second.due > 0;
}

PullConnection::Receiving* PullConnection::WantedFetch(const Outstanding& request) {
  const auto found = fetches_.find(request.fetch);
  return found != fetches_.end() && found->second.failure.ok() ? &found->second : nullptr;
}

HostSpan PullConnection::Place(const Data& rest) {
  const Outstanding& request = requests_.at(rest.request_id);
  // The fetch is over: what comes for it is dropped.
  if (WantedFetch(request) == nullptr) return {};
  return request.destination.subspan(rest.offset - request.offset, rest.bytes);
}

// Digested as long as pieces come in the order of the image. The first one that does not ends that, and the
// fetch has no digest: the engine computes it.
void PullConnection::OnPieceBytes(const Data& arrived, ConstHostSpan held) {
  const Outstanding& request = requests_.at(arrived.request_id);
  const FetchId fetch_id = request.fetch;
  Receiving* const receiving = WantedFetch(request);
  if (receiving != nullptr) {
    const HostSpan place = request.destination.subspan(arrived.offset - request.offset, arrived.bytes);
    const bool in_order = receiving->digested_to == arrived.offset;
    if (in_order) receiving->digested_to += arrived.bytes;
    if (in_order && !held.empty()) {
      receiving->digest.UpdateAndCopy(place.data(), held);
    } else if (in_order) {
      receiving->digest.Update(place);
    } else if (!held.empty()) {
      std::memcpy(place.data(), held.data(), held.size());
    }
  }
  RequestMoved(arrived.request_id, arrived.bytes);
  if (receiving != nullptr) FetchMoved(fetch_id, arrived.bytes);
}

// From here to OnReceived the channel writes by itself; Abandon and MaybeFinish wait for that.
void PullConnection::OnReceiveStarted(const Data& piece) {
  ++fetches_.at(requests_.at(piece.request_id).fetch).receives;
}

void PullConnection::OnReceived(const Data& piece, const absl::Status& status) {
  const FetchId fetch_id = requests_.at(piece.request_id).fetch;
  // It is there: a fetch that is over waits for its receives (MaybeFinish).
  Receiving& receiving = fetches_.at(fetch_id);
  --receiving.receives;
  RequestMoved(piece.request_id, piece.bytes);
  if (!status.ok()) {
    // The channel is dying, and its OnLost names the cause.
    if (receiving.failure.ok()) {
      receiving.failure =
          absl::UnavailableError(absl::StrCat("receive from ", where_, ": ", status.message()));
    }
    MaybeFinish(fetch_id);
  } else if (receiving.failure.ok()) {
    FetchMoved(fetch_id, piece.bytes);
  } else {
    MaybeFinish(fetch_id);
  }
  Refill();
}

void PullConnection::RequestMoved(uint64_t request_id, uint64_t bytes) {
  const auto found = requests_.find(request_id);
  outstanding_bytes_ -= bytes;
  found->second.left -= bytes;
  if (found->second.left == 0) requests_.erase(found);
}

// Bytes of a fetch that is over do not count as a sign of life.
void PullConnection::FetchMoved(FetchId fetch, uint64_t bytes) {
  fetches_.at(fetch).left -= bytes;
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
  Receiving& receiving = fetches_[id];
  receiving.left = fetch.bytes;
  receiving.digested_to = fetch.offset;
  receiving.fetch = std::move(fetch);
  const auto expire = [this, id] {
    Abandon(id, absl::DeadlineExceededError(
                    absl::StrCat("fetch from ", where_, ": the deadline passed; allow more time")));
  };
  if (receiving.fetch.deadline <= SteadyNow()) {
    expire();
    return;
  }
  if (receiving.left == 0) {
    MaybeFinish(id);
    return;
  }
  receiving.timer = channel_->queue().At(receiving.fetch.deadline, expire);
  silence_.Start();
  to_ask_.push_back(id);
  channel_->Flush();
}

void PullConnection::Refill() {
  if (asking_ || state_ != State::kOpen) return;
  asking_ = true;  // a read that ends at once comes here again
  // Two bounds: bytes by this end's own window, requests by what the source offered. The fetches are asked
  // for in their order, each to its end before the next.
  while (!to_ask_.empty() && outstanding_bytes_ < credit_.window_bytes &&
         requests_.size() < welcome_.max_requests && state_ == State::kOpen) {
    const FetchId fetch_id = to_ask_.front();
    const auto found = fetches_.find(fetch_id);
    // It was over before all of it was asked for.
    if (found == fetches_.end() || !found->second.failure.ok()) {
      to_ask_.pop_front();
      continue;
    }
    Receiving& receiving = found->second;
    Outstanding request = NextRequest(fetch_id, receiving);
    if (receiving.asked == receiving.fetch.bytes) to_ask_.pop_front();
    const HostSpan destination = request.destination;
    const Data piece{.request_id = channel_->NextRequestId(),
                     .offset = request.offset,
                     .bytes = static_cast<uint32_t>(destination.size())};
    outstanding_bytes_ += destination.size();
    const bool one_sided = channel_->one_sided();
    // A remote read ends as a whole: no DATA is due for it.
    if (one_sided) {
      request.due = 0;
      ++receiving.receives;
    }
    // Before the read begins, since that may end at once.
    requests_.emplace(piece.request_id, std::move(request));
    if (one_sided) {
      channel_->ReadRemote(piece, destination);
    } else {
      channel_->Send(Request{.id = piece.request_id, .offset = piece.offset, .bytes = piece.bytes});
    }
  }
  asking_ = false;
}

// Within one span of the destination.
PullConnection::Outstanding PullConnection::NextRequest(FetchId fetch, Receiving& receiving) {
  while (receiving.fetch.destination[receiving.span].empty()) ++receiving.span;
  HostSpan& span = receiving.fetch.destination[receiving.span];
  const uint64_t longest = std::min(credit_.request_bytes, welcome_.max_request_bytes);
  const HostSpan destination = span.first(std::min<uint64_t>(longest, span.size()));
  span = span.subspan(destination.size());
  const uint64_t offset = receiving.fetch.offset + receiving.asked;
  receiving.asked += destination.size();
  return {.fetch = fetch,
          .offset = offset,
          .destination = destination,
          .due = destination.size(),
          .left = destination.size(),
          .arrived = {}};
}

FetchId PullConnection::EndRequest(uint64_t request_id) {
  Outstanding& request = requests_.at(request_id);
  const FetchId fetch = WantedFetch(request) == nullptr ? 0 : request.fetch;
  // Pieces that are being received end the rest.
  RequestMoved(request_id, std::exchange(request.due, 0));
  return fetch;
}

// What is under way of it is dropped when it comes. Until the source says that no more comes, it counts as
// outstanding: a source that does not answer is given no more to do.
void PullConnection::Abandon(FetchId fetch, const absl::Status& why) {
  const auto found = fetches_.find(fetch);
  if (found == fetches_.end() || !found->second.failure.ok()) return;
  Receiving& receiving = found->second;
  receiving.failure = why;
  if (!channel_->one_sided()) {
    for (const auto& [id, request] : requests_) {
      if (request.fetch == fetch && request.due > 0) channel_->Send(Cancel{.id = id});
    }
  }
  load_ -= receiving.left;
  channel_->queue().CancelTimer(receiving.timer);
  // The channel may still write to its memory. What does not end in time is ended with the channel.
  if (receiving.receives > 0) {
    receiving.timer =
        channel_->queue().At(SteadyNow() + credit_.drain_timeout, [this, why] { Fail(why, /*lost=*/true); });
  }
  MaybeFinish(fetch);
  channel_->Flush();
}

// Not while the channel receives for it: the caller may use the memory for something else once it is told.
void PullConnection::MaybeFinish(FetchId fetch) {
  const auto found = fetches_.find(fetch);
  if (found == fetches_.end() || found->second.receives > 0 ||
      (found->second.failure.ok() && found->second.left > 0)) {
    return;
  }
  // Taken out first: the callback may start a fetch, which changes the map.
  Receiving over = std::move(found->second);
  channel_->queue().CancelTimer(over.timer);
  fetches_.erase(found);
  if (fetches_.empty()) silence_.Stop();
  owner_->OnFetchOver();
  // Pieces of several requests of one fetch may come in turn, and are then not digested here.
  const bool digested = over.digested_to == over.fetch.offset + over.fetch.bytes;
  if (!over.failure.ok()) {
    over.fetch.done(over.failure);
  } else {
    over.fetch.done(digested ? std::optional<Digest>(over.digest.Finish()) : std::nullopt);
  }
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
                                               "; check that node and the network")),
      /*lost=*/true);
}

// The source was one to pull from, and is not any more.
void PullConnection::OnDenied(const absl::Status& why) {
  LOG(WARNING) << "pull from " << where_ << ": the source is not trusted any more: " << why.message();
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
  for (auto& [id, receiving] : fetches_) {
    if (receiving.failure.ok()) {
      receiving.failure = why;
      load_ -= receiving.left;
    }
    fetches.push_back(id);
  }
  for (const FetchId fetch : fetches) MaybeFinish(fetch);
  // Last: the caller of Connect finds all else closed.
  if (connected_ != nullptr) std::exchange(connected_, nullptr)(why);
}

}  // namespace tensorcast::transport::pull
