#include "core/replicas/pool_holders.h"

namespace tensorcast {
namespace {

void Count(PoolHolders::Share& share, const ReplicaRecord& record) {
  ++share.replicas;
  share.bytes += record.BytesHeld();
}

}  // namespace

// Each replica is counted in one of `leased`, `pinned`, `filling`, `served` and `idle`, or in none while it
// allocates; `landing`, `ending` and `partial` are parts of these.
void PoolHolders::Add(const ReplicaRecord& record, SteadyTime now) {
  if (record.info.state == ReplicaState::kPartial) Count(partial, record);
  if (record.info.state == ReplicaState::kAllocating || record.info.state == ReplicaState::kFilling) {
    // A cancelled ingest gives its memory back by itself soon, where what is there has no holder.
    in_flux |= record.ingest.IsCancelled() && record.info.leases == record.servings;
    if (record.info.state == ReplicaState::kFilling) {
      Count(filling, record);
      // One that was taken over may wait for room itself: a request that waited for it could wait for ever.
      if (!record.taken_over) Count(landing, record);
    }
  } else if (record.info.state == ReplicaState::kDraining) {
    Count(leased, record);
    AddIfEnding(record, now);
  } else if (record.IsHeld()) {
    Count(leased, record);
  } else if (record.info.pinned) {
    Count(pinned, record);
  } else {
    // The guard is being asked: the replica either goes, or is idle again; both end in an event.
    in_flux |= record.reserved;
    Count(record.info.leases > 0 ? served : idle, record);
  }
}

void PoolHolders::AddFailed(const ReplicaRecord& record, SteadyTime now) {
  Count(leased, record);
  AddIfEnding(record, now);
}

// Their readers stop by themselves.
void PoolHolders::AddIfEnding(const ReplicaRecord& record, SteadyTime now) {
  if (record.info.leases > record.servings || record.told_to_stop < now - kTimeToStop) return;
  in_flux = true;
  Count(ending, record);
}

}  // namespace tensorcast
