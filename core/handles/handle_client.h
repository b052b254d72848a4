// The client's end of the handle socket. Each claim has a connection of its own, and that connection is the
// lease: destroying the object, or dying, ends it. Thread-compatible.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "core/handles/handles.h"

namespace tensorcast {

class ClaimedReplica {
 public:
  // Connects, claims the ticket and receives the handles. NOT_FOUND for a ticket that is used, expired or
  // unknown; UNAVAILABLE when nobody listens.
  static absl::StatusOr<std::unique_ptr<ClaimedReplica>> Claim(const std::string& socket_path,
                                                               std::string_view ticket, SteadyTime deadline);
  virtual ~ClaimedReplica() = default;

  virtual const ReplicaHandles& handles() const = 0;
  // The pool (host) or the packed file (disk); -1 for device memory. Owned by this object.
  virtual int fd() const = 0;

  // Maps a host replica's extents side by side: one contiguous read-only image of image_bytes, valid while
  // this object lives. FAILED_PRECONDITION for other kinds. Idempotent.
  virtual absl::StatusOr<ConstHostSpan> MapImage() = 0;

  // For device memory, after CloseIpc: tells the daemon that nothing here has it open any more. Without it
  // the daemon keeps the memory until this process ends.
  virtual absl::Status AcknowledgeClosed() = 0;

  // True once the daemon closed the connection (it stopped or died): the mapping stays readable, the lease is
  // over.
  virtual bool lost() const = 0;
};

// Hands memory over for a put: holds the connection until the put is done.
class OfferedMemory {
 public:
  // `memfd` must be sealed (F_SEAL_WRITE | SHRINK | GROW). It is duplicated into the daemon.
  static absl::StatusOr<std::unique_ptr<OfferedMemory>> OfferMemfd(const std::string& socket_path, int memfd,
                                                                   uint64_t bytes, SteadyTime deadline);
  static absl::StatusOr<std::unique_ptr<OfferedMemory>> OfferDevice(const std::string& socket_path,
                                                                    const IpcHandle& handle,
                                                                    SteadyTime deadline);
  virtual ~OfferedMemory() = default;
  virtual const std::string& token() const = 0;  // names the offer in PutArtifact
};

}  // namespace tensorcast
