// A channel is one connection of the pull protocol: it carries messages in both directions, and pieces of an
// image from the source to the receiver. Each lane implements this interface. Both ends of the protocol
// (SourceConnection, PullConnection) use it.
//
// A channel delivers in the order of sending, except that pieces may overtake each other if keeps_order() is
// false. It belongs to one thread, the owner of its queue, and calls its handler there. Errors: OnLost
// reports once that the channel is broken.
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
    // The handler may send more now: pieces as long as has_room(), and requests. Called by Flush, and after
    // bytes were sent or received.
    virtual void Refill() = 0;

    // For a source's end: the receiver or the kernel has taken `piece_bytes` more bytes of pieces.
    virtual void OnSent(uint64_t /*piece_bytes*/) {}

    // The methods below are for a receiver's end.

    // The channel is connected, and the handler now sends HELLO. Called again when an earlier connection
    // failed and the channel has made another one.
    virtual void OnConnected() {}
    // The head of a DATA frame arrived. Return an error as for OnFrame; after OK the bytes of the piece
    // follow.
    virtual absl::Status OnPiece(const Data& /*piece*/) {
      return absl::InvalidArgumentError(
          "the receiver sent DATA, which only a source sends; run one release on both nodes");
    }
    // The destination of these bytes of the piece: as many bytes, or none if the bytes are no longer wanted.
    // `rest` describes the bytes that have not arrived.
    virtual HostSpan Place(const Data& /*rest*/) { return {}; }
    // These bytes of the piece arrived. `held`: the bytes in the channel's buffer, which the handler must
    // copy before it returns. Empty: the bytes are in the destination, or were dropped.
    virtual void OnPieceBytes(const Data& /*arrived*/, ConstHostSpan /*held*/) {}
    // Between OnReceiveStarted and OnReceived the channel may write to the piece's destination at any time.
    // Such a piece has no OnPieceBytes.
    virtual void OnReceiveStarted(const Data& /*piece*/) {}
    virtual void OnReceived(const Data& /*piece*/, const absl::Status& /*status*/) {}
  };

  virtual ~MessageChannel() = default;

  // Thread-safe.
  virtual TaskQueue& queue() = 0;
  virtual bool OnThread() const = 0;

  // Sends a message now or with the next Flush.
  virtual void Send(const Frame& frame) = 0;
  // Sends a message before the pieces that wait.
  virtual void SendAhead(const Frame& frame) { Send(frame); }
  // Sends a piece. Its memory must not change until the channel releases `hold`. REQUIRES: has_room().
  virtual void SendPiece(const Data& head, ConstHostSpan piece, std::shared_ptr<void> hold) = 0;
  virtual bool has_room() const = 0;
  // The number of frames, pieces included, that wait or that the other end has not taken; and whether one of
  // them is from SendAhead.
  virtual size_t queued_frames() const = 0;
  virtual bool has_ahead() const { return false; }
  // Drops the messages and pieces of which no byte has been sent.
  virtual void DropUnsent() {}
  // Sends what can be sent now.
  virtual void Flush() = 0;

  // Ends the conversation. Sends `last` if that is possible at once; without `last`, closes the connection by
  // force. Calls `ended`, possibly before End returns: from then on the channel does not call the handler,
  // and does not access memory that it was given. To be called once.
  virtual void End(std::optional<Frame> last, std::function<void()> ended) = 0;

  // The methods below are for a receiver's end.

  // Begins to connect; OnConnected or OnLost follows, possibly before Connect returns.
  virtual void Connect(Handler* /*handler*/) {}
  // To be called when the source has welcomed the pull. An error ends the pull.
  virtual absl::Status Welcomed() { return absl::OkStatus(); }
  // Whether this end itself delays reading (a receive limit). Silence is then not the other end's fault.
  virtual bool held_back() const { return false; }
  // Whether the pieces of a request arrive in the order of the image.
  virtual bool keeps_order() const { return true; }
  // The longest piece that the channel can receive, in bytes; 0: any.
  virtual uint32_t max_piece_bytes() const { return 0; }
  // A new id, larger than that of every earlier request on this connection, earlier conversations included.
  virtual uint64_t NextRequestId() = 0;
  // True if the receiver reads the source's memory with ReadRemote, and sends no REQUEST. OnReceived reports
  // the end of each read.
  virtual bool one_sided() const { return false; }
  virtual void ReadRemote(const Data& /*piece*/, HostSpan /*destination*/) {}
};

}  // namespace tensorcast::transport::pull
