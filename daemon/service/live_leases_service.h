// The LiveLeases service on gRPC: converts between messages and LiveReplicas. Thread-safe.
#pragma once

#include <memory>

#include "daemon/service/live_replicas.h"
#include "rpc/executor.h"

namespace grpc {
class Service;
}

namespace tensorcast::daemon {

// All arguments must outlive the server of the service. Calls that wait for a version, or for other holders,
// run on `waiting`. Other calls run on `quick`.
std::unique_ptr<grpc::Service> MakeLiveLeasesService(LiveReplicas* live, rpc::Executor* quick,
                                                     rpc::Executor* waiting);

}  // namespace tensorcast::daemon
