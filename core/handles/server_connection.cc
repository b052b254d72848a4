#include "core/handles/server_connection.h"

#include <algorithm>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/posix/descriptors.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/handles/peer.h"

namespace tensorcast {
namespace {

// A descriptor that a connection would keep beside its socket.
absl::Status CheckNotReserved(const UniqueFd& fd) {
  if (!IsReserved(fd.get())) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the daemon has no file descriptor left for this (its limit is ", DescriptorLimit(),
                   "); raise its limit of open files, or detach some clients"));
}

}  // namespace

HeldClaim::HeldClaim(Claim claim, LeaseCounts* counts)
    : claim_(std::move(claim)), count_(counts->of(claim_)) {
  count_.fetch_add(1);
}

HeldClaim::~HeldClaim() {
  claim_.hold.reset();  // before the count falls, so that whoever sees it fall finds the hold released
  count_.fetch_sub(1);
}

ServerConnection::ServerConnection(UniqueFd socket, const Shared& shared, SteadyTime deadline)
    : socket_(std::move(socket)), shared_(shared), exchange_deadline_(deadline) {}

ServerConnection::~ServerConnection() {
  if (!offer_token_.empty()) shared_.offers->Take(offer_token_);
}

SteadyTime ServerConnection::deadline() const {
  const bool idle = state_ == State::kLeased || state_ == State::kReleased || state_ == State::kOffered;
  return idle && writer_.empty() ? SteadyTime::InfiniteFuture() : exchange_deadline_;
}

bool ServerConnection::OnReadable() {
  while (state_ != State::kEnding) {
    absl::StatusOr<std::optional<IncomingFrame>> incoming = reader_.Read(socket_.get());
    if (!incoming.ok()) return Refuse(incoming.status());
    if (!incoming->has_value()) return !reader_.closed() && Flush();
    if (absl::Status status = Handle(**std::move(incoming)); !status.ok()) return Refuse(status);
  }
  return Flush();
}

bool ServerConnection::OnWritable() { return Flush(); }

bool ServerConnection::Refuse(const absl::Status& reason) {
  CHECK_OK(writer_.Add(ErrorFrame{reason}));  // an ERROR always fits: its message is cut
  state_ = State::kEnding;
  return Flush();
}

bool ServerConnection::Flush() {
  if (!writer_.Flush(socket_.get()).ok()) return false;
  return state_ != State::kEnding || !writer_.empty();
}

absl::Status ServerConnection::Handle(IncomingFrame incoming) {
  const Frame& frame = incoming.frame;
  if (incoming.fd && !std::holds_alternative<OfferFrame>(frame)) {
    return absl::InvalidArgumentError(
        absl::StrCat("handle socket: a descriptor came with ", FrameName(frame), ", which takes none"));
  }
  if (state_ == State::kHello) {
    if (const auto* hello = std::get_if<HelloFrame>(&frame)) return HandleHello(*hello);
  } else if (state_ == State::kReady) {
    if (const auto* claim = std::get_if<ClaimFrame>(&frame)) return HandleClaim(*claim);
    if (const auto* offer = std::get_if<OfferFrame>(&frame))
      return HandleOffer(*offer, std::move(incoming.fd));
  } else if (state_ == State::kLeased && held_->is_device()) {
    if (std::holds_alternative<ClosedFrame>(frame)) return HandleClosed();
  }
  return absl::InvalidArgumentError(absl::StrCat("handle socket: ", FrameName(frame), " out of turn"));
}

absl::Status ServerConnection::HandleHello(const HelloFrame& hello) {
  const uint16_t version = std::min(hello.version_max, kHandleProtocolMax);
  if (version < std::max(hello.version_min, kHandleProtocolMin)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the client speaks versions ", hello.version_min, " to ", hello.version_max,
                     " of the handle protocol, the daemon ", kHandleProtocolMin, " to ", kHandleProtocolMax,
                     "; upgrade the older one"));
  }
  state_ = State::kReady;
  return writer_.Add(HelloAckFrame{version});
}

absl::Status ServerConnection::HandleClaim(const ClaimFrame& frame) {
  std::optional<Claim> claim = shared_.tickets->Take(frame.ticket, SteadyNow());
  if (!claim) {
    return absl::NotFoundError(
        "the ticket is unknown, expired, or was claimed before; attach the replica again");
  }
  auto held = std::make_unique<HeldClaim>(*std::move(claim), shared_.leases);
  // Without a way to learn of the client's death its memory could be freed while it is in use.
  if (held->is_device()) {
    TC_ASSIGN_OR_RETURN(process_, OpenPeerProcess(socket_.get()));
    TC_RETURN_IF_ERROR(CheckNotReserved(process_));
  }
  TC_RETURN_IF_ERROR(writer_.Add(HandlesFrame{held->claim().handles}, held->claim().fd));
  held_ = std::move(held);
  of_daemon_ = held_->claim().holder == Holder::kDaemon;
  state_ = State::kLeased;
  return absl::OkStatus();
}

absl::Status ServerConnection::HandleOffer(const OfferFrame& frame, UniqueFd fd) {
  Offer offer;
  offer.bytes = frame.bytes;
  if (frame.ipc) {
    if (fd)
      return absl::InvalidArgumentError("handle socket: a descriptor came with an offer of device memory");
    offer.ipc = *frame.ipc;
  } else {
    if (!fd)
      return absl::InvalidArgumentError("handle socket: an offer of host memory came without its memfd");
    TC_RETURN_IF_ERROR(CheckNotReserved(fd));
    TC_RETURN_IF_ERROR(CheckOfferedMemory(fd.get(), frame.bytes));
    offer.memfd = std::move(fd);
  }
  offer_token_ = shared_.offers->Add(std::move(offer));
  state_ = State::kOffered;
  return writer_.Add(OfferedFrame{offer_token_});
}

absl::Status ServerConnection::HandleClosed() {
  held_.reset();
  state_ = State::kReleased;
  return writer_.Add(ClosedFrame{});
}

std::optional<OrphanedClaim> ServerConnection::TakeOrphan() {
  if (held_ == nullptr || !held_->is_device()) return std::nullopt;
  return OrphanedClaim{std::move(process_), std::move(held_)};
}

}  // namespace tensorcast
