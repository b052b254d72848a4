// The interface for copies from one device to several others at the same time. The implementation runs in
// separate processes (collective/helper).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/byte_range.h"
#include "base/request_context.h"
#include "core/device/device_runtime.h"

namespace tensorcast {

// Allocations of one size. A broadcast copies from the first allocation to all others. The destructor closes
// the allocations in all processes of the group, and may block. Thread-compatible.
class BroadcastGroup {
 public:
  virtual ~BroadcastGroup() = default;
  // Copies these ranges of the first allocation to all others, and blocks until the copies are done. Fails
  // if the broadcast makes no progress. After an error the group is unusable and writes nothing more.
  virtual absl::Status Broadcast(std::span<const ByteRange> ranges) = 0;
};

// One node's view of a group with ranks on several nodes. Each allocation is a rank of the group.
struct BroadcastWorld {
  std::string id;                    // from MakeId on the root's node; a secret
  uint32_t size = 0;                 // number of ranks on all nodes
  uint32_t root = 0;                 // the rank that sends
  std::vector<uint32_t> ranks = {};  // one for each allocation of this node, in order
};

// This node's part in a BroadcastWorld. While this object exists, the node cannot open another group. If the
// object is destroyed before the broadcasts have ended, the other nodes' calls fail soon. The destructor
// closes the allocations in all processes of the group, and may block. Thread-compatible.
class WideBroadcastGroup {
 public:
  virtual ~WideBroadcastGroup() = default;
  // Returns a new id for the group. Only the root's node calls this function.
  virtual absl::StatusOr<std::string> MakeId() = 0;
  // Blocks until all ranks of all nodes have joined; fails after a timeout. Call it once. `allocations` are
  // as for DeviceBroadcaster::Open, but one is enough; `world.ranks` has a rank for each allocation.
  virtual absl::Status Join(std::span<const DevicePtr> allocations, const BroadcastWorld& world) = 0;
  // The root's node calls this function to do what BroadcastGroup::Broadcast does. Empty `ranges` tell the
  // other nodes that the broadcasts have ended.
  virtual absl::Status Broadcast(std::span<const ByteRange> ranges) = 0;
  // All nodes but the root's node call this function. Blocks until the next ranges have arrived in all
  // allocations of this node, and returns these ranges. An empty result means that the broadcasts have ended.
  virtual absl::StatusOr<std::vector<ByteRange>> Receive() = 0;
};

// Opens groups. Thread-safe. Must outlive its groups.
class DeviceBroadcaster {
 public:
  virtual ~DeviceBroadcaster() = default;
  // False while a group is open, and after a failure that shows that this node cannot broadcast.
  virtual bool available() const = 0;
  // `allocations` are two or more results of DeviceRuntime::Allocate, each on a different device. The
  // allocations must outlive the group. UNAVAILABLE while another group is open, or when the group cannot be
  // opened.
  virtual absl::StatusOr<std::unique_ptr<BroadcastGroup>> Open(std::span<const DevicePtr> allocations) = 0;
  // The version of the library for groups of several nodes; all nodes of a group need the same version.
  // UNAVAILABLE, with the reason, if this node cannot take part in such groups.
  virtual absl::StatusOr<std::string> version() const = 0;
  // Blocks until no other group is open. UNAVAILABLE if the context ends first or this node cannot broadcast.
  virtual absl::StatusOr<std::unique_ptr<WideBroadcastGroup>> Reserve(const RequestContext& context) = 0;
};

}  // namespace tensorcast
