// What the engine asks of its owner, and what it tells it. The owner implements both.
//
// Called on the engine's threads with none of its locks held, so that they may call the engine; they must not
// destroy it.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "core/artifact/manifest.h"
#include "core/replica/replica.h"
#include "core/replica/transfer_report.h"

namespace tensorcast {

// Asked before the engine evicts a `ready` replica to make room. May block (an RPC to the global store).
// Thread-safe.
class EvictionGuard {
 public:
  virtual ~EvictionGuard() = default;
  // OK: evict it. UNAVAILABLE: whether it may go could not be found out now. ABORTED: it may go once
  // something has ended that is under way, which the message names: ask again soon. Anything else: keep it,
  // another copy could not be made again; the message says why, and what a person can do.
  virtual absl::Status MayEvict(const ReplicaInfo& replica) = 0;
};

// Told of every change that others need to know. Must not block for long.
class ReplicaListener {
 public:
  virtual ~ReplicaListener() = default;
  // In order, one call at a time. `manifest` is set once known. A replica in kGone or kFailed is not heard of
  // again.
  virtual void OnReplicaChanged(const ReplicaInfo& replica,
                                const std::shared_ptr<const Manifest>& manifest) = 0;
  // On the thread of the ingest, so several calls may run at once; its callers have the result afterwards.
  virtual void OnTransferEnded(const TransferReport& report) = 0;
};

}  // namespace tensorcast
