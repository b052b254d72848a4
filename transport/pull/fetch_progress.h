// The state of one fetch of a connection: its requested and arrived bytes, and its result. Bytes that arrive
// in image order are digested on arrival.
//
// Internal to this folder. Belongs to the channel's thread. No function fails; the connection reports a
// failed fetch with Fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/steady_time.h"
#include "base/task_queue.h"
#include "core/artifact/digest.h"
#include "core/memory/host_pool.h"
#include "transport/transport.h"

namespace tensorcast::transport::pull {

// The arguments of one Pull::Fetch, already checked. `done` is called once, on a channel's thread.
struct Fetch {
  FetchId id = 0;  // from 1 on, unique in the pull
  uint64_t offset = 0;
  uint64_t bytes = 0;
  std::vector<HostSpan> destination;
  SteadyTime deadline;
  FetchDone done;
  bool announced = false;  // the source has announced all chunks of the range
};

// The bytes of a fetch that one request asks for: a range in one span of the fetch's destination.
struct RequestedPart {
  FetchId fetch = 0;  // after this fetch has ended, arriving bytes are dropped
  uint64_t offset = 0;
  HostSpan destination;

  // The destination of image bytes [image_offset, image_offset + bytes). REQUIRES: this part contains the
  // range.
  HostSpan Place(uint64_t image_offset, uint64_t bytes) const {
    return destination.subspan(image_offset - offset, bytes);
  }
};

class FetchProgress {
 public:
  explicit FetchProgress(Fetch fetch)
      : fetch_(std::move(fetch)), left_(fetch_.bytes), digested_to_(fetch_.offset) {}

  const Fetch& fetch() const { return fetch_; }
  uint64_t left() const { return left_; }  // bytes that have not arrived

  bool all_requested() const { return requested_ == fetch_.bytes; }
  // The next bytes to request, at most `max_bytes`. REQUIRES: not all_requested().
  RequestedPart NextPart(uint64_t max_bytes);

  // Call when image bytes from `offset` on have arrived. If `held` is empty, the bytes are already in
  // `place`; if `held` has the bytes, Put copies them to `place`. Digests the bytes if they are the next in
  // image order.
  void Put(uint64_t offset, HostSpan place, ConstHostSpan held);
  // Counts `bytes` bytes as arrived in their destination.
  void Arrived(uint64_t bytes) { left_ -= bytes; }

  // Between ReceiveStarted and ReceiveEnded of a piece, the channel may write to the destination at any time.
  void ReceiveStarted() { ++receives_; }
  void ReceiveEnded() { --receives_; }
  bool receiving() const { return receives_ > 0; }

  bool failed() const { return !failure_.ok(); }
  void Fail(const absl::Status& why) { failure_ = why; }

  // True if the fetch can complete: it has failed or all its bytes have arrived, and the channel has stopped
  // writing to its destination.
  bool over() const { return !receiving() && (failed() || left_ == 0); }
  // REQUIRES: over().
  FetchResult Result() const;

  // The connection's timer for this fetch. It expires at the deadline or, after a failure, when the channel
  // must be closed by force.
  TaskQueue::TimerId timer() const { return timer_; }
  void set_timer(TaskQueue::TimerId timer) { timer_ = timer; }

 private:
  Fetch fetch_;
  uint64_t requested_ = 0;  // the number of bytes that have been requested
  size_t span_ = 0;         // NextPart takes bytes from the front of fetch_.destination[span_]
  uint64_t left_;
  uint64_t digested_to_;  // digest_ has the image bytes before this offset
  DigestBuilder digest_;
  int receives_ = 0;  // pieces with ReceiveStarted and no ReceiveEnded yet
  absl::Status failure_;
  TaskQueue::TimerId timer_ = TaskQueue::kNoTimer;
};

}  // namespace tensorcast::transport::pull
