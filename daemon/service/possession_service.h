// The Possession service on gRPC: converts between messages and Possession (daemon/serving). Thread-safe.
#pragma once

#include <memory>

#include "daemon/serving/possession.h"
#include "rpc/executor.h"

namespace grpc {
class Service;
}

namespace tensorcast::daemon {

// All arguments must outlive the server of the service. Calls that may wait for a disk, or read a whole
// replica, run on `waiting`. Other calls run on `quick`.
std::unique_ptr<grpc::Service> MakePossessionService(Possession* possession, rpc::Executor* quick,
                                                     rpc::Executor* waiting);

}  // namespace tensorcast::daemon
