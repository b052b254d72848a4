#include "transport/ucx/ucx_channel.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"

namespace tensorcast::transport {

// The states of a conversation: open; ending_ (End was called: the last messages are exchanged while
// operations under way end); closing_ (the endpoint is closed by force); and over (Finish). End in good order
// needs the other end: BYE and its answer. The drain timer turns ending_ into closing_ where that end does
// not come.
void UcxChannel::Send(const pull::Frame& frame) {
  if (endpoint_ != nullptr) endpoint_->SendControl(frame);
}

void UcxChannel::SendPiece(const pull::Data& head, ConstHostSpan piece, std::shared_ptr<void> hold) {
  ++sending_;
  endpoint_->SendData(head, piece, std::move(hold),
                      [self = shared_from_this(), bytes = piece.size()](const absl::Status& status) {
                        // In a task of its own: a send that completes at once must not recurse.
                        self->worker_.Post([self, bytes, status] { self->PieceSent(bytes, status); });
                      });
}

// The last piece under way may be what the end waits for, hence the look at the end.
void UcxChannel::PieceSent(uint64_t bytes, const absl::Status& status) {
  --sending_;
  if (!status.ok()) {
    endpoint_->Fail(status);
  } else if (handler_ != nullptr) {
    handler_->OnSent(bytes);
    if (!ending_) handler_->Refill();
  }
  if (ending_ && !closing_) OnProgress();
}

void UcxChannel::Flush() {
  if (handler_ != nullptr && !ending_) handler_->Refill();
}

void UcxChannel::OnControl(const pull::Frame& frame) {
  if (ending_) {
    // Anything else crossed this end's last message.
    if (std::holds_alternative<pull::Bye>(frame) && !closing_) OnLastBye();
  } else if (absl::Status status = handler_->OnFrame(frame); !status.ok()) {
    endpoint_->Fail(std::move(status));
  } else {
    Flush();
  }
}

absl::Status UcxChannel::OnPiece(const pull::Data& head, ConstHostSpan piece) {
  // What crossed the end is dropped.
  if (ending_) return absl::OkStatus();
  TC_RETURN_IF_ERROR(handler_->OnPiece(head));
  handler_->OnPieceBytes(head, handler_->Place(head).empty() ? ConstHostSpan() : piece);
  Flush();
  return absl::OkStatus();
}

absl::StatusOr<HostSpan> UcxChannel::OnRendezvous(const pull::Data& head) {
  // To receive it nowhere has UCX drop it.
  if (ending_) return HostSpan();
  TC_RETURN_IF_ERROR(handler_->OnPiece(head));
  const HostSpan place = handler_->Place(head);
  if (place.empty()) {
    handler_->OnPieceBytes(head, {});
    Flush();
    return place;
  }
  ++receiving_;
  handler_->OnReceiveStarted(head);
  return place;
}

void UcxChannel::OnRendezvousReceived(const pull::Data& head, const absl::Status& status) {
  Received(head, status);
}

// UCX has let go of the memory here, so this is told to the handler also while the conversation ends: a fetch
// may wait for it.
void UcxChannel::Received(const pull::Data& piece, const absl::Status& status) {
  --receiving_;
  // The endpoint is dying, or about to: the error that killed it names the cause.
  if (!status.ok() && !closing_) endpoint_->Fail(absl::UnavailableError(status.message()));
  handler_->OnReceived(piece, status);
  if (ending_ && !closing_) OnProgress();
}

void UcxChannel::OnFailed(const absl::Status& status) {
  if (ending_) {
    CloseByForce();
  } else {
    handler_->OnLost(status);
  }
}

void UcxChannel::End(std::optional<pull::Frame> last, std::function<void()> ended) {
  ending_ = true;
  ended_ = std::move(ended);
  if (!last.has_value() || endpoint_ == nullptr || !endpoint_->usable()) {
    CloseByForce();
    return;
  }
  // A peer that does not answer in time, or does not take what is on its way, may have stopped.
  drain_timer_ =
      queue().At(SteadyNow() + drain_timeout_, [self = shared_from_this()] { self->CloseByForce(); });
  SayLast(*last);
}

// `Finish` comes when UCX has completed every operation of the endpoint with an error, so that no memory is
// read or written any more.
void UcxChannel::CloseByForce() {
  if (std::exchange(closing_, true)) return;
  ending_ = true;
  if (endpoint_ == nullptr) {
    Finish(/*closed=*/true);
  } else {
    endpoint_->Close([self = shared_from_this()] { self->Finish(/*closed=*/true); });
  }
}

void UcxChannel::Finish(bool closed) {
  // The calls below may drop the last other reference.
  const std::shared_ptr<UcxChannel> self = shared_from_this();
  queue().CancelTimer(drain_timer_);
  handler_ = nullptr;
  OnEnded(closed);
  if (ended_ != nullptr) std::exchange(ended_, nullptr)();
}

UcxReceiverChannel::UcxReceiverChannel(const UcxReceiver& receiver, const SocketAddress& address,
                                       pull::Descriptor descriptor)
    : UcxChannel(receiver.worker, receiver.drain_timeout),
      receiver_(receiver),
      address_(address),
      descriptor_(std::move(descriptor)) {
  uint64_t end = 0;
  for (const pull::Descriptor::Segment& segment : descriptor_.segments) {
    segment_ends_.push_back(end += segment.bytes);
  }
}

// An idle endpoint from an earlier pull spares UCX's connection set-up; HELLO then begins the next
// conversation on it.
void UcxReceiverChannel::Connect(pull::MessageChannel::Handler* handler) {
  handler_ = handler;
  endpoint_ = receiver_.cache->Take(peer());
  was_idle_ = endpoint_ != nullptr;
  Dial();
}

void UcxReceiverChannel::Dial() {
  if (endpoint_ == nullptr) {
    absl::StatusOr<std::shared_ptr<UcxEndpoint>> endpoint = UcxEndpoint::Connect(&worker_, address_);
    if (!endpoint.ok()) {
      handler_->OnLost(endpoint.status());
      return;
    }
    endpoint_ = *std::move(endpoint);
  }
  endpoint_->set_owner(this);
  handler_->OnConnected();
}

// An idle endpoint may have died unnoticed, with a source that was restarted. One try with a new one tells
// whether the source is there.
void UcxReceiverChannel::OnFailed(const absl::Status& status) {
  if (ending_ || !std::exchange(was_idle_, false)) {
    UcxChannel::OnFailed(status);
    return;
  }
  std::exchange(endpoint_, nullptr)->Close(nullptr);
  Dial();
}

absl::Status UcxReceiverChannel::Welcomed() {
  was_idle_ = false;
  for (const std::string& packed : descriptor_.rkeys) {
    ucp_rkey_h rkey = nullptr;
    TC_RETURN_IF_ERROR(
        UcxStatus(ucp_ep_rkey_unpack(endpoint_->ep(), packed.data(), &rkey),
                  "unpack the source's remote key (both hosts need the same kind of network)"));
    rkeys_.push_back(rkey);
  }
  return absl::OkStatus();
}

void UcxReceiverChannel::ReadRemote(const pull::Data& piece, HostSpan destination) {
  ++receiving_;
  // It counts one part more than there are, so that it cannot be over before all have begun.
  const auto read = std::make_shared<Read>(Read{.piece = piece});
  for (uint64_t offset = piece.offset; !destination.empty();) {
    // A piece may lie in several segments of the source's memory: each part is a read of its own.
    const size_t index = std::ranges::upper_bound(segment_ends_, offset) - segment_ends_.begin();
    const pull::Descriptor::Segment& segment = descriptor_.segments[index];
    const uint64_t left = segment_ends_[index] - offset;
    const HostSpan part = destination.first(std::min<uint64_t>(left, destination.size()));
    ++read->parts;
    endpoint_->Get(
        part, segment.address + (segment.bytes - left), rkeys_[segment.rkey],
        [self = shared_from_this(), this, read](const absl::Status& status) { PartRead(read, status); });
    offset += part.size();
    destination = destination.subspan(part.size());
  }
  PartRead(read, absl::OkStatus());
}

void UcxReceiverChannel::PartRead(const std::shared_ptr<Read>& read, const absl::Status& status) {
  read->status.Update(status);
  if (--read->parts > 0) return;
  Received(read->piece, read->status);
  DropKeys();
}

void UcxReceiverChannel::SayLast(const pull::Frame&) { OnProgress(); }

// The source does not see remote reads, and takes BYE for their end: so they end first.
void UcxReceiverChannel::OnProgress() {
  if (one_sided() && receiving_ > 0) return;
  if (!std::exchange(bye_said_, true)) Send(pull::Bye{});
  if (bye_heard_ && receiving_ == 0) Ended();
}

void UcxReceiverChannel::OnLastBye() {
  bye_heard_ = true;
  OnProgress();
}

void UcxReceiverChannel::OnEnded(bool closed) {
  DropKeys();
  std::shared_ptr<UcxEndpoint> endpoint = std::exchange(endpoint_, nullptr);
  // An end in good order leaves the endpoint usable for the next pull from this peer.
  if (!closed) receiver_.cache->Give(peer(), std::move(endpoint));
}

// A remote key must outlive the reads that use it.
void UcxReceiverChannel::DropKeys() {
  if (!ending_ || receiving_ > 0) return;
  for (ucp_rkey_h rkey : std::exchange(rkeys_, {})) ucp_rkey_destroy(rkey);
}

}  // namespace tensorcast::transport
