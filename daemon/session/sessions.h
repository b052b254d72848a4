// Leases and tickets: how a client of this host gets at a replica's bytes, and how it hands its own over for
// a put.
//
// A lease of the engine becomes a claim on the handle socket and is named by a one-use ticket; the connection
// that claims it holds the lease from then on. A ring or an offer on the handle socket becomes the one source
// of a first ingest. Thread-safe.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/device/device_runtime.h"
#include "core/handles/handle_server.h"
#include "core/memory/host_pool.h"
#include "core/replicas/replica_lease.h"
#include "core/source/chunk_source.h"
#include "daemon/session/handed_memory.h"

namespace tensorcast::daemon {

class Sessions {
 public:
  // All must outlive it.
  Sessions(HandleServer* handles, const HostPool* pool, DeviceRuntime* devices)
      : handles_(handles), pool_(pool), devices_(devices) {}

  // Gives the lease to the process that claims the returned ticket; it ends when none does in the ticket's
  // life. `holder` is the kind of that process; `companion` lives as long as the lease.
  absl::StatusOr<std::string> IssueTicket(std::unique_ptr<ReplicaLease> lease,
                                          Holder holder = Holder::kClient,
                                          std::shared_ptr<void> companion = nullptr);

  // The processes attached to this replica by a ticket, ascending; 0 stands for those that cannot be named.
  std::vector<pid_t> HoldersOf(std::string_view replica_id) const { return handles_->HoldersOf(replica_id); }

  // What is behind a token: from then on it is the caller's, and waits as long as the caller does. NOT_FOUND
  // for an unknown token (or a client that is gone). Does not block.
  absl::StatusOr<Offer> TakeOffer(std::string_view token) { return handles_->TakeOffer(token); }
  // The offered memory or ring as the source of an image of this size; what was handed over beside a ring
  // does not come through it. INVALID_ARGUMENT when less was offered than the image needs, or files, or parts
  // that do not fit it (HoldHanded).
  absl::StatusOr<std::unique_ptr<ChunkSource>> SourceOf(Offer offer, uint64_t image_bytes,
                                                        LeaseReplica lease_replica);
  // The files behind an offer, in their order; never none. INVALID_ARGUMENT when memory was offered.
  absl::StatusOr<ForeignFds> TakeOfferedFiles(std::string_view token);

 private:
  HandleServer* const handles_;
  const HostPool* const pool_;
  DeviceRuntime* const devices_;
};

// Provides one source and no other: when that fails, the ingest fails with its error (DATA_LOSS when
// corrupt).
std::shared_ptr<SourceProvider> MakeSingleSourceProvider(std::unique_ptr<ChunkSource> source);

}  // namespace tensorcast::daemon
