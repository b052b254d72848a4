// The engine's callbacks, which the engine's owner implements: EvictionGuard permits evictions, and
// ReplicaListener is told of changes.
//
// The engine calls them on its threads and holds no lock. A callback may call the engine, but must not
// destroy the engine.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "core/artifact/manifest.h"
#include "core/replica/replica.h"
#include "core/replica/transfer_report.h"

namespace tensorcast {

// Decides whether the engine may evict or retire a ready replica. May block (an RPC to the global store).
// Implementations are thread-safe.
class EvictionGuard {
 public:
  virtual ~EvictionGuard() = default;
  // OK: the replica may be evicted.
  // UNAVAILABLE: the guard cannot decide now.
  // ABORTED: the replica may be evicted after an operation in progress. The message names the operation. Ask
  // again soon.
  // Any other error: the replica must stay. The message has the reason and a remedy for people.
  virtual absl::Status MayEvict(const ReplicaInfo& replica) = 0;
};

// Gets every change that other processes need to know. Must not block for long.
class ReplicaListener {
 public:
  virtual ~ReplicaListener() = default;
  // Called in the order of the changes, one call at a time. `manifest` is null until it is known. kGone or
  // kFailed is the last change of a replica.
  virtual void OnReplicaChanged(const ReplicaInfo& replica,
                                const std::shared_ptr<const Manifest>& manifest) = 0;
  // Called on the ingest's thread, before its callers get the result. Several calls may run at the same time.
  virtual void OnTransferEnded(const TransferReport& report) = 0;
};

}  // namespace tensorcast
