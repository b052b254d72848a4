// The client's end of the handle socket. Each claim has a connection of its own, and that connection is the
// lease: destroying the object, or dying, ends it. Thread-compatible.
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
  // Connects, claims the ticket and receives the handles, which are checked. NOT_FOUND for a ticket that is
  // used, expired or unknown; UNAVAILABLE when no daemon listens; INVALID_ARGUMENT when the handles are such
  // that no memory can be behind them, or that it may go while it is read. The cancellation ends the wait for
  // the daemon, which is then UNAVAILABLE, too. `groups`: where not null, PERMISSION_DENIED unless the server
  // is of this process's user, of root, or in one of these groups (CheckPeer in base/posix/unix_socket.h).
  static absl::StatusOr<std::unique_ptr<ClaimedReplica>> Claim(const std::string& socket_path,
                                                               std::string_view ticket, SteadyTime deadline,
                                                               const Cancellation& cancellation = {},
                                                               const std::vector<gid_t>* groups = nullptr);
  ~ClaimedReplica();
  ClaimedReplica(const ClaimedReplica&) = delete;
  ClaimedReplica& operator=(const ClaimedReplica&) = delete;

  const ReplicaHandles& handles() const { return handles_; }
  // The pool's segments (host), in the order of the handles, or the packed file (disk); none for device
  // memory. Owned by this object.
  const std::vector<UniqueFd>& fds() const { return fds_; }
  // Closes the descriptors: a large replica has many, and a mapping needs them no more. MapImage calls it.
  void CloseFds() { fds_.clear(); }

  // Maps a host replica's extents where they belong in one contiguous read-only image of image_bytes, valid
  // while this object lives. Touching a hole, where the handles do not cover the image, is a SIGSEGV.
  // FAILED_PRECONDITION for other kinds. Idempotent. `copy_on_write`: this process may write to it, in
  // pages of its own, unless writable() says that there was no memory for such pages.
  absl::StatusOr<ConstHostSpan> MapImage(bool copy_on_write = false);
  bool writable() const { return writable_; }

  // For a host replica that may fill yet, or is partial: which of its chunks, of so many bytes each, may be
  // read. It grows as the daemon announces more, until all are there or this object goes. Its end says why no
  // more will come (UNAVAILABLE: the daemon is gone; or the replica has got memory that these handles do not
  // name, and must be claimed again). Only chunks that the handles cover are among them. Waits for the first
  // answer. FAILED_PRECONDITION for other kinds, and for a second call.
  absl::StatusOr<std::shared_ptr<const Availability>> Follow(uint64_t chunk_bytes, SteadyTime deadline);

  // For device memory, before OpenIpc: from then on the daemon keeps it until AcknowledgeClosed, or this
  // process ends. UNAVAILABLE: the daemon is gone, and nothing may be opened.
  absl::Status AnnounceOpening();

  // For device memory, after CloseIpc: tells the daemon that this process has it not open any more, or never
  // had.
  absl::Status AcknowledgeClosed();

  // DATA_LOSS once the daemon has found that the bytes here are damaged, with its message; then always.
  // The memory stays as it is while this object lives.
  absl::Status CheckIntact() const;

  // True once the daemon closed the connection (it stopped or died): the mapping stays readable, the lease is
  // over, unless it is taken again.
  bool lost() const;
  // Goes on with the lease of `again`, a claim on a restarted daemon. FAILED_PRECONDITION unless
  // both are of the very same host memory, whole, and this one has no follower. On any thread.
  absl::Status TakeOver(std::unique_ptr<ClaimedReplica> again);

 private:
  // Of host memory: an extent by its file, whichever process made it and however it is numbered.
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
  // The mapping goes before the connection: the daemon may reuse the memory as soon as that is closed.
  std::unique_ptr<ClientChannel> channel_ ABSL_GUARDED_BY(mutex_);
  const ReplicaHandles handles_;
  std::vector<Piece> pieces_;  // of host memory
  std::vector<UniqueFd> fds_;
  std::unique_ptr<AvailabilityMirror> mirror_;  // once it is followed
  std::optional<ReservedRange> image_;          // once it is mapped
  bool writable_ = false;
  bool announced_ = false;
  bool acknowledged_ = false;
};

// Hands memory, or open files, over for a put: holds the connection until the put is done.
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
  // Files that this process has open for reading: each descriptor is duplicated into the daemon, which reads
  // the files with it. In the order in which ImportArtifact names them; INVALID_ARGUMENT for more than
  // kMaxOfferedFiles (codec.h).
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
