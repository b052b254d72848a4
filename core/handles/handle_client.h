// The client's end of the handle socket. Each ClaimedReplica has its own connection, which is the lease. The
// lease ends when the ClaimedReplica is destroyed or the process dies. Thread-compatible.
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
  // Connects, claims the ticket, and receives and checks the handles. Errors:
  // - NOT_FOUND: the ticket is used, expired or unknown;
  // - UNAVAILABLE: no daemon listens, or the cancellation ended the wait for the daemon;
  // - INVALID_ARGUMENT: the handles are not valid, or their memory could be removed during a read;
  // - PERMISSION_DENIED: `groups` is not null, and the server does not run as this process's user, as root,
  //   or in one of these groups (CheckPeer in base/posix/unix_socket.h).
  static absl::StatusOr<std::unique_ptr<ClaimedReplica>> Claim(const std::string& socket_path,
                                                               std::string_view ticket, SteadyTime deadline,
                                                               const Cancellation& cancellation = {},
                                                               const std::vector<gid_t>* groups = nullptr);
  ~ClaimedReplica();
  ClaimedReplica(const ClaimedReplica&) = delete;
  ClaimedReplica& operator=(const ClaimedReplica&) = delete;

  const ReplicaHandles& handles() const { return handles_; }
  // The id of the leased artifact. TakeOver may change the id.
  std::string artifact_id() const;
  // Owned by this object. Host: the pool's segments, in the order of the handles. Disk: the packed file.
  // Device: empty.
  const std::vector<UniqueFd>& fds() const { return fds_; }
  // Closes fds(). MapImage calls this function, because a mapping needs no descriptors.
  void CloseFds() { fds_.clear(); }

  // Maps a host replica as one contiguous image of image_bytes bytes, until this object is destroyed. A read
  // outside the extents of the handles raises SIGSEGV. Without `copy_on_write` the mapping is read-only. With
  // it this process may write to private copies of the pages if memory for them is available;
  // writable() is then true. FAILED_PRECONDITION for a replica in other memory. Idempotent.
  absl::StatusOr<ConstHostSpan> MapImage(bool copy_on_write = false);
  bool writable() const { return writable_; }

  // Returns the availability of a filling or partial host replica, in chunks of `chunk_bytes`. The result has
  // the chunks that the daemon announces, if the handles cover them. Blocks until the first announcement. The
  // availability ends when all chunks are present, or with the reason why no more chunks will come. The
  // reason UNAVAILABLE means that the daemon is gone, or that the replica got memory that these handles do
  // not cover: claim the replica again. FAILED_PRECONDITION for other memory, and for a second call.
  absl::StatusOr<std::shared_ptr<const Availability>> Follow(uint64_t chunk_bytes, SteadyTime deadline);

  // For device memory; call it before OpenIpc. The daemon then keeps the memory until AcknowledgeClosed, or
  // until this process ends. UNAVAILABLE: the daemon is gone, and the memory must not be opened.
  absl::Status AnnounceOpening();

  // For device memory; call it after CloseIpc. Tells the daemon that this process no longer has the memory
  // open.
  absl::Status AcknowledgeClosed();

  // DATA_LOSS, with the daemon's message, if the daemon has found that the bytes are damaged. The memory
  // stays mapped until this object is destroyed.
  absl::Status CheckIntact() const;

  // True once the daemon has stopped or died: the connection is closed, and the lease has ended. The mapping
  // stays readable.
  bool lost() const;
  // Replaces the lease of this object by the lease of `again`. `again` is a claim on a restarted daemon, or
  // on the new version of a replica that was rewritten under a live lease. FAILED_PRECONDITION if the two
  // claims are on different memory, or if Follow was called on this object. Device memory stays open. May be
  // called on any thread. With device memory, do not call it at the same time as AnnounceOpening or
  // AcknowledgeClosed.
  absl::Status TakeOver(std::unique_ptr<ClaimedReplica> again);

 private:
  // An extent of host memory. Names its file by device and inode, because descriptors and segment numbers
  // differ between connections.
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
  // Whether both claims are on the same host memory, or on the same device memory.
  bool HasMemoryOf(const ClaimedReplica& other) const;

  mutable absl::Mutex mutex_;
  mutable absl::Status damage_ ABSL_GUARDED_BY(mutex_);
  // Declared before the mapping, so that the connection is closed after the memory is unmapped: the daemon
  // may then reuse the memory at once.
  std::unique_ptr<ClientChannel> channel_ ABSL_GUARDED_BY(mutex_);
  std::string artifact_id_ ABSL_GUARDED_BY(mutex_);
  const ReplicaHandles handles_;
  std::vector<Piece> pieces_;  // of host memory
  std::vector<UniqueFd> fds_;
  std::unique_ptr<AvailabilityMirror> mirror_;  // set by Follow
  std::optional<ReservedRange> image_;          // set by MapImage
  bool writable_ = false;
  bool announced_ = false;
  bool acknowledged_ = false;
};

// Offers memory or open files to the daemon for a put. The offer ends when this object is destroyed: destroy
// this object after the put.
class OfferedMemory {
 public:
  // `memfd` must be sealed (F_SEAL_WRITE | SHRINK | GROW). The daemon gets a duplicate of the descriptor.
  // UNAVAILABLE if the cancellation ends the wait for the daemon.
  static absl::StatusOr<std::unique_ptr<OfferedMemory>> OfferMemfd(const std::string& socket_path, int memfd,
                                                                   uint64_t bytes, SteadyTime deadline,
                                                                   const Cancellation& cancellation = {});
  // `handle` names device memory of this process. Keep it allocated until the returned object is destroyed.
  static absl::StatusOr<std::unique_ptr<OfferedMemory>> OfferDevice(const std::string& socket_path,
                                                                    const IpcHandle& handle,
                                                                    SteadyTime deadline);
  // Offers files that this process has open for reading, in the order in which ImportArtifact names them. The
  // daemon gets a duplicate of each descriptor. INVALID_ARGUMENT unless `fds` has 1 to kMaxOfferedFiles
  // (codec.h) files.
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
