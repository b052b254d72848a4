#include "transport/ucx/ucx_source.h"

#include <utility>
#include <vector>

#include "absl/log/check.h"
#include "absl/log/log.h"
#include "base/status.h"
#include "transport/ucx/source_connection.h"

namespace tensorcast::transport {

void SourceServing::AddBusy(int delta) {
  busy += delta;
  if (busy == 0 && on_idle != nullptr) std::exchange(on_idle, nullptr)();
}

UcxSource::UcxSource(UcxWorker* worker, UcxLane lane, const Limits& limits, int serving_threads)
    : worker_(worker), lane_(lane), limits_(limits), threads_(serving_threads) {}

UcxSource::~UcxSource() {
  CHECK(listener_ == nullptr && connections_.empty()) << "a UCX source was not shut down";
}

absl::StatusOr<uint16_t> UcxSource::Listen(const SocketAddress& address) {
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr.addr = address.get();
  params.sockaddr.addrlen = address.length;
  params.conn_handler.cb = &UcxSource::OnConnectionRequest;
  params.conn_handler.arg = this;
  TC_RETURN_IF_ERROR(
      UcxStatus(ucp_listener_create(worker_->worker(), &params, &listener_),
                "listening for pulls (is the address one of this host's, and the port free?)"));
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  TC_RETURN_IF_ERROR(UcxStatus(ucp_listener_query(listener_, &attributes), "asking for the listener's port"));
  return PortOf(attributes.sockaddr);
}

void UcxSource::OnConnectionRequest(ucp_conn_request_h request, void* arg) {
  static_cast<UcxSource*>(arg)->Accept(request);
}

void UcxSource::Accept(ucp_conn_request_h request) {
  // Each has memory of UCX's; a flood must not take all of it.
  if (static_cast<int>(connections_.size()) >= limits_.connections) {
    LOG_EVERY_N_SEC(WARNING, 10) << "refused a receiver's connection: " << limits_.connections << " are open";
    ucp_listener_reject(listener_, request);
    return;
  }
  absl::StatusOr<std::shared_ptr<UcxEndpoint>> endpoint = UcxEndpoint::Accept(worker_, request);
  if (!endpoint.ok()) {
    LOG(WARNING) << "could not accept a receiver's connection: " << endpoint.status();
    return;
  }
  auto connection = std::make_shared<SourceConnection>(this, *std::move(endpoint));
  SourceConnection* const key = connection.get();
  connections_.emplace(key, std::move(connection));
}

std::shared_ptr<SourceServing> UcxSource::Find(const PullId& id) const {
  auto it = servings_.find(id);
  return it == servings_.end() ? nullptr : it->second;
}

void UcxSource::Revoke(const std::shared_ptr<SourceServing>& serving, std::function<void()> done) {
  servings_.erase(serving->id);
  serving->revoked = true;
  // Held busy meanwhile: else it might count as idle between the first connection that lets go and the next.
  serving->AddBusy(1);
  serving->on_idle = std::move(done);
  // A copy: connections take themselves out of the set.
  const std::vector<SourceConnection*> connections(serving->connections.begin(), serving->connections.end());
  for (SourceConnection* connection : connections) connection->ServingRevoked();
  serving->AddBusy(-1);
}

void UcxSource::Shutdown() {
  if (listener_ != nullptr) ucp_listener_destroy(std::exchange(listener_, nullptr));
  std::vector<SourceConnection*> connections;
  for (const auto& [connection, owned] : connections_) connections.push_back(connection);
  for (SourceConnection* connection : connections) connection->Close();
}

}  // namespace tensorcast::transport
