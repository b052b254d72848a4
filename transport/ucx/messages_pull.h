// A pull by active messages: REQUESTs go out as credit allows, pieces come back as DATA and are received
// straight into the destination. Private to this folder.
#pragma once

#include <map>

#include "absl/container/flat_hash_map.h"
#include "transport/ucx/ucx_pull.h"

namespace tensorcast::transport {

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
  };
  // Checks a piece against its request and books it. Where it goes; empty when nobody wants it any more.
  absl::StatusOr<HostSpan> Arrived(const wire::DataHeader& header, uint64_t bytes);
  void PieceOver(uint64_t request_id, uint64_t bytes);

  absl::flat_hash_map<uint64_t, Outstanding> requests_;
  bool abandoned_ = false;
};

}  // namespace tensorcast::transport
