// An ingest that takes part in a broadcast to GPUs, and what it is given.
#pragma once

#include <memory>
#include <string>

#include "base/trace_context.h"
#include "core/device/device_runtime.h"
#include "core/replica/availability.h"
#include "core/replica/replica.h"
#include "core/replica/transfer_report.h"

namespace tensorcast {

// An ingest that makes a replica, and where.
struct BroadcastReceiver {
  std::string artifact_id;
  Location location;
  std::string replica_id;
  DevicePtr memory;     // the whole allocation; none: it takes part in no broadcast
  TraceContext ingest;  // its span
};

struct BroadcastMember {
  SourceInfo source;
  // What is in the receiver's memory, as it was sent: it is for the receiver to verify. Ends when the group
  // does.
  std::shared_ptr<const Availability> arrived;
  // Its end leaves the group. It blocks until the last write to the receiver's memory has ended: at most as
  // long as the broadcaster needs to give up.
  std::shared_ptr<void> membership;
};

}  // namespace tensorcast
