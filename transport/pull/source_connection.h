// The source's side of pulls: one image under one pull id, and the connections of the receiver that it was
// given to.
//
// A connection answers requests: from an image in place it sends straight from the pool, in the order of the
// requests; one that is not in place is read on the serving threads, two requests at a time, and sent as it
// comes. Bytes are handed to the kernel by copies only, so when a connection has ended nothing reads the
// image for it any more; a read under way on a serving thread is waited for.
//
//   open --(BYE, error, lost, revoked)--> ended
//   open --(the receiver is not let in any more, the image failed)--> leaving
//   leaving --(the receiver has closed, or took too long)--> ended
//
// Of an image that fills it sends what there is, and refuses the rest. A receiver that asks for it (FOLLOW)
// is told what comes: at once, and then at most once in an interval.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "core/replica/announcer.h"
#include "core/replica/availability.h"
#include "transport/rate_limit.h"
#include "transport/serving.h"
#include "transport/tcp/byte_stream.h"
#include "transport/tcp/frame_io.h"
#include "transport/tcp/io_loop.h"
#include "transport/tcp/peer_watch.h"
#include "transport/pull/wire.h"
#include "transport/transport.h"

namespace tensorcast::transport::tcp {

class SourceConnection;

// One image under one pull id. Thread-safe.
class SourceServing {
 public:
  // `receiver`: the node it is for, by the name in its certificate; empty: any with the pull id.
  SourceServing(PullId id, std::shared_ptr<ServedImage> image, std::string receiver);

  const PullId& id() const { return id_; }
  const std::string& receiver() const { return receiver_; }
  uint64_t image_bytes() const { return image_bytes_; }
  bool in_place() const { return in_place_; }
  const ServedImage& image() const { return *image_; }
  // Of an image that fills, or did when it was served; null: everything is there.
  const std::shared_ptr<const Availability>& availability() const { return availability_; }
  // Whether something is missing.
  bool filling() const { return availability_ != nullptr && !availability_->complete(); }
  ServeCounter& counter() { return counter_; }

  // A connection serves it from here to Leave. NOT_FOUND once it is revoked, RESOURCE_EXHAUSTED when it has
  // kMaxConnections, and what the image failed with once it has.
  static constexpr size_t kMaxConnections = 16;
  absl::Status Join(std::shared_ptr<SourceConnection> connection) ABSL_LOCKS_EXCLUDED(mutex_);
  void Leave(const std::shared_ptr<SourceConnection>& connection) ABSL_LOCKS_EXCLUDED(mutex_);

  // ServedImage::Read, which may block. CANCELLED once it is revoked.
  absl::StatusOr<ServedPiece> Read(uint64_t offset, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // After each Read that was OK, when its piece is released.
  void ReadReleased() ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends its connections and waits until nothing reads the image any more. Not on a loop's thread.
  void Revoke() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return connections_.empty() && reads_ == 0; }

  const PullId id_;
  const std::string receiver_;
  const std::shared_ptr<ServedImage> image_;
  const uint64_t image_bytes_;
  const bool in_place_;
  const std::shared_ptr<const Availability> availability_;
  ServeCounter counter_;
  absl::Mutex mutex_;
  bool revoked_ ABSL_GUARDED_BY(mutex_) = false;
  int reads_ ABSL_GUARDED_BY(mutex_) = 0;  // under way, or with pieces that are not released
  absl::flat_hash_set<std::shared_ptr<SourceConnection>> connections_ ABSL_GUARDED_BY(mutex_);
};

// What a source offers to each connection.
struct SourceLimits {
  uint32_t requests = 64;
  uint64_t request_bytes = uint64_t{64} << 20;
  uint32_t piece_bytes = uint32_t{256} << 10;  // at most kMaxPieceBytes
  // At a time, of an image that is not in place; one piece more may wait to be sent.
  int reads = 2;
  absl::Duration announce_interval =
      absl::Milliseconds(10);  // between what a receiver is told of an image that fills
  RateLimit* rate = nullptr;   // of all that is sent; null: none. Outlives the connections
};

// The connection of a receiver after its HELLO. Belongs to its loop's thread but for the constructor.
class SourceConnection : public IoLoop::Handler, public std::enable_shared_from_this<SourceConnection> {
 public:
  // The threads must outlive it.
  SourceConnection(IoLoop* loop, ServingThreads* threads, const SourceLimits& limits,
                   std::shared_ptr<SourceServing> serving);
  ~SourceConnection() override;

  IoLoop& loop() { return *loop_; }

  // Says WELCOME and serves, unless it was ended before. REQUIRES: it has joined its serving.
  void Start(std::unique_ptr<ByteStream> stream);
  // Tells the receiver why, if that can be said now, and closes. Idempotent.
  void End(const absl::Status& why);

  void OnReady(uint32_t events) override;

 private:
  struct Asked {
    uint64_t id = 0;
    uint64_t offset = 0;  // of the next byte to send
    uint64_t left = 0;
    std::deque<ConstHostSpan> in_place;  // the bytes that are left, when they lie in place
    bool reading = false;                // of an image that is not
  };

  void ReadFrames();
  // Those that have arrived whole.
  absl::Status TakeFrames();
  absl::Status Take(const Frame& frame);
  absl::Status On(const Request& request);
  absl::Status On(const Cancel& cancel);
  absl::Status On(const Follow& follow);
  absl::Status CheckRange(const Request& request) const;
  // The next pieces, in place, into the writer.
  void QueuePieces();
  void StartReads();
  void ReadDone(uint64_t request_id, absl::StatusOr<ServedPiece> piece);
  void QueueRead(Asked& asked, const ServedPiece& piece);
  void Refuse(uint64_t request_id, absl::Status status);
  std::deque<Asked>::iterator Find(uint64_t request_id);
  // The image has more, or is over. On any thread, under the availability's lock.
  void PostFillingChanged();
  void FillingChanged();
  // What the receiver was not told yet into the writer, when it is time.
  void QueueNews();
  // The receiver is not one any more that would be let in.
  void Dismiss(const absl::Status& why);
  // Ends it with patience: a receiver that takes what is under way within that time is told why.
  void Leave(const absl::Status& why, absl::Duration patience);
  // Sends what the socket takes, and waits for it where it takes no more.
  void Flush();
  // Whether nothing may be sent yet; it is flushed again when it may.
  bool WaitsForRate();
  void Close();

  IoLoop* const loop_;
  ServingThreads* const threads_;
  const SourceLimits limits_;
  const std::shared_ptr<SourceServing> serving_;
  std::unique_ptr<ByteStream> stream_;  // null before Start and after the end
  bool leaving_ = false;                // nothing is sent any more but the rest of a frame, and why
  TaskQueue::TimerId leave_timer_ = TaskQueue::kNoTimer;
  bool ended_ = false;
  PeerWatch peer_watch_;
  TaskQueue::TimerId rate_timer_ = TaskQueue::kNoTimer;
  std::optional<IoLoop::WatchId> watch_;
  uint32_t events_ = 0;
  FrameReader reader_;
  FrameWriter writer_;
  std::deque<Asked> requests_;
  uint64_t last_request_id_ = 0;
  bool fills_ = false;                  // so the receiver was told
  std::optional<Announcer> announcer_;  // once it has asked for it
  bool has_news_ = false;               // perhaps
  SteadyTime next_news_ = SteadyTime::InfinitePast();
  TaskQueue::TimerId news_timer_ = TaskQueue::kNoTimer;
  std::atomic<bool> change_posted_ = false;
  Availability::Watch filling_watch_;
  int reading_ = 0;
  // Pieces that are being read or were read and not sent. They are released on any thread.
  const std::shared_ptr<std::atomic<int>> held_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace tensorcast::transport::tcp
