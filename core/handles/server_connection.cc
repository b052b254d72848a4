#include "core/handles/server_connection.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/posix/unix_socket.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/handles/client_descriptors.h"

namespace tensorcast {
namespace {

absl::Status OutOfTurn(const Frame& frame) {
  return absl::InvalidArgumentError(absl::StrCat("handle the frame ", FrameName(frame),
                                                 ": the client may not send this frame at this point",
                                                 kOneRelease));
}

}  // namespace

ServerConnection::ServerConnection(UniqueFd socket, const Shared& shared, SteadyTime deadline,
                                   std::function<void()> on_news)
    : socket_(std::move(socket)),
      shared_(shared),
      exchange_deadline_(deadline),
      on_news_(std::move(on_news)) {}

ServerConnection::~ServerConnection() {
  // A put that waits for a slot of this client now fails with UNAVAILABLE.
  if (ring_ != nullptr) ring_->NoteClosed();
  const ForeignFds unfinished(reader_.TakeFds());
  // An offer goes with its client's connection, unless a put has taken it.
  if (!offer_token_.empty()) shared_.offers->Take(offer_token_);
}

SteadyTime ServerConnection::deadline() const {
  if (state_ == State::kAwaitsRing) return SteadyTime::InfiniteFuture();
  // A put has until put_by_ to take the ring. From then on the ring itself watches for a client that stalls
  // (PutRing::Await).
  if (state_ == State::kStreams) {
    return shared_.offers->Contains(offer_token_) ? put_by_ : SteadyTime::InfiniteFuture();
  }
  return answered_ ? SteadyTime::InfiniteFuture() : exchange_deadline_;
}

SteadyTime ServerConnection::news_due() const {
  return follower_ != nullptr && writer_.empty() ? follower_->due() : SteadyTime::InfiniteFuture();
}

// Bytes that the client has not read hold back a follower: while any wait, no news is taken, and news_due()
// is InfiniteFuture. The chunks gather in the availability meanwhile.
bool ServerConnection::TellNews(SteadyTime now) {
  if (follower_ == nullptr || !writer_.empty()) return true;
  for (const Frame& frame : follower_->Take(now)) {
    if (absl::Status added = writer_.Add(frame); !added.ok()) return Refuse(added);
  }
  return Flush();
}

// Handles each frame that has arrived whole. The end of the peer counts only after all that it sent before
// was handled.
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
  // The time of the exchange counts again, so that a peer that does not read the reason is cut off.
  answered_ = false;
  // News behind an ERROR would break the protocol.
  follower_.reset();
  return Flush();
}

bool ServerConnection::Flush() {
  if (!writer_.Flush(socket_.get()).ok()) return false;
  const bool idle = state_ == State::kLeased || state_ == State::kReleased || state_ == State::kOffered;
  // The exchange is over when all of the answer is sent; from then on a connection may rest for long.
  answered_ |= idle && writer_.empty();
  return state_ != State::kEnding || !writer_.empty();
}

// The state says which frames are due (the diagram in the header); any other is refused. Descriptors of
// refused and of accepted frames are closed on other threads, since their file systems may hang.
absl::Status ServerConnection::Handle(IncomingFrame incoming) {
  const Frame& frame = incoming.frame;
  ForeignFds fds(std::move(incoming.fds));
  const bool takes_files = state_ == State::kFiles && std::holds_alternative<DescriptorsFrame>(frame);
  const bool takes_fds = takes_files || std::holds_alternative<OfferFrame>(frame) ||
                         std::holds_alternative<OfferFilesFrame>(frame) ||
                         std::holds_alternative<HandOverFrame>(frame);
  if (!fds.empty() && !takes_fds) {
    return absl::InvalidArgumentError(
        absl::StrCat("handle the frame ", FrameName(frame),
                     ": the frame came with a descriptor, but this kind of frame has none", kOneRelease));
  }
  if (state_ == State::kHello) {
    if (const auto* hello = std::get_if<HelloFrame>(&frame)) return HandleHello(*hello);
  } else if (state_ == State::kReady || state_ == State::kHandsOver) {
    if (const auto* over = std::get_if<HandOverFrame>(&frame)) return HandleHandOver(*over, std::move(fds));
    if (const auto* stream = std::get_if<StreamFrame>(&frame)) {
      // The answer is RING, once the server has room (GiveRing).
      stream_bytes_ = stream->image_bytes;
      state_ = State::kAwaitsRing;
      return absl::OkStatus();
    }
    if (state_ == State::kHandsOver) {
      if (const auto* parts = std::get_if<PartsFrame>(&frame)) return HandleParts(*parts);
      return OutOfTurn(frame);
    }
    if (const auto* claim = std::get_if<ClaimFrame>(&frame)) return HandleClaim(*claim);
    if (const auto* offer = std::get_if<OfferFrame>(&frame)) return HandleOffer(*offer, std::move(fds));
    if (const auto* files = std::get_if<OfferFilesFrame>(&frame)) {
      files_expected_ = files->count;
      state_ = State::kFiles;
      return TakeFiles(std::move(fds));
    }
  } else if (takes_files) {
    return TakeFiles(std::move(fds));
  } else if (state_ == State::kLeased) {
    if (std::holds_alternative<FollowFrame>(frame) && follower_ == nullptr) return HandleFollow();
    if (std::holds_alternative<ClosedFrame>(frame) && held_->is_device()) return HandleClosed();
    if (std::holds_alternative<OpeningFrame>(frame) && held_->is_device() && !opening_) {
      opening_ = true;
      return absl::OkStatus();
    }
  }
  return OutOfTurn(frame);
}

absl::Status ServerConnection::HandleHello(const HelloFrame& hello) {
  if (hello.version != kHandleProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "greet the daemon: the client speaks version ", hello.version,
        " of the handle protocol, but the daemon speaks version ", kHandleProtocolVersion, kOneRelease));
  }
  state_ = State::kReady;
  return writer_.Add(HelloAckFrame{});
}

absl::Status ServerConnection::HandleClaim(const ClaimFrame& frame) {
  std::optional<Claim> claim = shared_.tickets->Take(frame.ticket, SteadyNow());
  if (!claim) {
    return absl::NotFoundError(
        "check a ticket: the ticket is unknown, has expired, or was claimed before; get the artifact again");
  }
  // The claim is held from here on: where a check fails, its end releases the lease.
  auto held = std::make_unique<HeldClaim>(*std::move(claim), shared_.leases);
  // Damage may have been found after the ticket was issued.
  TC_RETURN_IF_ERROR(shared_.fenced->Check(held->claim().handles.replica_id));
  // Without a way to learn of the client's death its memory could be freed while it is in use.
  if (held->is_device()) {
    TC_ASSIGN_OR_RETURN(process_, OpenPeerProcess(socket_.get()));
    TC_RETURN_IF_ERROR(CheckNotReserved(process_, socket_));
  }
  NoteHolder(*held);
  TC_RETURN_IF_ERROR(AddHandles(held->claim()));
  held_ = std::move(held);
  of_daemon_ = held_->claim().holder == Holder::kDaemon;
  state_ = State::kLeased;
  return absl::OkStatus();
}

// Only clients that hold host memory are noted: a daemon that comes back waits for those before it uses the
// memory again.
void ServerConnection::NoteHolder(HeldClaim& held) const {
  const Claim& claim = held.claim();
  if (!*shared_.on_host_claim || claim.holder != Holder::kClient) return;
  if (!std::holds_alternative<HostHandles>(claim.handles.memory)) return;
  const absl::StatusOr<ucred> peer = PeerCredentials(socket_.get());
  absl::StatusOr<UniqueFd> process = OpenPeerProcess(socket_.get());
  // A client that cannot be watched is served like any other, without a call of on_host_claim.
  if (!peer.ok() || !process.ok() || !CheckNotReserved(*process, socket_).ok()) return;
  held.Accompany((*shared_.on_host_claim)(peer->pid, *std::move(process), claim));
}

// The kernel passes kMaxFrameDescriptors with one message, and a large replica has more.
absl::Status ServerConnection::AddHandles(const Claim& claim) {
  const std::span<const int> fds = claim.fds;
  const auto part = [fds](size_t begin) {
    const std::span<const int> here = fds.subspan(begin, std::min(kMaxFrameDescriptors, fds.size() - begin));
    return std::vector<int>(here.begin(), here.end());
  };
  TC_RETURN_IF_ERROR(writer_.Add(HandlesFrame{claim.handles}, part(0)));
  for (size_t begin = kMaxFrameDescriptors; begin < fds.size(); begin += kMaxFrameDescriptors) {
    TC_RETURN_IF_ERROR(writer_.Add(DescriptorsFrame{}, part(begin)));
  }
  return absl::OkStatus();
}

absl::Status ServerConnection::HandleOffer(const OfferFrame& frame, ForeignFds fds) {
  Offer offer;
  offer.bytes = frame.bytes;
  if (frame.ipc) {
    if (!fds.empty()) {
      return absl::InvalidArgumentError(
          "offer device memory: the frame came with a descriptor; send no descriptor");
    }
    offer.ipc = *frame.ipc;
  } else {
    TC_ASSIGN_OR_RETURN(offer.memfd, TakeMemory(std::move(fds), frame.bytes, socket_));
  }
  return AddOffer(std::move(offer));
}

absl::Status ServerConnection::HandleHandOver(const HandOverFrame& frame, ForeignFds fds) {
  if (handed_.size() == kMaxHandedMemories) {
    return absl::InvalidArgumentError(absl::StrCat("hand memory over: a put can hand over at most ",
                                                   kMaxHandedMemories, " memories; stream the rest"));
  }
  HandedMemory memory{.bytes = frame.bytes, .pool_id = frame.pool_id, .replica_id = frame.replica_id};
  if (frame.replica_id.empty()) {
    TC_ASSIGN_OR_RETURN(memory.memfd, TakeMemory(std::move(fds), frame.bytes, socket_));
  } else if (!fds.empty()) {
    return absl::InvalidArgumentError(
        "hand a replica over: the frame came with a descriptor; send no descriptor");
  }
  handed_.push_back(std::move(memory));
  state_ = State::kHandsOver;
  return absl::OkStatus();
}

absl::Status ServerConnection::HandleParts(const PartsFrame& frame) {
  // The state kHandsOver says that there is one.
  HandedMemory& memory = handed_.back();
  // Each frame takes some of the bounded number of parts, so a client cannot keep the server's thread busy.
  if (frame.parts.empty()) {
    return absl::InvalidArgumentError("hand memory over: the frame PARTS has no parts; send at least 1 part");
  }
  if (frame.parts.size() > kMaxHandedParts - handed_parts_) {
    return absl::InvalidArgumentError(absl::StrCat("hand memory over: a put can hand over at most ",
                                                   kMaxHandedParts, " parts; stream the rest"));
  }
  for (const HandedPart& part : frame.parts) {
    // The places in a replica are checked by the put, which knows the replica. Here nothing does.
    if (memory.memfd && (part.offset > memory.bytes || part.bytes > memory.bytes - part.offset)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "hand memory over: a part of ", part.bytes, " bytes at offset ", part.offset,
          " reaches past the memory of ", memory.bytes, " bytes; send a part inside the memory"));
    }
  }
  handed_parts_ += frame.parts.size();
  memory.parts.insert(memory.parts.end(), frame.parts.begin(), frame.parts.end());
  return absl::OkStatus();
}

absl::Status ServerConnection::TakeFiles(ForeignFds fds) {
  // Each frame brings as many descriptors as the kernel passes, and the last one brings the rest.
  const size_t wanted = std::min(kMaxFrameDescriptors, files_expected_ - files_.size());
  if (fds.size() != wanted) {
    return absl::InvalidArgumentError(absl::StrCat(
        "offer files: ", fds.size(), " descriptors came with the frame instead of ", wanted, kOneRelease));
  }
  for (const UniqueFd& fd : fds.fds()) {
    TC_RETURN_IF_ERROR(CheckNotReserved(fd, socket_));
    TC_RETURN_IF_ERROR(CheckMayBeRead(fd.get()));
  }
  files_.Add(std::move(fds));
  if (files_.size() < files_expected_) return absl::OkStatus();
  Offer offer;
  offer.files = std::move(files_);
  return AddOffer(std::move(offer));
}

absl::Status ServerConnection::AddOffer(Offer offer) {
  offer_token_ = shared_.offers->Add(std::move(offer));
  state_ = State::kOffered;
  return writer_.Add(OfferedFrame{offer_token_});
}

bool ServerConnection::GiveRing(RingRoom::Hold room) {
  // `room` goes with the ring: where the ring cannot be made, the next connection in the queue gets it.
  const RingShape shape = ring_shape();
  // The ring has a descriptor of its own for the socket: a put on another thread may end it after this
  // connection is gone.
  absl::StatusOr<std::shared_ptr<PutRing>> ring = PutRing::Create(
      shape, shared_.stall_timeout, std::move(room), UniqueFd(fcntl(socket_.get(), F_DUPFD_CLOEXEC, 0)));
  if (!ring.ok()) return Refuse(ring.status());
  ring_ = *std::move(ring);
  Offer offer;
  offer.bytes = stream_bytes_;
  offer.handed = std::move(handed_);
  // The last copy of the offer's ring ends the connection, whether a put has used the ring or it was never
  // taken. ring_ itself is not such a copy, so the connection does not keep itself open.
  offer.ring = std::shared_ptr<PutRing>(ring_.get(), [ring = ring_](PutRing*) { ring->End(); });
  offer_token_ = shared_.offers->Add(std::move(offer));
  // From here on a put has this long to take the offer.
  put_by_ = SteadyNow() + shared_.stall_timeout;
  state_ = State::kStreams;
  if (absl::Status added = writer_.Add(RingFrame{offer_token_, shape}, {ring_->fd()}); !added.ok()) {
    return Refuse(added);
  }
  return Flush();
}

absl::Status ServerConnection::HandleClosed() {
  follower_.reset();
  held_.reset();
  state_ = State::kReleased;
  return writer_.Add(ClosedFrame{});
}

absl::Status ServerConnection::HandleFollow() {
  follower_ = std::make_unique<Follower>(held_->claim(), on_news_);
  return absl::OkStatus();
}

std::optional<pid_t> ServerConnection::HolderOf(std::string_view replica_id,
                                                const std::function<bool(const void* hold)>& except) const {
  if (state_ != State::kLeased || held_->claim().handles.replica_id != replica_id) return std::nullopt;
  if (except != nullptr && except(held_->claim().hold.get())) return std::nullopt;
  const absl::StatusOr<ucred> peer = PeerCredentials(socket_.get());
  // The process that connected, which may have passed the connection to another one since.
  return peer.ok() ? peer->pid : 0;
}

bool ServerConnection::Fence(std::string_view replica_id, const absl::Status& why) {
  if (state_ != State::kLeased || held_->claim().handles.replica_id != replica_id) return false;
  follower_.reset();  // the error is the end of what it is told
  CHECK_OK(writer_.Add(ErrorFrame{why}));
  return true;
}

std::optional<OrphanedClaim> ServerConnection::TakeOrphan() {
  if (held_ == nullptr || !held_->is_device()) return std::nullopt;
  // A client that never sent OPENING does not have the memory open. Where the connection ended otherwise than
  // by the client, OPENING may still lie unread in the socket, so the claim is kept.
  if (!opening_ && reader_.closed()) return std::nullopt;
  return OrphanedClaim{std::move(process_), std::move(held_)};
}

}  // namespace tensorcast
