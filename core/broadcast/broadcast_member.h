// An ingest that takes part in a broadcast to GPUs, and the membership that it gets.
#pragma once

#include <memory>
#include <string>

#include "base/trace_context.h"
#include "core/device/device_runtime.h"
#include "core/replica/availability.h"
#include "core/replica/replica.h"
#include "core/replica/transfer_report.h"

namespace tensorcast {

// An ingest that may take part in a broadcast.
struct BroadcastReceiver {
  std::string artifact_id;
  Location location;
  std::string replica_id;
  DevicePtr memory;     // the replica's whole allocation; null: the ingest takes part in no broadcast
  TraceContext ingest;  // the ingest's span
};

struct BroadcastMember {
  SourceInfo source;
  // The chunks that have arrived in the receiver's memory. They are not verified yet; the receiver must
  // verify them. The availability ends when the group is over.
  std::shared_ptr<const Availability> arrived;
  // The release of this pointer leaves the group, and ends the broadcast for all members. The release blocks
  // until the last write to the receiver's memory has ended, at most until the broadcaster's timeout.
  std::shared_ptr<void> membership;
};

}  // namespace tensorcast
