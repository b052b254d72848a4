// One connection of the pull protocol, whatever carries it: messages in both directions, and pieces of an
// image from the source to the receiver. A lane implements it; the two ends of the protocol
// (SourceConnection, PullConnection) are written against it.
//
// A channel keeps what was sent in order, except that pieces may overtake each other where keeps_order() is
// false. It belongs to one thread, its queue's owner, and calls its handler there. Errors: whatever breaks a
// channel is told once, by OnLost.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/task_queue.h"
#include "core/memory/host_pool.h"
#include "transport/pull/wire.h"

namespace tensorcast::transport::pull {

class MessageChannel {
 public:
  // One end of the protocol. It must live until the channel has ended.
  class Handler {
   public:
    virtual ~Handler() = default;

    // A message other than DATA. An error means that the other end broke the protocol; OnLost follows with
    // it.
    virtual absl::Status OnFrame(const Frame& frame) = 0;
    // The connection is lost, or the other end broke the protocol. The handler then calls End.
    virtual void OnLost(const absl::Status& why) = 0;
    // The other end would not be let in any more.
    virtual void OnDenied(const absl::Status& why) { OnLost(why); }
    // More may be sent: pieces as long as has_room(), and requests. Called by Flush, and when bytes moved.
    virtual void Refill() = 0;

    // A source's end: so many bytes of pieces are with the receiver, or with the kernel.
    virtual void OnSent(uint64_t /*piece_bytes*/) {}

    // A receiver's end. The connection is made, perhaps once more after an earlier one failed: HELLO is due.
    virtual void OnConnected() {}
    // DATA. An error as for OnFrame; otherwise the piece is booked, and its bytes follow.
    virtual absl::Status OnPiece(const Data& /*piece*/) {
      return absl::InvalidArgumentError("DATA, which no receiver sends");
    }
    // Where these bytes of a booked piece go now: as many, or none where they are not wanted any more.
    virtual HostSpan Place(const Data& /*rest*/) { return {}; }
    // These bytes of a booked piece came. `held`: where the channel has them, to be copied now; empty: they
    // are in their place, or were dropped.
    virtual void OnPieceBytes(const Data& /*arrived*/, ConstHostSpan /*held*/) {}
    // From the first call on the channel may write to the place of these bytes until the second.
    virtual void OnReceiveStarted(const Data& /*piece*/) {}
    virtual void OnReceived(const Data& /*piece*/, const absl::Status& /*status*/) {}
  };

  virtual ~MessageChannel() = default;

  // Thread-safe.
  virtual TaskQueue& queue() = 0;
  virtual bool OnThread() const = 0;

  // Sends go out by themselves or with the next Flush.
  virtual void Send(const Frame& frame) = 0;
  // In front of pieces that wait.
  virtual void SendAhead(const Frame& frame) { Send(frame); }
  // `piece` is not touched by others until `hold` is released. REQUIRES: has_room().
  virtual void SendPiece(const Data& head, ConstHostSpan piece, std::shared_ptr<void> hold) = 0;
  virtual bool has_room() const = 0;
  // Messages that the other end has not taken, and whether one that was sent ahead is among them.
  virtual size_t queued_frames() const = 0;
  virtual bool has_ahead() const { return false; }
  // Drops what has not begun to be sent.
  virtual void DropUnsent() {}
  // Sends what can be sent now.
  virtual void Flush() = 0;

  // Ends the conversation. `last` is said where that is possible at once; none: the connection is closed by
  // force. `ended` is called when the handler is called no more, and nothing that was given to the channel is
  // read or written any more: perhaps before End returns. Called once.
  virtual void End(std::optional<Frame> last, std::function<void()> ended) = 0;

  // The rest is for a receiver's end.
  // Begins to connect; OnConnected or OnLost follows, perhaps before this returns.
  virtual void Connect(Handler* /*handler*/) {}
  // The source has welcomed the pull. An error ends it.
  virtual absl::Status Welcomed() { return absl::OkStatus(); }
  // Whether this end holds back what arrives, and so cannot blame the other for silence.
  virtual bool held_back() const { return false; }
  // Whether pieces of a request come in the order of the image.
  virtual bool keeps_order() const { return true; }
  // The longest piece that it can receive; 0: any.
  virtual uint32_t max_piece_bytes() const { return 0; }
  // Ids that no request on this connection had, those of earlier conversations included.
  virtual uint64_t NextRequestId() = 0;
  // Whether the receiver reads the source's memory by itself, by ReadRemote in place of REQUEST. OnReceived
  // tells the end of each read.
  virtual bool one_sided() const { return false; }
  virtual void ReadRemote(const Data& /*piece*/, HostSpan /*destination*/) {}
};

}  // namespace tensorcast::transport::pull
