// A connection's account of its requests. For each request, it has the bytes that the source still has to
// send. For all requests together, it has the bytes that have not arrived; the credit bounds these. A request
// is over when all of its bytes have arrived or the source has said that it sends no more. A request may
// outlive its fetch: its bytes that still arrive are dropped, but count in the credit until the request is
// over.
//
// Belongs to the channel's thread. Errors are INTERNAL: the source broke the protocol. Internal to this
// folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "transport/pull/fetch_progress.h"
#include "transport/pull/wire.h"
#include "transport/transport.h"

namespace tensorcast::transport::pull {

// The error of a source that broke the protocol; `what` names the message.
absl::Status SourceBroke(std::string_view what);

class OutstandingRequests {
 public:
  // `keeps_order`: whether the pieces of a request arrive in the order of the image.
  explicit OutstandingRequests(bool keeps_order) : keeps_order_(keeps_order) {}

  // Adds a request. With `remote_read` this end reads the bytes itself: the source sends none.
  void Add(uint64_t id, const RequestedPart& part, bool remote_read);
  // Books a piece before its bytes arrive: a source that sends bytes that were not requested, or sends bytes
  // twice or outside their request, is given up before anything is written.
  absl::Status Book(const Data& piece);
  // `bytes` bytes of a request have arrived, or will never arrive. REQUIRES: the request is not over.
  void Moved(uint64_t id, uint64_t bytes);
  // The source sends no more bytes of the request. REQUIRES: the request is not over.
  void End(uint64_t id);

  // Whether the source still has to send bytes of this request.
  bool IsDue(uint64_t id) const;
  // The requests of a fetch for which the source still has to send bytes.
  std::vector<uint64_t> DueOf(FetchId fetch) const;
  // REQUIRES: the request is not over.
  const RequestedPart& part(uint64_t id) const { return requests_.at(id).part; }

  size_t size() const { return requests_.size(); }
  uint64_t bytes() const { return bytes_; }  // bytes of all requests that have not arrived

 private:
  struct Outstanding {
    RequestedPart part;
    uint64_t due = 0;                      // bytes without a DATA frame so far
    uint64_t left = 0;                     // bytes that have not arrived
    std::map<uint64_t, uint64_t> arrived;  // pieces, offset -> end; only if the channel keeps no order
  };

  const bool keeps_order_;
  absl::flat_hash_map<uint64_t, Outstanding> requests_;
  uint64_t bytes_ = 0;
};

}  // namespace tensorcast::transport::pull
