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

class ClientChannel;  // the connection (client_channel.h)
struct OfferFrame;

class ClaimedReplica {
 public:
  // Connects, claims the ticket and receives the handles. NOT_FOUND for a ticket that is used, expired or
  // unknown; UNAVAILABLE when nobody listens.
  static absl::StatusOr<std::unique_ptr<ClaimedReplica>> Claim(const std::string& socket_path,
                                                               std::string_view ticket, SteadyTime deadline);
  ~ClaimedReplica();
  ClaimedReplica(const ClaimedReplica&) = delete;
  ClaimedReplica& operator=(const ClaimedReplica&) = delete;

  const ReplicaHandles& handles() const { return handles_; }
  // The pool (host) or the packed file (disk); -1 for device memory. Owned by this object.
  int fd() const { return fd_.get(); }

  // Maps a host replica's extents side by side: one contiguous read-only image of image_bytes, valid while
  // this object lives. FAILED_PRECONDITION for other kinds. Idempotent.
  absl::StatusOr<ConstHostSpan> MapImage();

  // For device memory, after CloseIpc: tells the daemon that nothing here has it open any more. Without it
  // the daemon keeps the memory until this process ends.
  absl::Status AcknowledgeClosed();

  // True once the daemon closed the connection (it stopped or died): the mapping stays readable, the lease is
  // over.
  bool lost() const;

 private:
  class ImageMap;
  ClaimedReplica(std::unique_ptr<ClientChannel> channel, ReplicaHandles handles, UniqueFd fd);

  // The mapping goes before the connection: the daemon may reuse the memory as soon as that is closed.
  const std::unique_ptr<ClientChannel> channel_;
  const ReplicaHandles handles_;
  const UniqueFd fd_;
  std::unique_ptr<ImageMap> map_;
  bool acknowledged_ = false;
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
  ~OfferedMemory();
  OfferedMemory(const OfferedMemory&) = delete;
  OfferedMemory& operator=(const OfferedMemory&) = delete;

  const std::string& token() const { return token_; }  // names the offer in PutArtifact

 private:
  OfferedMemory(std::unique_ptr<ClientChannel> channel, std::string token);
  static absl::StatusOr<std::unique_ptr<OfferedMemory>> Make(const std::string& socket_path,
                                                             const OfferFrame& offer, int memfd,
                                                             SteadyTime deadline);

  const std::unique_ptr<ClientChannel> channel_;
  const std::string token_;
};

}  // namespace tensorcast
