// The source's end of one connection. It sends WELCOME and answers the receiver's requests for the image of a
// serving (source_serving.h).
//
// If the image is in place, the connection sends pieces from registered memory, in the order of the requests.
// Any other image is read on the serving threads.
//
//   open --(BYE, error, lost, revoked)--> ended
//   open --(the receiver's certificate is denied, the image failed)--> leaving
//   leaving --(the receiver has closed, or took too long)--> ended
//
// While an image fills, requests for missing chunks are answered with NOT_HERE. After FOLLOW the source
// announces new chunks, at most once per announce_interval.
//
// Except for its constructor and PostEnd, a connection belongs to its channel's thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "base/task_queue.h"
#include "core/replica/announcer.h"
#include "core/replica/availability.h"
#include "transport/pull/message_channel.h"
#include "transport/pull/source_serving.h"
#include "transport/pull/wire.h"
#include "transport/serving.h"
#include "transport/transport.h"

namespace tensorcast::transport::pull {

// A source's limits for each connection.
struct SourceLimits {
  uint32_t requests = 64;
  uint64_t request_bytes = uint64_t{64} << 20;
  // Max bytes of a piece, at most kMaxPieceBytes. The receiver's HELLO may lower the limit.
  uint32_t piece_bytes = uint32_t{256} << 10;
  // Max concurrent reads of an image that is not in place. One more piece may wait to be sent.
  int reads = 2;
  absl::Duration announce_interval = absl::Milliseconds(10);  // min time between announcements of new chunks
  // True: the receiver reads the source's memory directly, and a REQUEST breaks the protocol.
  bool one_sided = false;
};

class SourceConnection : public MessageChannel::Handler,
                         public ServedConnection,
                         public std::enable_shared_from_this<SourceConnection> {
 public:
  // `queue`: the task queue of the channel's thread. `queue` and `threads` must outlive the connection.
  SourceConnection(TaskQueue* queue, ServingThreads* threads, const SourceLimits& limits,
                   std::shared_ptr<SourceServing> serving);

  // Thread-safe.
  TaskQueue& queue() { return *queue_; }

  // Sends WELCOME and becomes the channel's handler. If End was already called, sends only End's reason and
  // ends the channel. REQUIRES: the connection has joined its serving.
  void Start(std::shared_ptr<MessageChannel> channel);
  // Sends `why` to the receiver, if the channel can send now, and ends the connection. Idempotent.
  void End(const absl::Status& why);
  // Thread-safe.
  void PostEnd(const absl::Status& why) override;

  absl::Status OnFrame(const Frame& frame) override;
  void OnLost(const absl::Status& why) override;
  void OnDenied(const absl::Status& why) override;
  void Refill() override;
  void OnSent(uint64_t piece_bytes) override;

 private:
  struct Asked {
    uint64_t id = 0;
    uint64_t offset = 0;                 // of the next byte to send
    uint64_t left = 0;                   // bytes not yet handed to the channel
    std::deque<ConstHostSpan> in_place;  // the bytes left to send, if the image is in place
    bool reading = false;                // a serving thread reads bytes, if the image is not in place
  };

  absl::Status On(const Request& request);
  absl::Status On(const Cancel& cancel);
  absl::Status On(const Follow& follow);
  absl::Status CheckRange(const Request& request) const;
  // Hands the next pieces of an image in place to the channel, while has_room().
  void SendPieces();
  void StartReads();
  void ReadDone(uint64_t request_id, absl::StatusOr<ServedPiece> piece);
  void SendRead(Asked& asked, const ServedPiece& read);
  void SendNextPiece(Asked& asked, ConstHostSpan piece, std::shared_ptr<void> hold);
  void Refuse(uint64_t request_id, absl::Status status);
  // Forgets all pending requests: no more of their bytes are sent.
  void DropRequests();
  std::deque<Asked>::iterator Find(uint64_t request_id);
  // Called on any thread, under the availability's lock, when the image gets chunks or the availability ends.
  void PostFillingChanged();
  void FillingChanged();
  // Announces new chunks to the receiver, if announce_interval has passed.
  void SendNews();
  // Stops serving and sends the reason `why`. Ends the connection when the receiver closes it, at the latest
  // after `patience`.
  void Leave(const absl::Status& why, absl::Duration patience);
  void Close(std::optional<Frame> last);

  TaskQueue* const queue_;
  ServingThreads* const threads_;
  const SourceLimits limits_;
  const std::shared_ptr<SourceServing> serving_;
  std::shared_ptr<MessageChannel> channel_;  // null before Start and after the end
  bool leaving_ = false;                     // sends only the rest of the current frame, and the reason
  absl::Status end_;                         // the reason, if the connection ended before Start
  bool ended_ = false;
  TaskQueue::TimerId leave_timer_ = TaskQueue::kNoTimer;
  std::deque<Asked> requests_;
  uint64_t owed_bytes_ = 0;  // requested bytes that are not yet sent
  uint64_t last_request_id_ = 0;
  bool fills_ = false;                  // WELCOME said that the image fills
  std::optional<Announcer> announcer_;  // set by FOLLOW
  bool has_news_ = false;               // there may be chunks to announce
  SteadyTime next_news_ = SteadyTime::InfinitePast();
  TaskQueue::TimerId news_timer_ = TaskQueue::kNoTimer;
  std::atomic<bool> change_posted_ = false;
  Availability::Watch filling_watch_;
  int reading_ = 0;
  // The number of pieces that are being read, or are read and not yet sent. Any thread may decrement it.
  const std::shared_ptr<std::atomic<int>> held_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace tensorcast::transport::pull
