// The interface of one connection of the pull protocol: messages in both directions, and pieces of an image
// from the source to the receiver. Each lane implements it, and both ends of the protocol (SourceConnection,
// PullConnection) use it.
//
// A channel keeps the order of sends, except that pieces may overtake each other if keeps_order() is false.
// It belongs to one thread, the owner of its queue, and calls its handler there. Errors: OnLost reports a
// broken channel, once.
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

    // A message other than DATA arrived. Return an error if the other end broke the protocol; OnLost follows
    // with that error.
    virtual absl::Status OnFrame(const Frame& frame) = 0;
    // The connection is lost, or the other end broke the protocol. The handler then calls End.
    virtual void OnLost(const absl::Status& why) = 0;
    // The other end's certificate no longer gives it access.
    virtual void OnDenied(const absl::Status& why) { OnLost(why); }
    // More may be sent: pieces as long as has_room(), and requests. Called by Flush, and when bytes moved.
    virtual void Refill() = 0;

    // For a source's end: the receiver or the kernel has taken this many bytes of pieces.
    virtual void OnSent(uint64_t /*piece_bytes*/) {}

    // For a receiver's end: the connection is made, possibly again after an earlier one failed. HELLO is due.
    virtual void OnConnected() {}
    // DATA arrived. Return an error as for OnFrame; otherwise the piece is booked, and its bytes follow.
    virtual absl::Status OnPiece(const Data& /*piece*/) {
      return absl::InvalidArgumentError("the receiver sent DATA, which only a source sends");
    }
    // The destination of these bytes of a booked piece, with as many bytes; empty if they are not wanted any
    // more.
    virtual HostSpan Place(const Data& /*rest*/) { return {}; }
    // These bytes of a booked piece arrived. `held` has the channel's copy, to be copied now; empty: the
    // bytes are in their place, or were dropped.
    virtual void OnPieceBytes(const Data& /*arrived*/, ConstHostSpan /*held*/) {}
    // Between OnReceiveStarted and OnReceived the channel may write to the place of these bytes.
    virtual void OnReceiveStarted(const Data& /*piece*/) {}
    virtual void OnReceived(const Data& /*piece*/, const absl::Status& /*status*/) {}
  };

  virtual ~MessageChannel() = default;

  // Thread-safe.
  virtual TaskQueue& queue() = 0;
  virtual bool OnThread() const = 0;

  // Sends a message, by itself or with the next Flush.
  virtual void Send(const Frame& frame) = 0;
  // Sends a message ahead of waiting pieces.
  virtual void SendAhead(const Frame& frame) { Send(frame); }
  // Sends a piece. Its memory must not change until the channel releases `hold`. REQUIRES: has_room().
  virtual void SendPiece(const Data& head, ConstHostSpan piece, std::shared_ptr<void> hold) = 0;
  virtual bool has_room() const = 0;
  // The number of messages that the other end has not taken, and whether one of them was sent ahead.
  virtual size_t queued_frames() const = 0;
  virtual bool has_ahead() const { return false; }
  // Drops messages and pieces of which no byte was sent.
  virtual void DropUnsent() {}
  // Sends what can be sent now.
  virtual void Flush() = 0;

  // Ends the conversation. Sends `last` if that is possible at once; without `last`, closes the connection by
  // force. Calls `ended` when the handler gets no more calls and the channel reads and writes no given memory
  // any more, possibly before End returns. To be called once.
  virtual void End(std::optional<Frame> last, std::function<void()> ended) = 0;

  // The methods below are for a receiver's end.
  // Begins to connect; OnConnected or OnLost follows, possibly before this returns.
  virtual void Connect(Handler* /*handler*/) {}
  // The source has welcomed the pull. An error ends it.
  virtual absl::Status Welcomed() { return absl::OkStatus(); }
  // Whether this end holds arriving bytes back, so that silence is not the other end's fault.
  virtual bool held_back() const { return false; }
  // Whether pieces of a request come in the order of the image.
  virtual bool keeps_order() const { return true; }
  // The longest piece that it can receive; 0: any.
  virtual uint32_t max_piece_bytes() const { return 0; }
  // A new id, which no request on this connection had, including requests of earlier conversations.
  virtual uint64_t NextRequestId() = 0;
  // Whether the receiver itself reads the source's memory, by ReadRemote instead of REQUEST. OnReceived
  // reports the end of each read.
  virtual bool one_sided() const { return false; }
  virtual void ReadRemote(const Data& /*piece*/, HostSpan /*destination*/) {}
};

}  // namespace tensorcast::transport::pull
