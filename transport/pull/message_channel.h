// One connection of the pull protocol. It carries messages in both directions, and pieces of an image from
// the source to the receiver. Each lane implements this interface; SourceConnection and PullConnection use
// it.
//
// Messages and pieces arrive in the order of sending, except messages of SendAhead. If keeps_order() is
// false, pieces may overtake each other. A channel belongs to the owner thread of its queue, and calls its
// handler on that thread. OnLost reports a broken channel once.
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
  // The user of one end of a channel. The handler must exist until End has called `ended`.
  class Handler {
   public:
    virtual ~Handler() = default;

    // A message other than DATA arrived. Returns an error if the other end broke the protocol; the channel
    // then calls OnLost with that error.
    virtual absl::Status OnFrame(const Frame& frame) = 0;
    // The connection is lost, or the other end broke the protocol. The handler must call End.
    virtual void OnLost(const absl::Status& why) = 0;
    // The certificate of the other end is no longer accepted.
    virtual void OnDenied(const absl::Status& why) { OnLost(why); }
    // The handler may now send requests, and pieces while has_room(). Called by Flush, and after bytes were
    // sent or received.
    virtual void Refill() = 0;

    // For a source's end: the receiver or the kernel has taken `piece_bytes` more bytes of pieces.
    virtual void OnSent(uint64_t /*piece_bytes*/) {}

    // The methods below are for a receiver's end.

    // The channel is connected; the handler must send HELLO. Called again if that connection failed and the
    // channel has made another connection.
    virtual void OnConnected() {}
    // The head of a DATA frame arrived. Returns an error as OnFrame does. If OnPiece returns OK, the
    // bytes of the piece follow.
    virtual absl::Status OnPiece(const Data& /*piece*/) {
      return absl::InvalidArgumentError(
          "the receiver sent DATA, which only a source sends; run one release on both nodes");
    }
    // Returns the destination of `rest`, the bytes of the piece that have not arrived. The destination has
    // the length of `rest`. If the destination is empty, the channel drops the bytes.
    virtual HostSpan Place(const Data& /*rest*/) { return {}; }
    // The part `arrived` of the piece is here. `held`: the bytes of this part, in a buffer that is valid
    // during the call; if `held` is empty, the bytes are in the destination, or were dropped.
    virtual void OnPieceBytes(const Data& /*arrived*/, ConstHostSpan /*held*/) {}
    // A piece that is received as a whole gets these two calls instead of OnPieceBytes. Between the two calls
    // the channel may write to the piece's destination at any time.
    virtual void OnReceiveStarted(const Data& /*piece*/) {}
    virtual void OnReceived(const Data& /*piece*/, const absl::Status& /*status*/) {}
  };

  virtual ~MessageChannel() = default;

  // Thread-safe.
  virtual TaskQueue& queue() = 0;
  virtual bool OnThread() const = 0;

  // Sends a message now or with the next Flush.
  virtual void Send(const Frame& frame) = 0;
  // Sends a message before all queued pieces.
  virtual void SendAhead(const Frame& frame) { Send(frame); }
  // Sends a piece. The piece's memory must not change until the channel releases `hold`. REQUIRES:
  // has_room().
  virtual void SendPiece(const Data& head, ConstHostSpan piece, std::shared_ptr<void> hold) = 0;
  virtual bool has_room() const = 0;
  // The number of frames, including pieces, that are queued or not yet taken by the other end.
  virtual size_t queued_frames() const = 0;
  // True while a frame of SendAhead is queued.
  virtual bool has_ahead() const { return false; }
  // Drops queued messages and pieces of which no byte was sent.
  virtual void DropUnsent() {}
  // Sends what can be sent now.
  virtual void Flush() = 0;

  // Ends the channel. Sends `last` if that is possible at once; without `last`, closes the connection by
  // force. Calls `ended`, possibly before End returns. After `ended` the channel no longer calls the handler,
  // and no longer accesses the memory of pieces. Call once.
  virtual void End(std::optional<Frame> last, std::function<void()> ended) = 0;

  // The methods below are for a receiver's end.

  // Begins to connect; OnConnected or OnLost follows, possibly before Connect returns.
  virtual void Connect(Handler* /*handler*/) {}
  // Call when WELCOME has arrived. An error breaks the pull.
  virtual absl::Status Welcomed() { return absl::OkStatus(); }
  // True while a receive limit of this process delays reading, so that silence is not the source's fault.
  virtual bool held_back() const { return false; }
  // Whether the pieces of a request arrive in the order of the image.
  virtual bool keeps_order() const { return true; }
  // The longest piece that the channel can receive, in bytes; 0: no limit.
  virtual uint32_t max_piece_bytes() const { return 0; }
  // A request id, larger than all earlier ids on this connection, including those of earlier pulls.
  virtual uint64_t NextRequestId() = 0;
  // True: the receiver reads the source's memory with ReadRemote, and sends no REQUEST. OnReceived reports
  // the result of each read.
  virtual bool one_sided() const { return false; }
  virtual void ReadRemote(const Data& /*piece*/, HostSpan /*destination*/) {}
};

}  // namespace tensorcast::transport::pull
