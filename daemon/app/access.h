// Which processes may use each of this daemon's endpoints, and in which role. Stateless.
#pragma once

#include <string>
#include <vector>

#include "daemon/app/daemon_options.h"
#include "rpc/endpoint_access.h"

namespace tensorcast::daemon {

// `grpc`: the addresses of the gRPC server that also serves the unix socket of the daemon's own user.
std::vector<rpc::EndpointAccess> EndpointsOf(const DaemonOptions& options,
                                             const std::vector<std::string>& grpc);

}  // namespace tensorcast::daemon
