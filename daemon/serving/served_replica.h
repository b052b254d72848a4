// A leased replica, as a transport serves it: it holds the lease until it is released. Host replicas are
// served where they are; replicas on a GPU or a disk are read, piece by piece, through staging buffers.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/device/device_runtime.h"
#include "core/engine/replica_lease.h"
#include "daemon/serving/staging_buffers.h"
#include "transport/transport.h"

namespace tensorcast::daemon {

class ServedReplica : public transport::ServedImage {
 public:
  // Gives the lease back, whoever still has a reference to the image. REQUIRES: nobody reads it any more,
  // which is so once its Serving is destroyed.
  virtual void Release() = 0;
  // Time that went into staged reads, summed over those that overlapped.
  virtual absl::Duration reading() const { return absl::ZeroDuration(); }
};

// A staged read fails when no buffer comes back from any pull for `staging_wait`.
absl::StatusOr<std::shared_ptr<ServedReplica>> ServeReplica(std::shared_ptr<ReplicaLease> lease,
                                                            DeviceRuntime* devices,
                                                            std::shared_ptr<StagingBuffers> staging,
                                                            absl::Duration staging_wait);

}  // namespace tensorcast::daemon
