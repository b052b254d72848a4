// This node's part in broadcasts between the GPUs of several nodes. Heartbeats report whether this node can
// join a group of GPUs (core/broadcast/wide_broadcasts.h). The answers to heartbeats name the groups that
// this class begins in the engine.
//
// Call Report and then Answered for each heartbeat, on one thread.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "core/broadcast/broadcast_meeting.h"
#include "core/device/device_broadcaster.h"
#include "core/engine/engine.h"
#include "daemon/global_store_link/global_store_client.h"
#include "daemon/global_store_link/global_store_link.h"
#include "proto/global_store.pb.h"

namespace tensorcast::daemon {

class BroadcastGroups {
 public:
  struct Options {
    std::string node_name;
    GlobalStoreClient* global_store = nullptr;  // must outlive the engine, like `link`
    const GlobalStoreLink* link = nullptr;
    StoreEngine* engine = nullptr;             // must outlive this object
    DeviceBroadcaster* broadcaster = nullptr;  // must outlive this object; null: this node joins no group
    // True if every process on the network between the nodes is trusted; NCCL has no certificates.
    bool trusted_fabric = false;
  };
  explicit BroadcastGroups(Options options);

  // This node's version of NCCL, or an error that says why this node joins no group. Thread-safe.
  absl::StatusOr<std::string> Version() const;
  void Report(v1::HeartbeatRequest* heartbeat) const;
  void Answered(const v1::HeartbeatResponse& response);

 private:
  const Options options_;
  const std::shared_ptr<BroadcastMeeting> meeting_;
  std::set<std::string> begun_;  // groups that the last answer named
};

}  // namespace tensorcast::daemon
