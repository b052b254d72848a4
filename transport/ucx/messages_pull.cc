// A pull by active messages: REQUESTs go out as credit allows, pieces come back as DATA and are received
// straight into the destination.
#include <algorithm>
#include <iterator>
#include <map>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "transport/ucx/ucx_pull.h"

namespace tensorcast::transport {
namespace {

// The pieces that have arrived do not overlap each other, so only the neighbours on both sides can.
bool Overlaps(const std::map<uint64_t, uint64_t>& arrived, uint64_t offset, uint64_t end) {
  auto next = arrived.lower_bound(offset);
  return (next != arrived.end() && next->first < end) ||
         (next != arrived.begin() && std::prev(next)->second > offset);
}

class MessagesPull : public UcxPullCore {
 public:
  using UcxPullCore::UcxPullCore;

  absl::Status OnPiece(const wire::DataHeader& header, ConstHostSpan piece) override;
  absl::StatusOr<HostSpan> OnRendezvous(const wire::DataHeader& header, uint64_t bytes) override;
  void OnRendezvousReceived(const wire::DataHeader& header, uint64_t bytes,
                            const absl::Status& status) override;

 protected:
  void Pump() override;
  void Abandon() override { abandoned_ = true; }
  bool RequestFailed(uint64_t request_id, const absl::Status& status) override;

 private:
  struct Outstanding {
    Part part;
    std::map<uint64_t, uint64_t> arrived;  // pieces: offset in the image -> end
    uint64_t left = 0;                     // bytes that are not in place yet
    // The source sends nothing more for it: what is left is being received, and only that may end it.
    bool failed = false;
  };
  // Checks a piece against its request and books it. Where it goes; empty when no fetch wants it any more.
  absl::StatusOr<HostSpan> Arrived(const wire::DataHeader& header, uint64_t bytes);
  void PieceOver(uint64_t request_id, uint64_t bytes);

  absl::flat_hash_map<uint64_t, Outstanding> requests_;
  bool abandoned_ = false;
};

void MessagesPull::Pump() {
  // The receiver paces the pull: so many requests are out at once, and each that is whole lets the next one
  // go.
  const size_t credit = std::min(context().parts_in_flight, welcome().max_requests);
  Part part;
  while (open() && requests_.size() < credit && NextPart(part)) {
    const uint64_t id = endpoint().NextRequestId();
    requests_.emplace(id, Outstanding{.part = part, .arrived = {}, .left = part.destination.size()});
    endpoint().SendControl(wire::Request{.id = id, .offset = part.offset, .bytes = part.destination.size()});
  }
}

absl::StatusOr<HostSpan> MessagesPull::Arrived(const wire::DataHeader& header, uint64_t bytes) {
  if (abandoned_) return HostSpan();
  auto it = requests_.find(header.request_id);
  if (it == requests_.end()) return absl::InternalError("the source sent a piece that was not asked for");
  Outstanding& request = it->second;
  if (request.failed) return absl::InternalError("the source sent a piece of a request that it had refused");
  const uint64_t begin = request.part.offset;
  const uint64_t size = request.part.destination.size();
  if (bytes == 0 || header.offset < begin || header.offset - begin > size ||
      bytes > size - (header.offset - begin) ||
      Overlaps(request.arrived, header.offset, header.offset + bytes)) {
    return absl::InternalError(absl::StrCat("the source sent a piece outside of its request: ", bytes,
                                            " bytes at ", header.offset, " for ", size, " at ", begin));
  }
  // Booked before it is copied: a piece that comes twice, or over another, is refused, and the bytes that are
  // in place are counted once.
  request.arrived.emplace(header.offset, header.offset + bytes);
  // Its fetch has failed; the piece still counts towards the end of its request.
  if (!Wanted(request.part.fetch)) {
    PieceOver(header.request_id, bytes);
    return HostSpan();
  }
  return request.part.destination.subspan(header.offset - begin, bytes);
}

absl::Status MessagesPull::OnPiece(const wire::DataHeader& header, ConstHostSpan piece) {
  TC_ASSIGN_OR_RETURN(const HostSpan destination, Arrived(header, piece.size()));
  if (!destination.empty()) {
    const uint64_t fetch = requests_.at(header.request_id).part.fetch;
    PieceOver(header.request_id, piece.size());
    TakePiece(fetch, header.offset, destination, piece);
    Pump();
  }
  return absl::OkStatus();
}

absl::StatusOr<HostSpan> MessagesPull::OnRendezvous(const wire::DataHeader& header, uint64_t bytes) {
  TC_ASSIGN_OR_RETURN(const HostSpan destination, Arrived(header, bytes));
  if (!destination.empty()) ReceiveStarted(requests_.at(header.request_id).part.fetch);
  return destination;
}

void MessagesPull::OnRendezvousReceived(const wire::DataHeader& header, uint64_t bytes,
                                        const absl::Status& status) {
  const uint64_t fetch = requests_.at(header.request_id).part.fetch;
  PieceOver(header.request_id, bytes);
  ReceiveEnded(fetch, bytes, status);
  Pump();
}

void MessagesPull::PieceOver(uint64_t request_id, uint64_t bytes) {
  auto it = requests_.find(request_id);
  it->second.left -= bytes;
  if (it->second.left == 0) requests_.erase(it);
}

bool MessagesPull::RequestFailed(uint64_t request_id, const absl::Status& status) {
  auto it = requests_.find(request_id);
  if (it == requests_.end() || it->second.failed) return false;
  Outstanding& request = it->second;
  request.failed = true;
  const uint64_t fetch = request.part.fetch;
  uint64_t arrived = 0;
  for (const auto& [offset, end] : request.arrived) arrived += end - offset;
  // What the source will not send any more. Pieces that are still being received end the rest.
  PieceOver(request_id, request.part.destination.size() - arrived);
  FailFetch(fetch, status);
  Pump();
  return true;
}

}  // namespace

std::shared_ptr<UcxPullCore> NewMessagesPull(const ReceiverContext& context, UcxDescriptor descriptor,
                                             SocketAddress address, std::string traceparent) {
  return std::make_shared<MessagesPull>(context, std::move(descriptor), address, std::move(traceparent));
}

}  // namespace tensorcast::transport
