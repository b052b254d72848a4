// Copies from one device of this node to several others at once, faster than one after the other: a seam, for
// the libraries that can do so live in processes of their own (collective/helper).
#pragma once

#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/byte_range.h"
#include "core/device/device_runtime.h"

namespace tensorcast {

// Allocations of one size, opened for broadcasts from the first to all others. Destroying it closes them: it
// may block, and afterwards nothing writes to them or has them open. One thread at a time.
class BroadcastGroup {
 public:
  virtual ~BroadcastGroup() = default;
  // Blocks until these bytes of the first are in all others, or never will be: after an error nothing of this
  // group writes there any more, and it is of no more use. Gives up by itself when it sees no progress.
  virtual absl::Status Broadcast(std::span<const ByteRange> ranges) = 0;
};

// Thread-safe. Must outlive its groups.
class DeviceBroadcaster {
 public:
  virtual ~DeviceBroadcaster() = default;
  // Whether it can broadcast at all, as far as it knows by now.
  virtual bool available() const = 0;
  // `allocations`, two or more: what DeviceRuntime::Allocate returned, each on a device of its own. They must
  // outlive the group. UNAVAILABLE while another group is open, or when it cannot be had.
  virtual absl::StatusOr<std::unique_ptr<BroadcastGroup>> Open(std::span<const DevicePtr> allocations) = 0;
};

}  // namespace tensorcast
