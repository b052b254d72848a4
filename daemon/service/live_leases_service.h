// The LiveLeases service on gRPC: converts between messages and LiveReplicas. Thread-safe.
#pragma once

#include <memory>

#include "daemon/service/live_replicas.h"
#include "rpc/executor.h"

namespace grpc {
class Service;
}

namespace tensorcast::daemon {

// `live` and the executors must outlive the server with which the service is registered. Calls that wait for
// a version, or for the other holders, run on `waiting`; others run on `quick`.
std::unique_ptr<grpc::Service> MakeLiveLeasesService(LiveReplicas* live, rpc::Executor* quick,
                                                     rpc::Executor* waiting);

}  // namespace tensorcast::daemon
