#include "transport/pull/pull_connection.h"
#include "core/replica/announcer.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "absl/log/check.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "otel/api/metrics_catalogue.h"

namespace tensorcast::transport::tcp {
namespace {

// What is received in one step, so that it is still in the cache when it is digested.
constexpr uint64_t kStepBytes = uint64_t{256} << 10;
// What one connection receives before the others of its loop have their turn.
constexpr uint64_t kReadBytesATurn = uint64_t{4} << 20;
constexpr size_t kMaxReceiveParts = 256;
// An address that does not answer for so long is left for the next, where there is one.
constexpr absl::Duration kAttemptTimeout = absl::Seconds(3);

absl::Status Broken(std::string_view what) {
  return absl::InternalError(absl::StrCat("the source broke the pull protocol: ", what));
}

}  // namespace

PullStream::PullStream(IoLoop* loop, Owner* owner, const Options* options, const Descriptor* descriptor,
                       const std::string* traceparent)
    : loop_(loop),
      owner_(owner),
      options_(*options),
      descriptor_(*descriptor),
      traceparent_(*traceparent),
      silence_(&loop->queue(), [this] { Silent(); }),
      peer_watch_(&loop->queue(), [this](const absl::Status& why) { Refuse(why); }) {}

PullStream::~PullStream() { CHECK(state_ == State::kIdle || state_ == State::kClosed); }

void PullStream::Connect(std::vector<SocketAddress> addresses, std::string where,
                         std::shared_ptr<ssl_session_st> session,
                         std::function<void(absl::Status)> connected) {
  if (state_ != State::kIdle) {
    connected(closed_);
    return;
  }
  addresses_ = std::move(addresses);
  where_ = std::move(where);
  session_ = std::move(session);
  connected_ = std::move(connected);
  state_ = State::kConnecting;
  Attempt();
}

void PullStream::Attempt() {
  loop_->queue().CancelTimer(attempt_timer_);
  loop_->queue().CancelTimer(resume_timer_);
  if (watch_.has_value()) loop_->Unwatch(*std::exchange(watch_, std::nullopt), stream_->fd());
  stream_.reset();
  gone_ = false;
  reader_ = FrameReader();
  writer_.Clear();
  state_ = State::kConnecting;
  if (next_address_ == addresses_.size()) {
    Close(last_attempt_);
    return;
  }
  absl::StatusOr<UniqueFd> socket = StartConnecting(addresses_[next_address_++], options_.socket);
  if (!socket.ok()) {
    last_attempt_ = Annotate(socket.status(), where_);
    Attempt();
    return;
  }
  absl::StatusOr<std::unique_ptr<ByteStream>> stream = Wrap(*std::move(socket));
  if (!stream.ok()) {
    Close(stream.status());
    return;
  }
  stream_ = *std::move(stream);
  const absl::StatusOr<IoLoop::WatchId> watch = loop_->Watch(stream_->fd(), events_ = EPOLLOUT, this);
  if (!watch.ok()) {
    Close(watch.status());
    return;
  }
  watch_ = *watch;
  if (next_address_ < addresses_.size()) {
    attempt_timer_ = loop_->queue().At(SteadyNow() + kAttemptTimeout, [this] {
      last_attempt_ = absl::DeadlineExceededError(absl::StrCat(where_, " did not answer"));
      Attempt();
    });
  }
}

absl::StatusOr<std::unique_ptr<ByteStream>> PullStream::Wrap(UniqueFd socket) {
  if (options_.identity == nullptr) return NewPlainStream(std::move(socket));
  return NewTlsClientStream(std::move(socket), options_.identity, descriptor_.source, session_);
}

void PullStream::Connected() {
  if (absl::Status status = ConnectResult(stream_->fd()); !status.ok()) {
    last_attempt_ = Annotate(status, where_);
    Attempt();
    return;
  }
  state_ = State::kGreeting;
  writer_.Put(Hello{.pull_id = descriptor_.pull_id, .traceparent = traceparent_});
  Flush();
}

void PullStream::OnReady(uint32_t events) {
  if (state_ == State::kConnecting) {
    Connected();
    return;
  }
  if ((events & EPOLLOUT) != 0) Flush();
  // Of these epoll tells again and again, until they are read.
  gone_ = gone_ || (events & (EPOLLHUP | EPOLLERR)) != 0;
  if (state_ != State::kClosed && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) ReadSome();
}

void PullStream::ReadSome() {
  held_ = WaitsForLimit();
  for (uint64_t read = 0; read < kReadBytesATurn && state_ != State::kClosed && !held_;) {
    const absl::StatusOr<size_t> bytes = ReadOnce();
    absl::Status status = bytes.status();
    if (bytes.ok() && *bytes == 0) break;
    if (status.ok()) status = TakeFrames();
    if (!status.ok()) {
      Fail(status);
      return;
    }
    read += *bytes;
    if (options_.limit != nullptr) options_.limit->Spend(*bytes, SteadyNow());
    held_ = WaitsForLimit();
  }
  if (state_ == State::kClosed) return;
  if (stream_->has_buffered() && !held_) {
    loop_->queue().CancelTimer(resume_timer_);
    resume_timer_ = loop_->queue().At(SteadyNow(), [this] { ReadSome(); });
  }
  Flush();
}

// What waits stays in the socket. Its window then closes, so the source is held back too, and not only this
// end.
bool PullStream::WaitsForLimit() {
  if (options_.limit == nullptr || gone_ || state_ != State::kOpen) return false;
  const SteadyTime now = SteadyNow();
  const SteadyTime ready = options_.limit->ReadyAt(now);
  if (ready <= now) return false;
  otel::metrics::kP2pHeldBack.Add(1, {kTcpLane, "receive"});
  loop_->queue().CancelTimer(resume_timer_);
  resume_timer_ = loop_->queue().At(ready, [this] { ReadSome(); });
  return true;
}

absl::StatusOr<size_t> PullStream::ReadOnce() {
  parts_.clear();
  const uint64_t room = piece_left_ > 0 ? AddRoom(std::min(piece_left_, kStepBytes)) : 0;
  // The head of the next frame comes along with the end of a piece.
  if (room == piece_left_) parts_.push_back(reader_.Room(room > 0 ? kDataHeadBytes : kMaxFrameHeadBytes));
  TC_ASSIGN_OR_RETURN(const size_t bytes, stream_->Read(parts_));
  const uint64_t of_piece = std::min<uint64_t>(bytes, room);
  reader_.Received(bytes - of_piece);
  if (of_piece > 0) Arrived(of_piece);
  return bytes;
}

absl::Status PullStream::TakeFrames() {
  while (piece_left_ == 0 && state_ != State::kClosed) {
    TC_ASSIGN_OR_RETURN(const std::optional<Frame> frame, reader_.Next());
    if (!frame.has_value()) break;
    TC_RETURN_IF_ERROR(Take(*frame));
    // What came with the head of a piece, in the reader's buffer.
    while (piece_left_ > 0 && !reader_.empty()) {
      parts_.clear();
      AddRoom(piece_left_);
      const uint64_t took =
          reader_.TakePiece({static_cast<std::byte*>(parts_[0].iov_base), parts_[0].iov_len});
      Arrived(took);
    }
  }
  return absl::OkStatus();
}

absl::Status PullStream::Take(const Frame& frame) {
  if (const auto* data = std::get_if<Data>(&frame)) return On(*data);
  if (const auto* error = std::get_if<Error>(&frame)) return On(*error);
  if (const auto* welcome = std::get_if<Welcome>(&frame)) return On(*welcome);
  if (const auto* have = std::get_if<Have>(&frame)) return On(*have);
  if (const auto* not_here = std::get_if<NotHere>(&frame)) return On(*not_here);
  return Broken("a frame that no source sends");
}

absl::Status PullStream::On(const Welcome& welcome) {
  if (welcome.version != kVersion) {
    return absl::FailedPreconditionError(absl::StrCat("the source answered in version ", welcome.version,
                                                      " of the pull protocol, this receiver speaks ",
                                                      kVersion, "; upgrade the older one"));
  }
  if (state_ != State::kGreeting || welcome.image_bytes != descriptor_.image_bytes) {
    return Broken("a WELCOME that was not expected");
  }
  if (welcome.chunk_bytes != 0 && !CheckFilling(welcome.image_bytes, welcome.chunk_bytes).ok()) {
    return Broken(absl::StrCat("an image of ", welcome.image_bytes, " bytes that fills in chunks of ",
                               welcome.chunk_bytes));
  }
  welcome_ = welcome;
  state_ = State::kOpen;
  open_ = true;
  peer_watch_.Start(stream_.get());
  loop_->queue().CancelTimer(attempt_timer_);
  std::exchange(connected_, nullptr)(absl::OkStatus());
  return absl::OkStatus();
}

absl::Status PullStream::On(const Error& error) {
  if (error.request_id == kWholePull) return error.status;
  if (!requests_.contains(error.request_id)) return Broken("an ERROR for a request that was not made");
  const FetchId fetch = EndRequest(error.request_id);
  if (fetch == 0) return absl::OkStatus();
  if (!absl::IsInvalidArgument(error.status)) return error.status;
  Abandon(fetch, error.status);
  return absl::OkStatus();
}

void PullStream::Follow(std::shared_ptr<Availability> mirror) {
  mirror_ = std::move(mirror);
  writer_.Put(tcp::Follow{});
}

absl::Status PullStream::On(const Have& have) {
  if (mirror_ == nullptr) return Broken("a HAVE that was not asked for");
  if (!FitsImage(have.first, have.words, mirror_->chunks())) {
    return Broken(absl::StrCat("a HAVE of chunks up to ", have.first + have.words.size() * kHaveWordBits,
                               " where there are ", mirror_->chunks()));
  }
  mirror_->AddWords(have.first, have.words);
  if (mirror_->complete()) mirror_->End(absl::OkStatus());
  return absl::OkStatus();
}

absl::Status PullStream::On(const NotHere& not_here) {
  if (welcome_.chunk_bytes == 0 || !requests_.contains(not_here.id)) {
    return Broken("a NOT_HERE for a request that was not made, or where everything is there");
  }
  const FetchId fetch_id = EndRequest(not_here.id);
  if (fetch_id == 0) return absl::OkStatus();
  const Fetch& fetch = fetches_.at(fetch_id).fetch;
  if (fetch.announced) return Broken("it does not have what it announced");
  Abandon(fetch_id, absl::FailedPreconditionError(absl::StrCat(where_, " does not have all of ", fetch.bytes,
                                                               " bytes at ", fetch.offset,
                                                               " yet: ask it for what it announces")));
  return absl::OkStatus();
}

absl::Status PullStream::On(const Data& data) {
  const auto request = requests_.find(data.request_id);
  if (request == requests_.end()) return Broken("a piece that was not asked for");
  if (data.offset != request->second.offset || data.bytes > request->second.left) {
    return Broken(absl::StrCat("a piece of ", data.bytes, " bytes at ", data.offset, " where ",
                               request->second.left, " at ", request->second.offset, " are due"));
  }
  piece_request_ = data.request_id;
  piece_left_ = data.bytes;
  return absl::OkStatus();
}

uint64_t PullStream::AddRoom(uint64_t max) {
  const Outstanding& request = requests_.at(piece_request_);
  if (request.fetch == 0) {
    dropped_.resize(kStepBytes);
    parts_.push_back({dropped_.data(), std::min<uint64_t>(max, dropped_.size())});
    return parts_.back().iov_len;
  }
  uint64_t room = 0;
  for (size_t i = request.span; room < max && parts_.size() < kMaxReceiveParts; ++i) {
    const HostSpan& span = request.destination[i];
    const size_t take = std::min<uint64_t>(max - room, span.size());
    if (take > 0) parts_.push_back({span.data(), take});
    room += take;
  }
  return room;
}

void PullStream::Arrived(uint64_t bytes) {
  const auto found = requests_.find(piece_request_);
  Outstanding& request = found->second;
  const FetchId fetch_id = request.fetch;
  if (fetch_id != 0) {
    Receiving& receiving = fetches_.at(fetch_id);
    const bool in_order = receiving.digested_to == request.offset;
    for (uint64_t left = bytes; left > 0;) {
      HostSpan& span = request.destination[request.span];
      const size_t take = std::min<uint64_t>(left, span.size());
      if (in_order) receiving.digest.Update(span.first(take));
      span = span.subspan(take);
      if (span.empty()) ++request.span;
      left -= take;
    }
    if (in_order) receiving.digested_to += bytes;
    receiving.left -= bytes;
    load_ -= bytes;
    silence_.BytesArrived();
    owner_->OnBytes();
  }
  request.offset += bytes;
  request.left -= bytes;
  piece_left_ -= bytes;
  outstanding_bytes_ -= bytes;
  if (request.left == 0) requests_.erase(found);
  if (fetch_id == 0) return;
  const Receiving& receiving = fetches_.at(fetch_id);
  if (receiving.left > 0) return;
  // Pieces of several requests of one fetch may come in turn, and are then not digested here.
  const bool digested = receiving.digested_to == receiving.fetch.offset + receiving.fetch.bytes;
  Finish(fetch_id, digested ? std::optional<Digest>(receiving.digest.Finish()) : std::nullopt);
}

void PullStream::Start(Fetch fetch) {
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
                    absl::StrCat("a fetch from ", where_, " did not complete before its deadline")));
  };
  if (receiving.fetch.deadline <= SteadyNow()) {
    expire();
    return;
  }
  if (receiving.left == 0) {
    Finish(id, receiving.digest.Finish());
    return;
  }
  receiving.timer = loop_->queue().At(receiving.fetch.deadline, expire);
  silence_.Start();
  to_ask_.push_back(id);
  Flush();
}

void PullStream::AskForMore() {
  while (!to_ask_.empty() && outstanding_bytes_ < options_.window_bytes &&
         requests_.size() < welcome_.max_requests) {
    const FetchId fetch_id = to_ask_.front();
    const auto receiving = fetches_.find(fetch_id);
    if (receiving == fetches_.end()) {
      to_ask_.pop_front();
      continue;
    }
    const uint64_t id = ++requests_made_;
    Outstanding request = NextRequest(fetch_id, receiving->second);
    writer_.Put(Request{.id = id, .offset = request.offset, .bytes = request.left});
    outstanding_bytes_ += request.left;
    requests_.emplace(id, std::move(request));
    if (receiving->second.asked == receiving->second.fetch.bytes) to_ask_.pop_front();
  }
}

PullStream::Outstanding PullStream::NextRequest(FetchId fetch, Receiving& receiving) {
  const uint64_t longest = std::min(options_.request_bytes, welcome_.max_request_bytes);
  Outstanding request{.fetch = fetch,
                      .offset = receiving.fetch.offset + receiving.asked,
                      .left = std::min(longest, receiving.fetch.bytes - receiving.asked),
                      .destination = {}};
  for (uint64_t left = request.left; left > 0;) {
    HostSpan& span = receiving.fetch.destination[receiving.span];
    const size_t take = std::min<uint64_t>(left, span.size());
    if (take > 0) request.destination.push_back(span.first(take));
    span = span.subspan(take);
    if (span.empty()) ++receiving.span;
    left -= take;
  }
  receiving.asked += request.left;
  return request;
}

FetchId PullStream::EndRequest(uint64_t request_id) {
  const auto request = requests_.find(request_id);
  const FetchId fetch = request->second.fetch;
  outstanding_bytes_ -= request->second.left;
  requests_.erase(request);
  return fetch;
}

// What is under way of it is dropped when it comes. Until the source says that no more comes, it counts as
// outstanding: a source that does not answer is given no more to do.
void PullStream::Abandon(FetchId fetch, const absl::Status& why) {
  const auto receiving = fetches_.find(fetch);
  if (receiving == fetches_.end()) return;
  for (auto& [id, request] : requests_) {
    if (request.fetch != fetch) continue;
    request.fetch = 0;
    writer_.Put(Cancel{.id = id});
  }
  load_ -= receiving->second.left;
  Finish(fetch, why);
  Flush();
}

void PullStream::Finish(FetchId fetch, const FetchResult& result) {
  const auto found = fetches_.find(fetch);
  const FetchDone done = std::move(found->second.fetch.done);
  loop_->queue().CancelTimer(found->second.timer);
  fetches_.erase(found);
  if (fetches_.empty()) silence_.Stop();
  owner_->OnFetchOver();
  done(result);
}

void PullStream::Silent() {
  // It is this end that does not listen.
  if (held_) {
    silence_.Start();
    return;
  }
  // Its turn may not have come yet: the others share the link.
  if (owner_->MovedWithin(silence_.limit())) {
    silence_.Start();
    return;
  }
  Fail(absl::DeadlineExceededError(
      absl::StrCat("no byte arrived for ", absl::FormatDuration(silence_.limit()))));
}

// The source was one to pull from, and is not any more.
void PullStream::Refuse(const absl::Status& why) {
  otel::metrics::kP2pConnectionsRefused.Add(1, {kTcpLane, "ended"});
  LOG(WARNING) << "a pull from " << where_ << " ends: " << why.message();
  Fail(why);
}

void PullStream::Flush() {
  if (state_ == State::kClosed) return;
  if (state_ == State::kOpen) AskForMore();
  const absl::StatusOr<uint64_t> sent = writer_.Flush(*stream_, kReadBytesATurn);
  if (!sent.ok()) {
    Fail(sent.status());
    return;
  }
  SetEvents(stream_->Events(!writer_.empty()));
}

void PullStream::SetEvents(uint32_t events) {
  if (held_) events &= ~static_cast<uint32_t>(EPOLLIN);
  if (events != events_) loop_->Change(*watch_, stream_->fd(), events_ = events);
}

void PullStream::Fail(const absl::Status& status) {
  // Of another version, and of a replica that is not whole, Connect says so.
  const bool refused = state_ != State::kOpen && absl::IsFailedPrecondition(status);
  const absl::Status why =
      Annotate(refused ? status : AsPullEnd(status), absl::StrCat("pulling from ", where_));
  if (state_ == State::kOpen) owner_->OnLost(why);
  Close(why);
}

void PullStream::Close(const absl::Status& why) {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  open_ = false;
  closed_ = why;
  loop_->queue().CancelTimer(attempt_timer_);
  loop_->queue().CancelTimer(resume_timer_);
  peer_watch_.Stop();
  if (watch_.has_value()) loop_->Unwatch(*std::exchange(watch_, std::nullopt), stream_->fd());
  stream_.reset();
  writer_.Clear();
  requests_.clear();
  to_ask_.clear();
  piece_left_ = 0;
  silence_.Stop();
  while (!fetches_.empty()) Finish(fetches_.begin()->first, why);
  if (connected_ != nullptr) std::exchange(connected_, nullptr)(why);
}

}  // namespace tensorcast::transport::tcp
