// Which processes may use this daemon's endpoints, and for what. Stateless.
#pragma once

#include <string>
#include <vector>

#include "daemon/app/daemon_options.h"
#include "rpc/endpoint_access.h"

namespace tensorcast::daemon {

// `grpc` are the addresses of the server whose unix socket is the daemon's own user's.
std::vector<rpc::EndpointAccess> EndpointsOf(const DaemonOptions& options,
                                             const std::vector<std::string>& grpc);

}  // namespace tensorcast::daemon
