// A pull by one-sided reads of the segments that the descriptor names. The source takes no part in them.
#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "base/status.h"
#include "transport/ucx/ucx_pull.h"

namespace tensorcast::transport {
namespace {

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

RmaPull::RmaPull(const ReceiverContext& context, UcxDescriptor descriptor, SocketAddress address,
                 std::string traceparent)
    : UcxPullCore(context, std::move(descriptor), address, std::move(traceparent)) {
  uint64_t end = 0;
  for (const UcxDescriptor::Segment& segment : this->descriptor().segments) {
    segment_ends_.push_back(end += segment.bytes);
  }
}

absl::Status RmaPull::OnPiece(const wire::DataHeader&, ConstHostSpan) {
  return absl::InternalError("the source sent DATA on the one-sided lane");
}

absl::StatusOr<HostSpan> RmaPull::OnRendezvous(const wire::DataHeader& header, uint64_t) {
  return OnPiece(header, {});
}

absl::Status RmaPull::Opened() {
  for (const std::string& packed : descriptor().rkeys) {
    ucp_rkey_h rkey = nullptr;
    TC_RETURN_IF_ERROR(
        UcxStatus(ucp_ep_rkey_unpack(endpoint().ep(), packed.data(), &rkey),
                  "unpacking the source's remote key (do both hosts have the same kind of network?)"));
    rkeys_.push_back(rkey);
  }
  return absl::OkStatus();
}

bool RmaPull::NextPiece(Part& piece, uint64_t& address, ucp_rkey_h& rkey) {
  bool found = false;
  while (!found && !rest_.empty()) {
    piece = rest_.front();
    rest_.pop_front();
    found = Wanted(piece.fetch);
  }
  if (!found && !NextPart(piece)) return false;
  const size_t index =
      std::upper_bound(segment_ends_.begin(), segment_ends_.end(), piece.offset) - segment_ends_.begin();
  const UcxDescriptor::Segment& segment = descriptor().segments[index];
  const uint64_t left = segment_ends_[index] - piece.offset;
  // One read is within one segment; the rest of the part is a read of its own.
  if (left < piece.destination.size()) {
    rest_.push_back({piece.fetch, piece.offset + left, piece.destination.subspan(left)});
    piece.destination = piece.destination.first(left);
  }
  address = segment.address + (segment.bytes - left);
  rkey = rkeys_[segment.rkey];
  return true;
}

void RmaPull::Pump() {
  if (pumping_) return;  // a read that ended at once: the loop below goes on
  pumping_ = true;
  Part piece;
  uint64_t address = 0;
  ucp_rkey_h rkey = nullptr;
  while (open() && gets_ < context().parts_in_flight && NextPiece(piece, address, rkey)) {
    ++gets_;
    ReceiveStarted(piece.fetch);
    endpoint().Get(piece.destination, address, rkey,
                   [this, fetch = piece.fetch, bytes = piece.destination.size()](const absl::Status& status) {
                     GetEnded(fetch, bytes, status);
                   });
  }
  pumping_ = false;
}

void RmaPull::GetEnded(uint64_t fetch, uint64_t bytes, const absl::Status& status) {
  --gets_;
  ReceiveEnded(fetch, bytes, status);
  if (abandoned_) {
    Abandon();
  } else {
    Pump();
  }
}

void RmaPull::Abandon() {
  abandoned_ = true;
  rest_.clear();
  // A remote key must outlive the reads that use it: the last of them comes here again.
  if (gets_ == 0) {
    for (ucp_rkey_h rkey : std::exchange(rkeys_, {})) ucp_rkey_destroy(rkey);
  }
}

}  // namespace

std::shared_ptr<UcxPullCore> NewRmaPull(const ReceiverContext& context, UcxDescriptor descriptor,
                                        SocketAddress address, std::string traceparent) {
  return std::make_shared<RmaPull>(context, std::move(descriptor), address, std::move(traceparent));
}

}  // namespace tensorcast::transport
