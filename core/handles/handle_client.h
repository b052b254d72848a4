// The client's end of the handle socket. Each claim has its own connection, and that connection is the lease:
// it ends when the object is destroyed or the process dies. Thread-compatible.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "core/handles/handles.h"
#include "core/memory/reserved_range.h"

namespace tensorcast {

class Availability;
class AvailabilityMirror;  // availability_mirror.h
class ClientChannel;       // the connection (client_channel.h)

class ClaimedReplica {
 public:
  // Connects, claims the ticket, and receives and checks the handles. NOT_FOUND for a ticket that is used,
  // expired or unknown; UNAVAILABLE when no daemon listens, or when the cancellation ends the wait for the
  // daemon; INVALID_ARGUMENT when no memory can be behind the handles, or when the memory could vanish during
  // a read. If `groups` is not null, PERMISSION_DENIED unless the server runs as this process's user, as
  // root, or in one of these groups (CheckPeer in base/posix/unix_socket.h).
  static absl::StatusOr<std::unique_ptr<ClaimedReplica>> Claim(const std::string& socket_path,
                                                               std::string_view ticket, SteadyTime deadline,
                                                               const Cancellation& cancellation = {},
                                                               const std::vector<gid_t>* groups = nullptr);
  ~ClaimedReplica();
  ClaimedReplica(const ClaimedReplica&) = delete;
  ClaimedReplica& operator=(const ClaimedReplica&) = delete;

  const ReplicaHandles& handles() const { return handles_; }
  // The artifact of the lease: that of the handles, or of the claim that was taken over last.
  std::string artifact_id() const;
  // The pool's segments (host), in the order of the handles, or the packed file (disk); none for device
  // memory. Owned by this object.
  const std::vector<UniqueFd>& fds() const { return fds_; }
  // Closes the descriptors: a large replica has many, and a mapping no longer needs them. MapImage calls it.
  void CloseFds() { fds_.clear(); }

  // Maps a host replica's extents to their places in one contiguous read-only image of image_bytes, valid
  // while this object lives. Reading a part of the image that the handles do not cover raises SIGSEGV. With
  // `copy_on_write` this process may write to the image, in private pages, unless writable() is false because
  // there was no memory for such pages. FAILED_PRECONDITION for other kinds of replicas. Idempotent.
  absl::StatusOr<ConstHostSpan> MapImage(bool copy_on_write = false);
  bool writable() const { return writable_; }

  // For a filling or partial host replica: the chunks, of `chunk_bytes` each, that may be read. The set grows
  // with the daemon's announcements until all chunks are present or this object is destroyed. Its end says
  // why no more chunks will come (UNAVAILABLE: the daemon is gone; or the replica got memory that these
  // handles do not name, and must be claimed again). It has only chunks that the handles cover. Waits for the
  // first answer. FAILED_PRECONDITION for other kinds, and for a second call.
  absl::StatusOr<std::shared_ptr<const Availability>> Follow(uint64_t chunk_bytes, SteadyTime deadline);

  // Call it for device memory before OpenIpc: the daemon then keeps the memory until AcknowledgeClosed, or
  // until this process ends. UNAVAILABLE: the daemon is gone, and the memory must not be opened.
  absl::Status AnnounceOpening();

  // Call it for device memory after CloseIpc: tells the daemon that this process does not have the memory
  // open.
  absl::Status AcknowledgeClosed();

  // DATA_LOSS, with the daemon's message, after the daemon has found that the bytes are damaged. The memory
  // stays while this object lives.
  absl::Status CheckIntact() const;

  // True after the daemon closed the connection (it stopped or died). The mapping stays readable; the lease
  // is over until TakeOver.
  bool lost() const;
  // Continues with the lease of `again`, a claim on a restarted daemon, or on the version that a replica
  // under a live lease has become. FAILED_PRECONDITION unless both claims are on the same host memory, both
  // are whole, and Follow was not called on this one. May be called on any thread.
  absl::Status TakeOver(std::unique_ptr<ClaimedReplica> again);

 private:
  // An extent of host memory, identified by its file, independent of the process and of segment numbers.
  struct Piece {
    uint64_t image_offset = 0;
    dev_t device = 0;
    ino_t file = 0;
    uint64_t offset = 0;
    uint64_t bytes = 0;
    friend bool operator==(const Piece&, const Piece&) = default;
  };

  ClaimedReplica(std::unique_ptr<ClientChannel> channel, ReplicaHandles handles, std::vector<UniqueFd> fds);
  ClientChannel* channel() const;
  absl::StatusOr<ReservedRange> MapExtents(ReservedRange::Access access) const;
  absl::Status CheckIsDevice() const;

  mutable absl::Mutex mutex_;
  mutable absl::Status damage_ ABSL_GUARDED_BY(mutex_);
  // Declared before the mapping, so that it closes after the mapping is gone: the daemon may reuse the memory
  // as soon as the connection is closed.
  std::unique_ptr<ClientChannel> channel_ ABSL_GUARDED_BY(mutex_);
  std::string artifact_id_ ABSL_GUARDED_BY(mutex_);
  const ReplicaHandles handles_;
  std::vector<Piece> pieces_;  // of host memory
  std::vector<UniqueFd> fds_;
  std::unique_ptr<AvailabilityMirror> mirror_;  // once it is followed
  std::optional<ReservedRange> image_;          // once it is mapped
  bool writable_ = false;
  bool announced_ = false;
  bool acknowledged_ = false;
};

// Hands memory or open files to the daemon for a put, and holds the connection until the put is done.
class OfferedMemory {
 public:
  // `memfd` must be sealed (F_SEAL_WRITE | SHRINK | GROW). It is duplicated into the daemon. The
  // cancellation as above.
  static absl::StatusOr<std::unique_ptr<OfferedMemory>> OfferMemfd(const std::string& socket_path, int memfd,
                                                                   uint64_t bytes, SteadyTime deadline,
                                                                   const Cancellation& cancellation = {});
  static absl::StatusOr<std::unique_ptr<OfferedMemory>> OfferDevice(const std::string& socket_path,
                                                                    const IpcHandle& handle,
                                                                    SteadyTime deadline);
  // Offers files that this process has open for reading, in the order in which ImportArtifact names them.
  // Each descriptor is duplicated into the daemon, which reads the file with it. INVALID_ARGUMENT for more
  // than kMaxOfferedFiles (codec.h).
  static absl::StatusOr<std::unique_ptr<OfferedMemory>> OfferFiles(const std::string& socket_path,
                                                                   std::span<const int> fds,
                                                                   SteadyTime deadline,
                                                                   const Cancellation& cancellation = {});
  ~OfferedMemory();
  OfferedMemory(const OfferedMemory&) = delete;
  OfferedMemory& operator=(const OfferedMemory&) = delete;

  const std::string& token() const { return token_; }  // names the offer in PutArtifact or ImportArtifact

 private:
  OfferedMemory(std::unique_ptr<ClientChannel> channel, std::string token);
  struct Offering;
  static absl::StatusOr<std::unique_ptr<OfferedMemory>> Make(const std::string& socket_path,
                                                             const Offering& offering, SteadyTime deadline,
                                                             const Cancellation& cancellation);

  const std::unique_ptr<ClientChannel> channel_;
  const std::string token_;
};

}  // namespace tensorcast
