// How a client of this host reads a replica's bytes, and how the client offers its own bytes for a put.
//
// IssueTicket registers a lease of the engine with the handle socket and returns a one-use ticket. The
// connection that presents the ticket then holds the lease. For a put, a client offers memory, a ring or
// files on the handle socket, and the put's ingest reads only this offer. Thread-safe.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/device/device_runtime.h"
#include "core/handles/handle_server.h"
#include "core/memory/host_pool.h"
#include "core/replicas/commit_gate.h"
#include "core/replicas/replica_lease.h"
#include "core/source/chunk_source.h"
#include "daemon/session/handed_memory.h"

namespace tensorcast::daemon {

class Sessions {
 public:
  // All must outlive this object.
  Sessions(HandleServer* handles, const HostPool* pool, DeviceRuntime* devices)
      : handles_(handles), pool_(pool), devices_(devices) {}

  // Passes the lease to the process that claims the returned ticket. The lease ends if no process claims the
  // ticket in the ticket's lifetime. `holder` is the kind of that process. `companion` lives as long as the
  // lease.
  absl::StatusOr<std::string> IssueTicket(std::unique_ptr<ReplicaLease> lease,
                                          Holder holder = Holder::kClient,
                                          std::shared_ptr<void> companion = nullptr);

  // Issues a ticket for the replica of a live lease. The connection that claims the ticket shares the lease.
  // REQUIRES: `lease->lease()` is not null: the replica is neither being rewritten nor lost.
  absl::StatusOr<std::string> IssueLiveTicket(std::shared_ptr<LiveLease> lease);

  // The ids of the processes attached to this replica by a ticket, ascending; 0: a process without a visible
  // id. Leaves out processes with a live lease for which `except` is true. Calls `except` on another thread.
  std::vector<pid_t> HoldersOf(std::string_view replica_id,
                               const std::function<bool(const void* lease)>& except = nullptr) const {
    return handles_->HoldersOf(replica_id, except);
  }

  // Tells the processes attached to this replica that its bytes are wrong (HandleServer::Fence).
  void Fence(std::string_view replica_id, const absl::Status& why) { handles_->Fence(replica_id, why); }

  // Takes the offer that the token names; the offer then belongs to the caller. NOT_FOUND for an unknown
  // token, or if the client is gone. Does not block.
  absl::StatusOr<Offer> TakeOffer(std::string_view token) { return handles_->TakeOffer(token); }
  // The offered memory or ring as the source of an image of `image_bytes`. Parts that were handed over beside
  // a ring are read in place. INVALID_ARGUMENT if the offer has files instead of memory, has fewer bytes than
  // the image, or has parts that do not fit the image (HoldHanded).
  absl::StatusOr<std::unique_ptr<ChunkSource>> SourceOf(Offer offer, uint64_t image_bytes,
                                                        LeaseReplica lease_replica);
  // The files of an offer, in their order; at least one. INVALID_ARGUMENT when the offer has memory.
  absl::StatusOr<ForeignFds> TakeOfferedFiles(std::string_view token);

 private:
  // A claim on the lease's replica. The caller sets Claim::holder and Claim::hold.
  absl::StatusOr<Claim> ClaimOf(const ReplicaLease& lease) const;

  HandleServer* const handles_;
  const HostPool* const pool_;
  DeviceRuntime* const devices_;
};

// Provides only this source. When the source fails, the ingest fails with the source's error (DATA_LOSS when
// corrupt).
std::shared_ptr<SourceProvider> MakeSingleSourceProvider(std::unique_ptr<ChunkSource> source);

}  // namespace tensorcast::daemon
