// Connecting, and what a client asks of its daemon in one call. The rest of Client: get.cc, put.cc,
// import.cc, keys.cc, key_watch.cc.
#include "tensorcast/client.h"

#include <string>
#include <utility>

#include "base/request_context.h"
#include "base/status.h"
#include "client/daemon_link.h"
#include "client/named.h"
#include "client/session.h"
#include "rpc/call.h"
#include "rpc/convert/convert.h"

namespace tensorcast::client {
namespace {

using Stub = v1::StoreDaemon::Stub;

absl::StatusOr<NodeStatus> StatusOf(const v1::GetStatusResponse& response) {
  NodeStatus status{.node_id = response.node().node_id(),
                    .name = response.node().name(),
                    .draining = response.node().draining(),
                    .global_store_reachable = response.global_store_reachable(),
                    .global_store_error = response.global_store_error(),
                    .replicas = response.replicas(),
                    .active_transfers = response.active_transfers()};
  for (const v1::Pool& pool : response.pools()) {
    TC_ASSIGN_OR_RETURN(const Location location, rpc::FromProto(pool.location()));
    status.pools.push_back({.location = location,
                            .capacity_bytes = pool.capacity_bytes(),
                            .used_bytes = pool.used_bytes(),
                            .pinned_bytes = pool.pinned_bytes()});
  }
  return status;
}

}  // namespace

Client::Client(std::shared_ptr<Session> session) : session_(std::move(session)) {}
Client::~Client() = default;

const std::string& Client::daemon() const { return session_->link->address(); }

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const ClientOptions& options) {
  TC_ASSIGN_OR_RETURN(auto link, DaemonLink::Connect(options));
  return std::unique_ptr<Client>(new Client(std::make_shared<Session>(std::move(link), options)));
}

absl::Status Client::SetPinned(const RequestContext& context, std::string_view replica, bool pinned) {
  // Pin and unpin differ only in the types of their messages. Both are done to every replica that the name
  // stands for on this node.
  const auto set = [&](std::string_view span, auto method, auto request) {
    return InSpan(span, context, [&](const RequestContext& operation) {
      return ForReplicasNamed(*session_->link, operation, replica, [&](const std::string& replica_id) {
        request.set_replica_id(replica_id);
        return rpc::CallUnary(session_->link->daemon(), method, operation, request).status();
      });
    });
  };
  return pinned ? set("Client/PinReplica", &Stub::PinReplica, v1::PinReplicaRequest())
                : set("Client/UnpinReplica", &Stub::UnpinReplica, v1::UnpinReplicaRequest());
}

absl::StatusOr<NodeStatus> Client::GetStatus(const RequestContext& context) {
  TC_ASSIGN_OR_RETURN(const v1::GetStatusResponse response, session_->calls.GetStatus(context));
  return StatusOf(response);
}

}  // namespace tensorcast::client
