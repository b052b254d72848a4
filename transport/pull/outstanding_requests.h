// The outstanding requests of a connection, and the number of requested bytes that have not arrived. A
// request is outstanding until all of its bytes have arrived, or until the source has said that it sends no
// more. A request may outlive its fetch; the receiver drops the bytes of such a request.
//
// Internal to this folder. Belongs to the channel's thread. Errors are INTERNAL: the source broke the
// protocol.
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

  // Adds a request. `remote_read`: the receiver reads the bytes itself, and the source sends none.
  void Add(uint64_t id, const RequestedPart& part, bool remote_read);
  // Checks and counts the head of a DATA frame, before the piece arrives. Fails if the bytes were not
  // requested, exceed their request, were already sent, or break the order that `keeps_order` promises.
  absl::Status Book(const Data& piece);
  // `bytes` bytes of a request have arrived, or will never arrive. REQUIRES: the request is outstanding.
  void Moved(uint64_t id, uint64_t bytes);
  // The source sends no more bytes of the request. REQUIRES: the request is outstanding.
  void End(uint64_t id);

  // Whether the source still has to send bytes of this request.
  bool IsDue(uint64_t id) const;
  // The requests of a fetch for which the source still has to send bytes.
  std::vector<uint64_t> DueOf(FetchId fetch) const;
  // REQUIRES: the request is outstanding.
  const RequestedPart& part(uint64_t id) const { return requests_.at(id).part; }

  size_t size() const { return requests_.size(); }
  uint64_t bytes() const { return bytes_; }  // requested bytes that have not arrived

 private:
  struct Outstanding {
    RequestedPart part;
    uint64_t due = 0;                      // bytes for which no DATA frame has arrived
    uint64_t left = 0;                     // bytes that have not arrived
    std::map<uint64_t, uint64_t> arrived;  // offset -> end of each piece; empty if keeps_order_
  };

  const bool keeps_order_;
  absl::flat_hash_map<uint64_t, Outstanding> requests_;
  uint64_t bytes_ = 0;
};

}  // namespace tensorcast::transport::pull
