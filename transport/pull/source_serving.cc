#include "transport/pull/source_serving.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast::transport::pull {
namespace {

absl::Status Revoked() { return absl::NotFoundError("the source revoked the pull; ask for a new grant"); }

}  // namespace

SourceServing::SourceServing(PullId id, std::shared_ptr<ServedImage> image, std::string receiver)
    : id_(id),
      receiver_(std::move(receiver)),
      image_(std::move(image)),
      image_bytes_(image_->image_bytes()),
      in_place_(image_->in_place()),
      availability_(image_->availability()) {}

absl::Status SourceServing::Join(std::shared_ptr<ServedConnection> connection) {
  if (availability_ != nullptr && availability_->ended()) TC_RETURN_IF_ERROR(availability_->end());
  absl::MutexLock lock(&mutex_);
  if (revoked_) return Revoked();
  if (connections_.size() >= kMaxConnections) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the pull already has ", kMaxConnections,
                     " connections, which is the limit; use the open connections"));
  }
  connections_.insert(std::move(connection));
  return absl::OkStatus();
}

void SourceServing::Leave(const std::shared_ptr<ServedConnection>& connection) {
  absl::MutexLock lock(&mutex_);
  connections_.erase(connection);
}

absl::StatusOr<ServedPiece> SourceServing::Read(uint64_t offset, uint64_t bytes) {
  {
    absl::MutexLock lock(&mutex_);
    if (revoked_) {
      return absl::CancelledError("the source revoked the pull; the receiver asks for another source");
    }
    // Revoke waits for these: the image may go when it returns.
    ++reads_;
  }
  // Without the lock: it may block on a disk, or on a free buffer.
  absl::StatusOr<ServedPiece> piece = image_->Read(offset, bytes);
  if (piece.ok() && (piece->bytes.empty() || piece->bytes.size() > bytes)) {
    piece = absl::InternalError(absl::StrCat("read ", bytes, " bytes of the served image: the image gave ",
                                             piece->bytes.size(),
                                             " bytes; report this defect of the source's daemon"));
  }
  if (!piece.ok()) ReadReleased();
  return piece;
}

void SourceServing::ReadReleased() {
  absl::MutexLock lock(&mutex_);
  --reads_;
}

// From `revoked_` on no connection joins and no read begins. What has begun is counted (connections_,
// reads_), and this waits until both are empty.
void SourceServing::Revoke() {
  std::vector<std::shared_ptr<ServedConnection>> connections;
  {
    absl::MutexLock lock(&mutex_);
    revoked_ = true;
    connections.assign(connections_.begin(), connections_.end());
  }
  // Each ends on its own thread, and the end of all is awaited.
  for (const std::shared_ptr<ServedConnection>& connection : connections) connection->PostEnd(Revoked());
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &SourceServing::Idle));
}

}  // namespace tensorcast::transport::pull
