// This node's part in broadcasts of an artifact from one GPU (the root) to a group of GPUs on several nodes.
//
// The engine's owner names the GPUs of this node that take part. The ingest for each such GPU joins when the
// ingest has memory. When all these ingests have joined and the broadcaster is free, the group's thread waits
// for the other nodes. The thread then sends or receives the root's chunks, for all GPUs of this node at
// once. The root may still be filling. Each receiver verifies the chunks in its memory.
//
//   Begin ─► gathering ─► meeting ─► broadcasting ─► over: all chunks arrived, a member left, or an error
//               '────────────┴────► over: too late, another node gave up, a member left
//
// A group makes one attempt. Afterwards its members keep their verified chunks, and continue with other
// sources.
//
// Thread-safe. Only Stop, Join, the release of a membership and, briefly, Begin block.
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
#include "absl/time/time.h"
#include "base/request_context.h"
#include "base/trace_context.h"
#include "core/broadcast/broadcast_meeting.h"
#include "core/broadcast/broadcast_member.h"
#include "core/device/device_broadcaster.h"
#include "core/device/device_runtime.h"
#include "core/replica/availability.h"
#include "core/replicas/replica_table.h"
#include "core/source/chunk_source.h"

namespace tensorcast {

class WideBroadcasts {
 public:
  // `broadcaster` may be null: then every group is given up at once. If the root gets no new chunk for
  // `patience`, its group ends. `patience` must be shorter than the time after which other nodes'
  // broadcasters give up. The pointers must outlive this object.
  WideBroadcasts(ReplicaTable* table, DeviceBroadcaster* broadcaster, absl::Duration patience)
      : table_(table), broadcaster_(broadcaster), patience_(patience) {}
  ~WideBroadcasts() { Stop(); }
  WideBroadcasts(const WideBroadcasts&) = delete;
  WideBroadcasts& operator=(const WideBroadcasts&) = delete;
  // Ends all groups and waits until they are over. Later calls of Begin do nothing. REQUIRES: all members
  // have left.
  void Stop();

  // Starts the thread of a new group. If no thread can be started, tells the other nodes that this node gives
  // the group up.
  void Begin(const WideGroupPlan& plan);

  // Joins the group that waits for this receiver, and blocks while the group forms. Calls `on_wait` at the
  // beginning and at the end of the wait. nullopt if no group waits for the receiver, if the receiver is the
  // root, or if the context or the group ends before the broadcast.
  std::optional<BroadcastMember> Join(const RequestContext& context, const BroadcastReceiver& receiver,
                                      const WaitObserver& on_wait);

 private:
  struct Group;
  enum class State { kGathering, kMeeting, kBroadcasting, kOver };

  std::shared_ptr<Group> FindGathering(const BroadcastReceiver& receiver)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends the group and blocks until it is over.
  void Leave(Group& group) ABSL_LOCKS_EXCLUDED(mutex_);
  void Run(Group& group);
  // Blocks until all ranks of this node have memory. If the root is on this node, takes a lease on the root.
  absl::Status Gather(Group& group);
  absl::Status Broadcast(Group& group);
  absl::Status Send(Group& group, WideBroadcastGroup& wide);
  absl::Status Receive(Group& group, WideBroadcastGroup& wide);
  void NoteArrived(Group& group, const std::vector<uint32_t>& chunks) ABSL_LOCKS_EXCLUDED(mutex_);

  ReplicaTable* const table_;
  DeviceBroadcaster* const broadcaster_;
  const absl::Duration patience_;
  absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  // A group that is over stays here until the next Begin.
  std::list<std::shared_ptr<Group>> groups_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast
