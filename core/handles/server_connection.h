// The buffers and the protocol state of one connection at the server. Never waits: the server calls it when
// the socket is ready. Internal to this folder; used only on the server's thread.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "core/handles/follower.h"
#include "core/handles/frame_io.h"
#include "core/handles/held_claim.h"
#include "core/handles/put_ring.h"
#include "core/handles/ring_room.h"
#include "core/handles/ticket_table.h"

namespace tensorcast {

class ServerConnection {
 public:
  struct Shared {
    TicketTable* tickets;
    OfferTable* offers;
    const FencedReplicas* fenced;
    LeaseCounts* leases;
    const OnHostClaim* on_host_claim;
    absl::Duration stall_timeout;
  };

  // `deadline` is the time by which the last byte of the answer must be sent. `on_news` is called on
  // any thread when news_due() may have become earlier; it must not block.
  ServerConnection(UniqueFd socket, const Shared& shared, SteadyTime deadline, std::function<void()> on_news);
  // Drops an offer that no put has taken. Releases the claim, unless TakeOrphan has taken it.
  ~ServerConnection();

  // OnReadable, OnWritable, Refuse, GiveRing and TellNews return false when the connection is over and must
  // be destroyed.
  bool OnReadable();
  bool OnWritable();
  // Sends an ERROR with the reason, then ends the connection.
  bool Refuse(const absl::Status& reason);

  int fd() const { return socket_.get(); }
  bool of_daemon() const { return of_daemon_; }  // whether a daemon holds the claim
  bool wants_to_read() const { return state_ != State::kEnding; }
  bool wants_to_write() const { return !writer_.empty(); }
  // Whether the connection waits for GiveRing with room for a ring of ring_shape().
  bool wants_ring() const { return state_ == State::kAwaitsRing; }
  RingShape ring_shape() const { return RingShape::For(stream_bytes_); }
  bool GiveRing(RingRoom::Hold room);
  // The time at which to close the connection. InfiniteFuture while the connection holds a lease or an offer,
  // streams through a ring, or waits for a ring.
  SteadyTime deadline() const;
  // The time at which to call TellNews; InfiniteFuture if nothing is new, or if the client must first read.
  SteadyTime news_due() const;
  // Sends the due announcements (follower.h), if the client has sent FOLLOW.
  bool TellNews(SteadyTime now);

  // Returns the claim if the client may have its device memory open. Call it before the destructor.
  std::optional<OrphanedClaim> TakeOrphan();

  // The process that holds a claim on this replica; 0 if the process is unknown. nullopt if this connection
  // holds no claim on the replica, or if `except` returns true for the claim's hold.
  std::optional<pid_t> HolderOf(std::string_view replica_id,
                                const std::function<bool(const void* hold)>& except) const;
  // If the client holds a claim on this replica, queues an ERROR with `why`, and returns true. The client
  // keeps the claim.
  bool Fence(std::string_view replica_id, const absl::Status& why);

 private:
  //   kHello -HELLO-> kReady -CLAIM-> kLeased -CLOSED (device memory only)-> kReleased
  //                      |----OFFER-> kOffered
  //                      |----OFFER_FILES-> kFiles -DESCRIPTORS, until all are there-> kOffered
  //                      |----HAND_OVER-> kHandsOver, with PARTS and HAND_OVER, then STREAM
  //                      '----STREAM-> kAwaitsRing -GiveRing-> kStreams
  //
  // In kLeased the client may send FOLLOW once: the server then announces the replica's chunks. With device
  // memory it may send OPENING once: the client may then have the memory open.
  //
  // An unexpected or refused frame leads to an ERROR and to kEnding. A client may close the connection in any
  // state. The claim is then released, except for device memory that the client may have open (TakeOrphan).
  enum class State {
    kHello,       // waits for HELLO
    kReady,       // waits for CLAIM, OFFER, OFFER_FILES, HAND_OVER or STREAM
    kHandsOver,   // waits for PARTS, HAND_OVER or STREAM
    kFiles,       // waits for DESCRIPTORS
    kLeased,      // holds a claim
    kReleased,    // gave its claim back with CLOSED
    kOffered,     // holds an offer
    kAwaitsRing,  // waits for room for its ring
    kStreams,     // has a ring
    kEnding,      // sends its last bytes
  };

  absl::Status Handle(IncomingFrame incoming);
  absl::Status HandleHello(const HelloFrame& hello);
  absl::Status HandleClaim(const ClaimFrame& claim);
  absl::Status HandleOffer(const OfferFrame& offer, ForeignFds fds);
  absl::Status HandleHandOver(const HandOverFrame& frame, ForeignFds fds);
  absl::Status HandleParts(const PartsFrame& frame);
  absl::Status TakeFiles(ForeignFds fds);
  absl::Status AddOffer(Offer offer);
  absl::Status HandleClosed();
  absl::Status HandleFollow();
  void NoteHolder(HeldClaim& held) const;
  // Queues HANDLES, and DESCRIPTORS for further descriptors.
  absl::Status AddHandles(const Claim& claim);
  bool Flush();

  const UniqueFd socket_;
  const Shared shared_;
  const SteadyTime exchange_deadline_;
  const std::function<void()> on_news_;
  State state_ = State::kHello;
  FrameReader reader_{kMaxClientFrameBytes, kMaxFrameDescriptors};
  FrameWriter writer_;
  bool answered_ = false;  // the exchange is over
  std::unique_ptr<HeldClaim> held_;
  std::unique_ptr<Follower> follower_;  // of the held claim
  bool of_daemon_ = false;
  UniqueFd process_;  // pidfd of the peer, for device memory
  bool opening_ = false;
  uint32_t files_expected_ = 0;
  ForeignFds files_;
  std::string offer_token_;
  uint64_t stream_bytes_ = 0;         // the size of the image of STREAM
  std::vector<HandedMemory> handed_;  // the memory of HAND_OVER
  size_t handed_parts_ = 0;           // in all of handed_
  std::shared_ptr<PutRing> ring_;
  SteadyTime put_by_;  // the time by which a put must take the ring
};

}  // namespace tensorcast
