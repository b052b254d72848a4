// Copies from one device to several others at the same time, which is faster than one after the other. This
// is an interface, because the library that does so runs in separate processes (collective/helper).
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

// Allocations of one size, opened for broadcasts from the first to all others. The destructor closes them and
// may block. Afterwards no process of the group has them open. Thread-compatible.
class BroadcastGroup {
 public:
  virtual ~BroadcastGroup() = default;
  // Blocks until these bytes of the first allocation are in all others, or the broadcast has failed. A
  // broadcast without progress fails. After an error the group is unusable and writes nothing more.
  virtual absl::Status Broadcast(std::span<const ByteRange> ranges) = 0;
};

// One node's view of a group with ranks on several nodes. Each allocation is a rank of the group.
struct BroadcastWorld {
  std::string id;                    // from MakeId on the root's node; a secret
  uint32_t size = 0;                 // number of ranks on all nodes
  uint32_t root = 0;                 // the rank that sends
  std::vector<uint32_t> ranks = {};  // of this node's allocations, in the same order
};

// This node's part in a BroadcastWorld. While it exists, this node cannot open another group. If it is
// destroyed before the end of the broadcasts, the parts of other nodes fail soon. The destructor may block;
// afterwards no process of the group has the allocations open. Thread-compatible.
class WideBroadcastGroup {
 public:
  virtual ~WideBroadcastGroup() = default;
  // On the root's node: a new id for the group.
  virtual absl::StatusOr<std::string> MakeId() = 0;
  // Blocks until all ranks of all nodes have joined; fails after a timeout. Call it once. `allocations` are
  // as for DeviceBroadcaster::Open, but one is enough.
  virtual absl::Status Join(std::span<const DevicePtr> allocations, const BroadcastWorld& world) = 0;
  // On the root's node: as BroadcastGroup::Broadcast. Empty `ranges` tell the other nodes that the broadcasts
  // have ended.
  virtual absl::Status Broadcast(std::span<const ByteRange> ranges) = 0;
  // On other nodes: blocks until the next ranges have arrived in all allocations of this node, and returns
  // these ranges. An empty result means that the broadcasts have ended.
  virtual absl::StatusOr<std::vector<ByteRange>> Receive() = 0;
};

// Opens groups. Thread-safe. Must outlive its groups.
class DeviceBroadcaster {
 public:
  virtual ~DeviceBroadcaster() = default;
  // Whether this node can broadcast now: false while a group is open, and after a failure that shows that the
  // node cannot broadcast.
  virtual bool available() const = 0;
  // `allocations`: two or more results of DeviceRuntime::Allocate, each on another device. They must outlive
  // the group. UNAVAILABLE while another group is open, or when the group cannot be opened.
  virtual absl::StatusOr<std::unique_ptr<BroadcastGroup>> Open(std::span<const DevicePtr> allocations) = 0;
  // The version of the library for groups of several nodes; all nodes of a group need the same version.
  // UNAVAILABLE, with the reason, if this node cannot take part in such groups.
  virtual absl::StatusOr<std::string> version() const = 0;
  // Blocks until no other group is open. Returns the context's error if the context ends first.
  virtual absl::StatusOr<std::unique_ptr<WideBroadcastGroup>> Reserve(const RequestContext& context) = 0;
};

}  // namespace tensorcast
