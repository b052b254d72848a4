// Copies from one device of this node to several others at once, faster than one after the other: a seam, for
// the libraries that can do so live in processes of their own (collective/helper).
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

// Allocations of one size, opened for broadcasts from the first to all others. Destroying it closes them: it
// may block, and afterwards nothing writes to them or has them open. One thread at a time.
class BroadcastGroup {
 public:
  virtual ~BroadcastGroup() = default;
  // Blocks until these bytes of the first are in all others, or never will be. After an error nothing of this
  // group writes there any more, and the group is unusable. Gives up by itself when it sees no progress.
  virtual absl::Status Broadcast(std::span<const ByteRange> ranges) = 0;
};

// A group with ranks on several nodes, as one node sees it: its allocations are ranks of the group.
struct BroadcastWorld {
  std::string id;                    // made where the root is; a secret
  uint32_t size = 0;                 // ranks of all nodes
  uint32_t root = 0;                 // rank
  std::vector<uint32_t> ranks = {};  // of the allocations here, in their order
};

// This node's part in such a group. Until it is destroyed no other group is open here. If it is destroyed
// before its end, the others' parts end soon. Like BroadcastGroup's it may block; then nothing writes to the
// allocations or has them open. One thread at a time.
class WideBroadcastGroup {
 public:
  virtual ~WideBroadcastGroup() = default;
  // On the root's node: a new id for the group.
  virtual absl::StatusOr<std::string> MakeId() = 0;
  // Blocks until all ranks of all nodes have joined; gives up by itself. Once. `allocations` as for Open, but
  // one may be all.
  virtual absl::Status Join(std::span<const DevicePtr> allocations, const BroadcastWorld& world) = 0;
  // On the root's node: as BroadcastGroup's. No ranges: that was the end, and all may leave.
  virtual absl::Status Broadcast(std::span<const ByteRange> ranges) = 0;
  // On other nodes: blocks for the next ranges, which all allocations here then have. None: that was the end.
  virtual absl::StatusOr<std::vector<ByteRange>> Receive() = 0;
};

// Thread-safe. Must outlive its groups.
class DeviceBroadcaster {
 public:
  virtual ~DeviceBroadcaster() = default;
  // Whether it can broadcast at all, as far as is known now.
  virtual bool available() const = 0;
  // `allocations`, two or more: what DeviceRuntime::Allocate returned, each on a device of its own. They must
  // outlive the group. UNAVAILABLE while another group is open, or when it cannot be had.
  virtual absl::StatusOr<std::unique_ptr<BroadcastGroup>> Open(std::span<const DevicePtr> allocations) = 0;
  // The version of its library for groups of several nodes; all nodes need the same version.
  // UNAVAILABLE with the reason where it cannot take part in any.
  virtual absl::StatusOr<std::string> version() const = 0;
  // Blocks until no other group is open, to the context's end at most.
  virtual absl::StatusOr<std::unique_ptr<WideBroadcastGroup>> Reserve(const RequestContext& context) = 0;
};

}  // namespace tensorcast
