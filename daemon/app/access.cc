#include "daemon/app/access.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "transport/lanes/lanes.h"

namespace tensorcast::daemon {
namespace {

// Empty for what is not a transport, is not configured, or was left out of daemon.lanes.
std::string ListenOf(const DaemonOptions& options, const transport::Lane& lane) {
  if (std::ranges::find(options.lanes, lane.name) == options.lanes.end()) return "";
  return lane.listen(options.lane_config);
}

rpc::EndpointAccess AccessOf(const DaemonOptions& options, const transport::Lane& lane,
                             const std::string& listen) {
  // Without certificates a pull is let in by its secret id, and its bytes are in clear.
  const bool certified = options.security.credentials != nullptr && lane.certified;
  return {.endpoint = absl::StrCat(listen, " (lane ", lane.name, ")"),
          .callers = rpc::CallersOfPort(listen, "a node's certificate",
                                        certified ? options.security.credentials.get() : nullptr),
          .role = certified ? "pulls that were granted to that node"
                            : "pulls with a secret id that the caller knows",
          .in_clear = !certified};
}

}  // namespace

// Every way into this daemon with the callers and the role that it grants: logged at the start, and shown by
// the status.
std::vector<rpc::EndpointAccess> EndpointsOf(const DaemonOptions& options,
                                             const std::vector<std::string>& grpc) {
  std::vector<rpc::EndpointAccess> endpoints;
  for (const std::string& address : grpc) {
    endpoints.push_back(rpc::AccessOf(address, {}, security::kEveryRole, options.security.credentials.get()));
  }
  endpoints.push_back(rpc::AccessOf(absl::StrCat("unix:", options.client_socket), options.handle_groups,
                                    security::Only(security::Role::kClient), nullptr));
  endpoints.push_back(
      {.endpoint = absl::StrCat("unix:", options.handle_socket, " (handles)"),
       .callers = rpc::CallersOfSocket(options.handle_socket, options.handle_groups),
       .role = "client: memory of the replicas that the client attached to, and of its puts"});
  for (const transport::Lane& lane : transport::Lanes()) {
    const std::string listen = ListenOf(options, lane);
    if (!listen.empty()) endpoints.push_back(AccessOf(options, lane, listen));
  }
  return endpoints;
}

}  // namespace tensorcast::daemon
