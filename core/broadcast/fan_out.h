// Broadcasts a replica on one GPU of this node to several other GPUs at the same time. The replica may still
// be filling.
//
// The ingests for the other GPUs join a group, which forms for at most about a second. Then the group's
// thread broadcasts the chunks of the first replica (the root) into the memory of these GPUs. Each ingest
// verifies the chunks in its GPU's memory. If a member leaves, or on an error, the group ends for all
// members. The members then keep their verified chunks, and copy the missing chunks.
//
//   Join ... Join ─► forming ─► broadcasting ─► over: all chunks arrived, the root's ingest failed, a
//                       │                              member left, or the broadcaster failed
//                       '─► dissolved: fewer than two joined, or no thread can be started
//
// Thread-safe. Only Join and the release of a membership block.
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
  // `broadcaster` may be null: then no group forms. Both pointers must outlive this object and its members.
  FanOut(ReplicaTable* table, DeviceBroadcaster* broadcaster) : table_(table), broadcaster_(broadcaster) {}
  FanOut(const FanOut&) = delete;
  FanOut& operator=(const FanOut&) = delete;

  // Joins the group of `root`, a ready or filling replica on a GPU. Blocks until all the artifact's ingests
  // in the table have joined, but at most about a second. nullopt with fewer than two receivers, without an
  // available broadcaster, or if no thread can be started. The group holds `root` until the group is over.
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
