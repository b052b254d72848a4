// Which processes may use this daemon's endpoints, and for what. Stateless.
#pragma once

#include <string>
#include <vector>

#include "daemon/app/daemon_options.h"
#include "rpc/endpoint_access.h"

namespace tensorcast::daemon {

// `grpc` are the addresses of the server with the unix socket of the daemon's own user.
std::vector<rpc::EndpointAccess> EndpointsOf(const DaemonOptions& options,
                                             const std::vector<std::string>& grpc);

}  // namespace tensorcast::daemon
