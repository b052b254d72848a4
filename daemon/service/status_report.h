// How this node describes itself: to the global store with each heartbeat, and to people.
#pragma once

#include <cstdint>
#include <map>

#include "daemon/service/node_parts.h"
#include "proto/daemon.pb.h"

namespace tensorcast::daemon {

// By location: of leased and pinned replicas, which eviction cannot take, in whole granules.
std::map<Location, uint64_t> PinnedBytes(const NodeParts& parts);

// The host pool first, then one pool a device.
void FillPools(const NodeParts& parts, google::protobuf::RepeatedPtrField<v1::Pool>* out);
void FillStatus(const NodeParts& parts, v1::GetStatusResponse* out);

}  // namespace tensorcast::daemon
