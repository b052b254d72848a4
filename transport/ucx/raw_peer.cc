#include "transport/ucx/raw_peer.h"

#include <ucp/api/ucp.h>

#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/address.h"
#include "transport/ucx/ucx_endpoint.h"
#include "transport/ucx/ucx_worker.h"

namespace tensorcast::transport {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);

}  // namespace

class RawPeer::Connection : public EndpointOwner {
 public:
  // Over TCP on this host, as the transports in tests.
  Connection() : worker_(*UcxWorker::Create({.tls = "tcp", .net_devices = "lo", .rma = false})) {}
  ~Connection() override {
    absl::Notification closed;
    worker_->Run([&] {
      if (listener_ != nullptr) ucp_listener_destroy(listener_);
      if (endpoint_ == nullptr) {
        closed.Notify();
      } else {
        endpoint_->Close([&] { closed.Notify(); });
      }
    });
    closed.WaitForNotification();
    endpoint_.reset();
  }

  void Connect(const SocketAddress& address) {
    worker_->Run([&] { Own(*UcxEndpoint::Connect(worker_.get(), address)); });
  }

  std::string Listen() {
    std::string address;
    worker_->Run([&] {
      const SocketAddress socket = *ResolveAddress({"127.0.0.1", 0});
      ucp_listener_params_t params{};
      params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
      params.sockaddr.addr = socket.get();
      params.sockaddr.addrlen = socket.length;
      params.conn_handler.cb = [](ucp_conn_request_h request, void* arg) {
        auto* self = static_cast<Connection*>(arg);
        // A test has one connection: a second one is turned away.
        if (self->endpoint_ != nullptr) {
          (void)ucp_listener_reject(self->listener_, request);
          return;
        }
        self->Own(*UcxEndpoint::Accept(self->worker_.get(), request));
      };
      params.conn_handler.arg = this;
      ASSERT_EQ(ucp_listener_create(worker_->worker(), &params, &listener_), UCS_OK);
      ucp_listener_attr_t attributes{};
      attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
      ASSERT_EQ(ucp_listener_query(listener_, &attributes), UCS_OK);
      address = FormatHostPort({"127.0.0.1", PortOf(attributes.sockaddr)});
    });
    return address;
  }

  void Send(const pull::Frame& message) {
    worker_->Run([&] { endpoint_->SendControl(message); });
  }
  void SendBytes(unsigned id, std::string bytes) {
    worker_->Run([&] {
      sent_.push_back(std::make_unique<std::string>(std::move(bytes)));
      // Not by SendControl, which sends nothing but frames.
      ucp_request_param_t param{};
      param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
      param.flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER;
      const ucs_status_ptr_t request = ucp_am_send_nbx(endpoint_->ep(), id, sent_.back()->data(),
                                                       sent_.back()->size(), nullptr, 0, &param);
      if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
    });
  }
  void SendPiece(pull::Data head, std::string_view piece) {
    head.bytes = static_cast<uint32_t>(piece.size());
    // Held by the send: UCX reads the bytes after this call.
    const auto bytes = std::make_shared<std::string>(piece);
    worker_->Run([&] {
      endpoint_->SendData(head, std::as_bytes(std::span(*bytes)), bytes, [](const absl::Status&) {});
    });
  }
  void AtOnce(const std::function<void()>& sends) { worker_->Run(sends); }

  pull::Frame Next() {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(this, &Connection::HeardOrLost), kPatience);
    if (heard_.empty()) ADD_FAILURE() << (lost_ ? "closed where a frame was expected" : "heard nothing");
    if (heard_.empty()) return pull::Bye{};
    pull::Frame frame = std::move(heard_.front());
    heard_.pop_front();
    return frame;
  }
  bool Hears() {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(this, &Connection::HeardOrLost), kPatience);
    return !heard_.empty();
  }
  std::string ReadBytes(size_t bytes) {
    absl::MutexLock lock(&mutex_);
    std::string read = pieces_.substr(0, bytes);
    pieces_.erase(0, bytes);
    return read;
  }
  bool IsClosed() {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&lost_), kPatience);
  }

  void OnControl(const pull::Frame& message) override {
    absl::MutexLock lock(&mutex_);
    heard_.push_back(message);
  }
  absl::Status OnPiece(const pull::Data& head, ConstHostSpan piece) override {
    absl::MutexLock lock(&mutex_);
    heard_.emplace_back(head);
    pieces_.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    return absl::OkStatus();
  }
  absl::StatusOr<HostSpan> OnRendezvous(const pull::Data&) override { return HostSpan(); }
  void OnRendezvousReceived(const pull::Data&, const absl::Status&) override {}
  void OnFailed(const absl::Status&) override {
    absl::MutexLock lock(&mutex_);
    lost_ = true;
  }

 private:
  void Own(std::shared_ptr<UcxEndpoint> endpoint) {
    endpoint_ = std::move(endpoint);
    endpoint_->set_owner(this);
  }
  bool HeardOrLost() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return lost_ || !heard_.empty(); }

  // What follows, up to the mutex, is the progress thread's.
  std::unique_ptr<UcxWorker> worker_;
  ucp_listener_h listener_ = nullptr;
  std::shared_ptr<UcxEndpoint> endpoint_;
  std::vector<std::unique_ptr<std::string>> sent_;  // UCX reads them until they are on their way
  absl::Mutex mutex_;
  std::deque<pull::Frame> heard_ ABSL_GUARDED_BY(mutex_);
  std::string pieces_ ABSL_GUARDED_BY(mutex_);
  bool lost_ ABSL_GUARDED_BY(mutex_) = false;
};

RawPeer::RawPeer() : connection_(std::make_unique<Connection>()) {}

RawPeer::~RawPeer() = default;

void RawPeer::Connect(const std::string& address) {
  connection_->Connect(*ResolveAddress(*ParseHostPort(address)));
}

std::string RawPeer::Listen() { return connection_->Listen(); }

void RawPeer::Send(const pull::Frame& frame) { connection_->Send(frame); }

void RawPeer::SendPiece(const pull::Data& head, std::string_view piece) {
  connection_->SendPiece(head, piece);
}

pull::Frame RawPeer::Next() { return connection_->Next(); }

std::string RawPeer::ReadBytes(size_t bytes) { return connection_->ReadBytes(bytes); }

bool RawPeer::IsClosed() { return connection_->IsClosed(); }

bool RawPeer::Hears() { return connection_->Hears(); }

void RawPeer::SendBytes(unsigned id, std::string bytes) { connection_->SendBytes(id, std::move(bytes)); }

void RawPeer::AtOnce(const std::function<void()>& sends) { connection_->AtOnce(sends); }

}  // namespace tensorcast::transport
