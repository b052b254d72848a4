#include "transport/ucx/ucx_pull.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/log/check.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/status.h"
#include "base/steady_time.h"

namespace tensorcast::transport {
namespace {

absl::Status Cancelled() { return absl::CancelledError("the pull was cancelled"); }

}  // namespace

UcxPullCore::UcxPullCore(const ReceiverContext& context, UcxDescriptor descriptor, SocketAddress address,
                         std::string traceparent)
    : context_(context),
      descriptor_(std::move(descriptor)),
      address_(address),
      traceparent_(std::move(traceparent)),
      silence_(&context.worker->queue(), [this] { Silent(); }) {}

UcxPullCore::~UcxPullCore() { CHECK(fetches_.empty() && endpoint_ == nullptr); }

// `self_` holds this object for as long as the connection is not over, whatever becomes of the public handle:
// UCX and the timers refer to it.
void UcxPullCore::Connect(std::function<void(absl::Status)> connected) {
  connected_ = std::move(connected);
  self_ = shared_from_this();
  endpoint_ = context_.cache->Take(descriptor_.address);
  endpoint_was_idle_ = endpoint_ != nullptr;
  if (absl::Status status = SendHello(); !status.ok()) {
    state_ = State::kOver;
    Connected(status);
    self_.reset();
  }
}

absl::Status UcxPullCore::SendHello() {
  if (endpoint_ == nullptr) {
    TC_ASSIGN_OR_RETURN(endpoint_, UcxEndpoint::Connect(context_.worker, address_));
  }
  endpoint_->set_owner(this);
  endpoint_->SendControl(wire::Hello{.max_piece_bytes = context_.max_piece_bytes,
                                     .pull_id = descriptor_.pull_id,
                                     .traceparent = traceparent_});
  return absl::OkStatus();
}

void UcxPullCore::Connected(const absl::Status& status) {
  if (connected_ != nullptr) std::exchange(connected_, nullptr)(status);
}

void UcxPullCore::Abort(const absl::Status& status) {
  if (state_ == State::kConnecting) {
    Connected(status);
    CloseEndpoint();
  }
}

void UcxPullCore::OnControl(const wire::Control& message) {
  std::visit([this](const auto& m) { On(m); }, message);
}

void UcxPullCore::On(const wire::Welcome& welcome) {
  if (welcome.version != wire::kVersion) {
    endpoint_->Fail(absl::FailedPreconditionError(absl::StrCat(
        "the source answered in version ", welcome.version, " of the pull protocol, this receiver speaks ",
        wire::kVersion, "; upgrade the older one")));
    return;
  }
  if (state_ != State::kConnecting || welcome.image_bytes != descriptor_.image_bytes) {
    ProtocolError("a WELCOME that was not expected");
    return;
  }
  welcome_ = welcome;
  if (absl::Status status = Opened(); !status.ok()) {
    Abort(status);
    return;
  }
  state_ = State::kOpen;
  Connected(absl::OkStatus());
}

void UcxPullCore::On(const wire::Error& error) {
  if (state_ == State::kConnecting && error.request_id == wire::kWholePull) {
    // The source refused the pull and kept the connection.
    Connected(absl::IsFailedPrecondition(error.status) ? error.status : AsPullEnd(error.status));
    Over();
  } else if (state_ != State::kOpen) {
    return;  // it crossed our BYE
  } else if (error.request_id == wire::kWholePull) {
    Break(AsPullEnd(error.status), /*lost=*/false);
  } else if (!RequestFailed(error.request_id, error.status)) {
    ProtocolError("an ERROR for a request that was not made");
  }
}

void UcxPullCore::On(const wire::Bye&) {
  if (state_ != State::kEnding || receives_ > 0) {
    ProtocolError("a BYE that was not expected");
    return;
  }
  Over();
}

void UcxPullCore::ProtocolError(std::string_view what) {
  endpoint_->Fail(absl::InternalError(absl::StrCat("the source broke the pull protocol: ", what)));
}

void UcxPullCore::OnFailed(const absl::Status& status) {
  if (state_ == State::kConnecting) {
    // An idle endpoint may have died unnoticed, with a source that was restarted. One try with a new one
    // tells whether the source is there.
    if (endpoint_was_idle_) {
      endpoint_was_idle_ = false;
      std::exchange(endpoint_, nullptr)->Close(nullptr);
      if (absl::Status again = SendHello(); !again.ok()) {
        Connected(again);
        CloseEndpoint();
      }
      return;
    }
    Abort(absl::Status(status.code(),
                       absl::StrCat("pulling from ", descriptor_.address, ": ", status.message())));
    return;
  }
  Break(
      absl::Status(status.code(), absl::StrCat("pulling from ", descriptor_.address, ": ", status.message())),
      /*lost=*/true);
}

void UcxPullCore::Fetch(FetchId id, uint64_t offset, const std::vector<HostSpan>& destination,
                        SteadyTime deadline, FetchDone done) {
  if (!broken_.ok()) {
    done(broken_);
    return;
  }
  const absl::StatusOr<uint64_t> bytes =
      CheckFetch(*context_.memory, descriptor_.image_bytes, offset, destination);
  if (!bytes.ok()) {
    done(bytes.status());
    return;
  }
  FetchState& fetch = fetches_[id];
  fetch.end = offset + *bytes;
  fetch.bytes_left = *bytes;
  fetch.digested_to = offset;
  fetch.done = std::move(done);
  if (deadline <= SteadyNow()) {
    Expire(id);
    return;
  }
  if (*bytes == 0) {
    MaybeComplete(id);
    return;
  }
  // Cancelled when the fetch completes, which it does before this object goes.
  fetch.timer = worker().queue().At(deadline, [this, id] { Expire(id); });
  silence_.Start();
  AddParts(id, offset, destination);
  Pump();
}

void UcxPullCore::Silent() {
  if (!broken_.ok()) return;
  // Nothing but a forced close ends a receive from a peer that has stopped.
  Break(absl::DeadlineExceededError(absl::StrCat("no byte arrived from ", descriptor_.address, " for ",
                                                 absl::FormatDuration(silence_.limit()))),
        /*lost=*/receives_ > 0);
}

void UcxPullCore::AddParts(uint64_t fetch, uint64_t offset, const std::vector<HostSpan>& destination) {
  const uint64_t longest = std::min(context_.part_bytes, welcome_.max_request_bytes);
  for (HostSpan span : destination) {
    while (!span.empty()) {
      const uint64_t bytes = std::min<uint64_t>(longest, span.size());
      waiting_.push_back({.fetch = fetch, .offset = offset, .destination = span.first(bytes)});
      span = span.subspan(bytes);
      offset += bytes;
    }
  }
}

// Parts of fetches that have failed stay in the queue and are skipped here.
bool UcxPullCore::NextPart(Part& part) {
  while (!waiting_.empty()) {
    part = waiting_.front();
    waiting_.pop_front();
    if (Wanted(part.fetch)) return true;
  }
  return false;
}

bool UcxPullCore::Wanted(uint64_t fetch) const {
  auto it = fetches_.find(fetch);
  return it != fetches_.end() && it->second.failure.ok();
}

void UcxPullCore::ReceiveStarted(uint64_t fetch) {
  ++receives_;
  ++fetches_.at(fetch).receives;
}

void UcxPullCore::ReceiveEnded(uint64_t fetch, uint64_t bytes, const absl::Status& status) {
  --receives_;
  FetchState& state = fetches_.at(fetch);
  --state.receives;
  if (status.ok()) {
    silence_.BytesArrived();
    state.bytes_left -= bytes;
  } else if (state.failure.ok()) {
    // The endpoint is dying, or about to: the error that killed it follows and names the cause.
    state.failure = absl::UnavailableError(absl::StrCat("a receive failed: ", status.message()));
    endpoint_->Fail(state.failure);
  }
  MaybeComplete(fetch);
}

// Digested while it is copied, for as long as pieces come in the order of the image. The first one that does
// not ends that, and the fetch has no digest: the engine computes it.
void UcxPullCore::TakePiece(uint64_t fetch, uint64_t offset, HostSpan destination, ConstHostSpan piece) {
  silence_.BytesArrived();
  FetchState& state = fetches_.at(fetch);
  if (offset == state.digested_to) {
    state.digest.UpdateAndCopy(destination.data(), piece);
    state.digested_to += piece.size();
  } else {
    std::memcpy(destination.data(), piece.data(), piece.size());
  }
  state.bytes_left -= piece.size();
  MaybeComplete(fetch);
}

// An argument of the caller's that was wrong leaves the pull as it was; any other failure ends it.
void UcxPullCore::FailFetch(uint64_t fetch, const absl::Status& status) {
  auto it = fetches_.find(fetch);
  if (it == fetches_.end()) return;
  const bool alone = absl::IsInvalidArgument(status);
  const absl::Status why = alone ? status : AsPullEnd(status);
  if (it->second.failure.ok()) it->second.failure = why;
  MaybeComplete(fetch);
  if (!alone) Break(why, /*lost=*/false);
}

void UcxPullCore::Expire(uint64_t fetch) {
  const absl::Status status = absl::DeadlineExceededError(
      absl::StrCat("a fetch from ", descriptor_.address, " did not complete before its deadline"));
  FetchState& state = fetches_.at(fetch);
  if (state.failure.ok()) state.failure = status;
  // Nothing but a forced close ends a receive from a peer that has stopped.
  const bool lost = state.receives > 0;
  MaybeComplete(fetch);
  Break(status, lost);
}

// Not while a receive is in flight: the caller may use the memory for something else once it is told.
void UcxPullCore::MaybeComplete(uint64_t fetch) {
  auto it = fetches_.find(fetch);
  if (it == fetches_.end() || it->second.receives > 0 ||
      (it->second.failure.ok() && it->second.bytes_left > 0)) {
    return;
  }
  FetchState state = std::move(it->second);
  fetches_.erase(it);
  if (fetches_.empty()) silence_.Stop();
  worker().queue().CancelTimer(state.timer);
  if (!state.failure.ok()) {
    state.done(state.failure);
  } else if (state.digested_to == state.end) {
    state.done(state.digest.Finish());
  } else {
    state.done(std::nullopt);
  }
  MaybeEnded();
}

// The pull takes no more fetches; those that it has fail once their receives have ended. `lost`: the
// connection is of no use any more and is closed by force, which ends those receives. Otherwise it is given
// back by BYE, for the next pull.
void UcxPullCore::Break(const absl::Status& status, bool lost) {
  if (broken_.ok()) broken_ = status;
  waiting_.clear();
  Abandon();
  std::vector<uint64_t> ids;
  for (auto& [id, fetch] : fetches_) {
    if (fetch.failure.ok()) fetch.failure = broken_;
    ids.push_back(id);
  }
  for (uint64_t id : ids) MaybeComplete(id);
  if (lost) {
    CloseEndpoint();
  } else if (state_ == State::kOpen) {
    SayBye();
  }
}

void UcxPullCore::CancelFetch(FetchId id) {
  if (fetches_.contains(id)) Cancel();
}

void UcxPullCore::Cancel() { Break(Cancelled(), /*lost=*/false); }

void UcxPullCore::End(std::function<void()> ended) {
  on_ended_.push_back(std::move(ended));
  Cancel();
  MaybeEnded();
}

void UcxPullCore::MaybeEnded() {
  if (fetches_.empty() && !on_ended_.empty()) {
    for (const std::function<void()>& ended : std::exchange(on_ended_, {})) ended();
  }
}

void UcxPullCore::SayBye() {
  state_ = State::kEnding;
  endpoint_->SendControl(wire::Bye{});
  // A source that does not answer BYE in time may have stopped.
  drain_timer_ = worker().queue().At(SteadyNow() + context_.drain_timeout, [this] { CloseEndpoint(); });
}

void UcxPullCore::CloseEndpoint() {
  if (state_ == State::kClosing || state_ == State::kOver) return;
  state_ = State::kClosing;
  worker().queue().CancelTimer(drain_timer_);
  if (endpoint_ == nullptr) {
    Over();
    return;
  }
  endpoint_->Close([this] { Over(); });
}

void UcxPullCore::Over() {
  worker().queue().CancelTimer(drain_timer_);
  silence_.Stop();
  Abandon();
  // It ended by BYE, or was refused: nothing is under way on it.
  if (endpoint_ != nullptr && state_ != State::kClosing) {
    context_.cache->Give(descriptor_.address, std::move(endpoint_));
  }
  endpoint_ = nullptr;
  state_ = State::kOver;
  CHECK_EQ(receives_, 0) << "an endpoint closed with receives in flight";
  // Last: may delete this.
  std::exchange(self_, nullptr).reset();
}

namespace {

class UcxPull : public Pull {
 public:
  explicit UcxPull(std::shared_ptr<UcxPullCore> core) : core_(std::move(core)) {}

  ~UcxPull() override {
    UcxWorker& worker = core_->worker();
    // Its receives end by what this thread does next, so it cannot wait for them.
    if (worker.OnThread()) {
      bool ended = false;
      core_->End([&] { ended = true; });
      CHECK(ended)
          << "a pull with receives in flight was destroyed in a transport callback, which must not block";
      return;
    }
    absl::Notification ended;
    worker.Post([this, &ended] { core_->End([&] { ended.Notify(); }); });
    ended.WaitForNotification();
  }

  FetchId Fetch(uint64_t offset, std::vector<HostSpan> destination, SteadyTime deadline,
                FetchDone done) override {
    const FetchId id = ++fetches_made_;
    core_->worker().Post([core = core_, id, offset, destination = std::move(destination), deadline,
                          done = std::move(done)]() mutable {
      core->Fetch(id, offset, destination, deadline, std::move(done));
    });
    return id;
  }

  // By the addresses, which only UCX follows: the lane that copies pieces here registers no device.
  FetchId FetchToDevice(uint64_t offset, DevicePtr destination, uint64_t bytes, SteadyTime deadline,
                        FetchDone done) override {
    return Fetch(offset, {AddressesOf(destination, bytes)}, deadline, std::move(done));
  }

  void CancelFetch(FetchId fetch) override {
    core_->worker().Post([core = core_, fetch] { core->CancelFetch(fetch); });
  }

  void SetSilenceLimit(absl::Duration limit) override {
    core_->worker().Post([core = core_, limit] { core->SetSilenceLimit(limit); });
  }

  void Cancel() override {
    core_->worker().Post([core = core_] { core->Cancel(); });
  }

 private:
  const std::shared_ptr<UcxPullCore> core_;
  std::atomic<FetchId> fetches_made_ = 0;
};

}  // namespace

std::unique_ptr<Pull> NewUcxPull(std::shared_ptr<UcxPullCore> core) {
  return std::make_unique<UcxPull>(std::move(core));
}

}  // namespace tensorcast::transport
