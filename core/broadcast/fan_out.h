// A replica on one GPU of this node that several others want: broadcast to all of them at once, as it fills.
//
// The ingests that make the others join a group, which forms for a moment. Then a thread of the group's own
// broadcasts what the first replica has straight into their memory, and each of them verifies there what has
// arrived. A member that leaves, or any error, ends the group for all: they go on with copies, and keep
// what they have verified.
//
//   Join ... Join ─► forming ─► broadcasting ─► over: all arrived, the first replica's ingest failed, a
//                       │                              member left, the broadcaster gave up
//                       '─► nothing: fewer than two came
//
// Thread-safe. Blocks where it says so; no lock is held across the broadcaster, the table or the end of an
// availability.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/request_context.h"
#include "core/broadcast/broadcast_member.h"
#include "core/device/device_broadcaster.h"
#include "core/replicas/replica_lease.h"
#include "core/replicas/replica_table.h"

namespace tensorcast {

class FanOut {
 public:
  // `broadcaster` may be null: then no group ever forms. Both must outlive it.
  FanOut(ReplicaTable* table, DeviceBroadcaster* broadcaster) : table_(table), broadcaster_(broadcaster) {}
  FanOut(const FanOut&) = delete;
  FanOut& operator=(const FanOut&) = delete;

  // Blocks for the moment that a group needs to form: until all have joined that the table knows to make the
  // same artifact, but not for long. Nothing: no broadcaster, or not enough other receivers now. `root`: on
  // a GPU, ready or filling; it is held until the group is over.
  std::optional<BroadcastMember> Join(const RequestContext& context, std::shared_ptr<ReplicaLease> root,
                                      const BroadcastReceiver& receiver);

 private:
  struct Group;
  enum class State { kForming, kDissolved, kBroadcasting, kOver };

  std::shared_ptr<Group> FindForming(const ReplicaLease& root) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndForming(const std::shared_ptr<Group>& group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Leave(Group& group) ABSL_LOCKS_EXCLUDED(mutex_);
  void Run(Group& group);
  absl::Status Broadcast(Group& group);

  ReplicaTable* const table_;
  DeviceBroadcaster* const broadcaster_;
  absl::Mutex mutex_;
  std::list<std::shared_ptr<Group>> forming_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast
