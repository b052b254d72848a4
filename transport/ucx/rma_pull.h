// A pull by one-sided reads of the segments that the descriptor names. The source takes no part in them.
// Private to this folder.
#pragma once

#include <deque>
#include <vector>

#include "transport/ucx/ucx_pull.h"

namespace tensorcast::transport {

class RmaPull : public UcxPullCore {
 public:
  RmaPull(const ReceiverContext& context, UcxDescriptor descriptor, SocketAddress address,
          std::string traceparent);

  absl::Status OnPiece(const wire::DataHeader& header, ConstHostSpan piece) override;
  absl::StatusOr<HostSpan> OnRendezvous(const wire::DataHeader& header, uint64_t bytes) override;
  void OnRendezvousReceived(const wire::DataHeader&, uint64_t, const absl::Status&) override {}

 protected:
  void Pump() override;
  absl::Status Opened() override;
  void Abandon() override;
  bool RequestFailed(uint64_t, const absl::Status&) override { return false; }

 private:
  bool NextPiece(Part& piece, uint64_t& address, ucp_rkey_h& rkey);
  void GetEnded(uint64_t fetch, uint64_t bytes, const absl::Status& status);

  std::vector<uint64_t> segment_ends_;  // in the image
  std::vector<ucp_rkey_h> rkeys_;
  std::deque<Part> rest_;  // of a part that crosses a segment's end
  uint32_t gets_ = 0;
  bool pumping_ = false;
  bool abandoned_ = false;
};

}  // namespace tensorcast::transport
