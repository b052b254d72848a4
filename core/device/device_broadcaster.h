// Copies from one device to several others at the same time, which is faster than one after the other. An
// interface, because the libraries that do so run in separate processes (collective/helper).
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

// Allocations of one size, opened for broadcasts from the first to all others. The destructor closes them. It
// may block; after it no process of the group writes to them or has them open. One thread at a time.
class BroadcastGroup {
 public:
  virtual ~BroadcastGroup() = default;
  // Blocks until these bytes of the first allocation are in all others, or the broadcast has failed. After an
  // error the group is unusable and writes nothing more. Gives up by itself when it makes no progress.
  virtual absl::Status Broadcast(std::span<const ByteRange> ranges) = 0;
};

// A group with ranks on several nodes, as one node sees it: its allocations are ranks of the group.
struct BroadcastWorld {
  std::string id;                    // made on the root's node; a secret
  uint32_t size = 0;                 // ranks of all nodes
  uint32_t root = 0;                 // rank
  std::vector<uint32_t> ranks = {};  // of the allocations here, in their order
};

// This node's part in a BroadcastWorld. Until it is destroyed, this node can open no other group. If it is
// destroyed before the end, the parts of other nodes end soon. The destructor may block; after it no process
// of the group writes to the allocations or has them open. One thread at a time.
class WideBroadcastGroup {
 public:
  virtual ~WideBroadcastGroup() = default;
  // On the root's node: a new id for the group.
  virtual absl::StatusOr<std::string> MakeId() = 0;
  // Blocks until all ranks of all nodes have joined; gives up by itself after a while. To be called once.
  // `allocations` as for Open, but one is enough.
  virtual absl::Status Join(std::span<const DevicePtr> allocations, const BroadcastWorld& world) = 0;
  // On the root's node: as BroadcastGroup::Broadcast. Empty `ranges` announce the end, and all may leave.
  virtual absl::Status Broadcast(std::span<const ByteRange> ranges) = 0;
  // On other nodes: blocks until the next ranges have arrived in all allocations of this node. Empty: the
  // end.
  virtual absl::StatusOr<std::vector<ByteRange>> Receive() = 0;
};

// Thread-safe. Must outlive its groups.
class DeviceBroadcaster {
 public:
  virtual ~DeviceBroadcaster() = default;
  // Whether it can broadcast at all, as far as is known now.
  virtual bool available() const = 0;
  // `allocations`: two or more results of DeviceRuntime::Allocate, each on another device. They must outlive
  // the group. UNAVAILABLE while another group is open, or when the group cannot be opened.
  virtual absl::StatusOr<std::unique_ptr<BroadcastGroup>> Open(std::span<const DevicePtr> allocations) = 0;
  // The version of its library for groups of several nodes; all nodes need the same version.
  // UNAVAILABLE, with the reason, if this node cannot take part in such groups.
  virtual absl::StatusOr<std::string> version() const = 0;
  // Blocks until no other group is open, to the context's end at most.
  virtual absl::StatusOr<std::unique_ptr<WideBroadcastGroup>> Reserve(const RequestContext& context) = 0;
};

}  // namespace tensorcast
