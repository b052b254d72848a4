// The Possession service on gRPC: converts between messages and Possession (daemon/serving). Thread-safe.
#pragma once

#include <memory>

#include "daemon/serving/possession.h"
#include "rpc/executor.h"

namespace grpc {
class Service;
}

namespace tensorcast::daemon {

// All must outlive the server with which the service is registered. Calls that may wait for a disk, or read a
// whole replica, run on `waiting`; others run on `quick`.
std::unique_ptr<grpc::Service> MakePossessionService(Possession* possession, rpc::Executor* quick,
                                                     rpc::Executor* waiting);

}  // namespace tensorcast::daemon
