// One image that a source serves under one pull id, and the connections that serve it (source_connection.h).
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/replica/availability.h"
#include "transport/pull/wire.h"
#include "transport/serving.h"
#include "transport/transport.h"

namespace tensorcast::transport::pull {

// A connection that serves the image.
class ServedConnection {
 public:
  virtual ~ServedConnection() = default;
  // Starts to end the connection on its channel's thread, with a reason for the receiver. Does not wait. When
  // the channel has ended, the connection calls SourceServing::Leave. Thread-safe.
  virtual void PostEnd(const absl::Status& why) = 0;
};

class SourceServing {
 public:
  // `receiver`: the name in the certificate of the node that may pull; empty: any node that has the pull id.
  SourceServing(PullId id, std::shared_ptr<ServedImage> image, std::string receiver);

  const PullId& id() const { return id_; }
  const std::string& receiver() const { return receiver_; }
  uint64_t image_bytes() const { return image_bytes_; }
  bool in_place() const { return in_place_; }
  const ServedImage& image() const { return *image_; }
  // Null if the image was complete when this object was constructed.
  const std::shared_ptr<const Availability>& availability() const { return availability_; }
  // True while chunks of the image are missing.
  bool filling() const { return availability_ != nullptr && !availability_->complete(); }
  ServeCounter& counter() { return counter_; }

  // A connection serves the image from Join to Leave. Join fails with NOT_FOUND after Revoke, with
  // RESOURCE_EXHAUSTED at kMaxConnections, and with the image's own error if the image has failed.
  static constexpr size_t kMaxConnections = 16;
  absl::Status Join(std::shared_ptr<ServedConnection> connection) ABSL_LOCKS_EXCLUDED(mutex_);
  void Leave(const std::shared_ptr<ServedConnection>& connection) ABSL_LOCKS_EXCLUDED(mutex_);

  // Calls ServedImage::Read, which may block. CANCELLED after Revoke.
  absl::StatusOr<ServedPiece> Read(uint64_t offset, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Call after a successful Read, when the returned piece is released.
  void ReadReleased() ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends all connections, and blocks until nothing reads the image. After Revoke the image may be freed.
  // REQUIRES: not on a channel's thread.
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
  int reads_ ABSL_GUARDED_BY(mutex_) = 0;  // running reads, and pieces that are not yet released
  absl::flat_hash_set<std::shared_ptr<ServedConnection>> connections_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::transport::pull
