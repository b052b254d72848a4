#include "transport/ucx/ucx_source.h"

#include <utility>
#include <vector>

#include "absl/log/check.h"
#include "absl/log/log.h"
#include "base/status.h"
#include "transport/pull/source_connection.h"
#include "transport/ucx/ucx_channel.h"
#include "transport/ucx/ucx_endpoint.h"

namespace tensorcast::transport {

// One receiver's connection. Between pulls it waits for HELLO.
// An endpoint outlives the pulls on it, so the connection has a handler for each state: `idle_` between
// pulls, and the pull's SourceConnection from HELLO to the last BYE.
class UcxSource::Connection : public UcxChannel {
 public:
  Connection(UcxSource* source, std::shared_ptr<UcxEndpoint> endpoint)
      : UcxChannel(source->worker_, source->options_.drain_timeout), source_(source), idle_(this) {
    endpoint_ = std::move(endpoint);
    endpoint_->set_owner(this);
    handler_ = &idle_;
  }

  void Close() { CloseByForce(); }

 private:
  class Idle : public pull::MessageChannel::Handler {
   public:
    explicit Idle(Connection* connection) : connection_(*connection) {}
    absl::Status OnFrame(const pull::Frame& frame) override {
      if (const auto* hello = std::get_if<pull::Hello>(&frame)) {
        connection_.Admit(*hello);
      } else if (std::holds_alternative<pull::Bye>(frame)) {
        connection_.Send(pull::Bye{});
      } else if (!std::holds_alternative<pull::Request>(frame) &&
                 !std::holds_alternative<pull::Cancel>(frame) &&
                 !std::holds_alternative<pull::Follow>(frame)) {  // those crossed the end of their pull
        return absl::InvalidArgumentError(
            "the receiver sent a frame that may only follow HELLO; run one "
            "release on both nodes");
      }
      return absl::OkStatus();
    }
    void OnLost(const absl::Status&) override { connection_.Close(); }
    void Refill() override {}

   private:
    Connection& connection_;
  };

  void Admit(const pull::Hello& hello) {
    const auto pull = source_->source_->Admit(hello, /*peer=*/"", &queue());
    if (!pull.ok()) {
      Send(pull::Error{.status = pull.status()});
      return;
    }
    handler_ = pull->get();
    (*pull)->Start(shared_from_this());
  }

  // BYE answers the receiver's, and ends the pull once no piece is under way. An ERROR ends it at once, or by
  // force where a piece is under way, which the receiver may not take. One-sided reads are not seen here, and
  // UCX 1.13 does not survive a close that cuts emulated ones off: the receiver is left to end them. Its BYE
  // says that they have ended, and the drain timer closes by force where none comes.
  void SayLast(const pull::Frame& last) override {
    bye_ = std::holds_alternative<pull::Bye>(last);
    if (bye_) {
      OnProgress();
    } else if (sending_ > 0) {
      CloseByForce();
    } else {
      Send(last);
      if (!source_->options_.one_sided) Ended();
    }
  }
  // After BYE the receiver may begin its next pull on this connection.
  void OnProgress() override {
    if (!bye_ || sending_ > 0) return;
    Send(pull::Bye{});
    Ended();
  }
  void OnLastBye() override {
    bye_ = true;
    OnProgress();
  }
  void OnEnded(bool closed) override {
    // The connection is idle again, for another HELLO.
    ending_ = false;
    handler_ = &idle_;
    if (closed) source_->connections_.erase(this);
  }

  UcxSource* const source_;
  Idle idle_;
  bool bye_ = false;  // it is what this end says last
};

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
      UcxStatus(ucp_listener_create(worker_->worker(), &params, &listener_), "open a UCX listener"));
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  TC_RETURN_IF_ERROR(UcxStatus(ucp_listener_query(listener_, &attributes), "get the listener's port"));
  return PortOf(attributes.sockaddr);
}

// UCX calls this within its progress, on the progress thread.
void UcxSource::OnConnectionRequest(ucp_conn_request_h request, void* arg) {
  static_cast<UcxSource*>(arg)->Accept(request);
}

void UcxSource::Accept(ucp_conn_request_h request) {
  // Each has memory of UCX's; a flood must not take all of it.
  if (connections_.size() >= options_.connections) {
    LOG_EVERY_N_SEC(WARNING, 10) << "serve pulls by UCX: refuse a connection: " << options_.connections
                                 << " connections are open, which is the limit";
    ucp_listener_reject(listener_, request);
    return;
  }
  absl::StatusOr<std::shared_ptr<UcxEndpoint>> endpoint = UcxEndpoint::Accept(worker_, request);
  if (!endpoint.ok()) {
    LOG(WARNING) << "serve pulls by UCX: accept a connection: " << endpoint.status();
    return;
  }
  auto connection = std::make_shared<Connection>(this, *std::move(endpoint));
  Connection* const key = connection.get();
  connections_.emplace(key, std::move(connection));
}

void UcxSource::Shutdown() {
  if (listener_ != nullptr) ucp_listener_destroy(std::exchange(listener_, nullptr));
  // A copy: connections take themselves out of the map.
  std::vector<Connection*> connections;
  for (const auto& [connection, owned] : connections_) connections.push_back(connection);
  for (Connection* connection : connections) connection->Close();
}

}  // namespace tensorcast::transport
