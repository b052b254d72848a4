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

// The receiver: an ingest, and the place of the replica that it makes.
struct BroadcastReceiver {
  std::string artifact_id;
  Location location;
  std::string replica_id;
  DevicePtr memory;     // the whole allocation; null: it takes part in no broadcast
  TraceContext ingest;  // its span
};

struct BroadcastMember {
  SourceInfo source;
  // The chunks that arrived in the receiver's memory. They are not verified: the receiver must do so. Ends
  // with the group.
  std::shared_ptr<const Availability> arrived;
  // Releasing it leaves the group. The release blocks until the last write to the receiver's memory has
  // ended, at most as long as the broadcaster needs to give up.
  std::shared_ptr<void> membership;
};

}  // namespace tensorcast
