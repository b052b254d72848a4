#include "transport/ucx/ucx_endpoint.h"

#include <optional>
#include <utility>
#include <variant>

#include "absl/log/check.h"
#include "absl/log/log.h"

namespace tensorcast::transport {
namespace {

// Requests on registered memory name it, so that UCX need not register anything itself.
void UseMemory(const UcxWorker& worker, const std::byte* memory, ucp_request_param_t& param) {
  param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  if (const UcxWorker::Region* region = worker.FindMemory(memory); region != nullptr) {
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    param.memh = region->handle;
    param.memory_type = region->type;
  }
}

// A message is one frame, but for the piece of DATA, which is the payload.
absl::StatusOr<pull::Frame> DecodeWhole(std::string_view bytes) {
  absl::StatusOr<std::optional<pull::DecodedFrame>> decoded = pull::DecodeFrame(bytes);
  if (!decoded.ok()) return decoded.status();
  if (!decoded->has_value() || (*decoded)->bytes != bytes.size()) {
    return absl::InvalidArgumentError(
        "receive by UCX: the peer sent a message that is not one frame; run "
        "one release on both nodes");
  }
  return std::move((*decoded)->frame);
}

}  // namespace

// What UCX was given and needs until it calls back.
struct UcxEndpoint::Operation {
  std::shared_ptr<UcxEndpoint> endpoint;
  std::string header;
  std::shared_ptr<void> hold;
  Done done;
};

// The life of an endpoint: usable; failed (at most once: the owner is told in a task, and answers with
// Close); closing (no callback of UCX finds it any more, and all operations complete); closed. Each operation
// holds the endpoint, so it is destroyed after the last one.
absl::StatusOr<std::shared_ptr<UcxEndpoint>> UcxEndpoint::Connect(UcxWorker* worker,
                                                                  const SocketAddress& address) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr.addr = address.get();
  params.sockaddr.addrlen = address.length;
  return Create(worker, params);
}

absl::StatusOr<std::shared_ptr<UcxEndpoint>> UcxEndpoint::Accept(UcxWorker* worker,
                                                                 ucp_conn_request_h request) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request;
  return Create(worker, params);
}

absl::StatusOr<std::shared_ptr<UcxEndpoint>> UcxEndpoint::Create(UcxWorker* worker, ucp_ep_params_t& params) {
  std::shared_ptr<UcxEndpoint> endpoint(new UcxEndpoint(worker));
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  // Peers may go at any moment: with this mode UCX says so, and completes what was under way. The callback
  // gets the worker, not this object, which may be gone when a late error is told.
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &UcxEndpoint::ErrorCallback;
  params.err_handler.arg = worker;
  const ucs_status_t status = ucp_ep_create(worker->worker(), &params, &endpoint->ep_);
  if (status != UCS_OK) {
    endpoint->ep_ = nullptr;
    return UcxStatus(status, "create a UCX endpoint");
  }
  worker->AddEndpoint(endpoint->ep_, endpoint);
  worker->AddOpenEndpoint(1);
  return endpoint;
}

UcxEndpoint::~UcxEndpoint() { CHECK(ep_ == nullptr) << "a UCX endpoint was dropped before it was closed"; }

void UcxEndpoint::ErrorCallback(void* arg, ucp_ep_h ep, ucs_status_t status) {
  if (std::shared_ptr<UcxEndpoint> endpoint = static_cast<UcxWorker*>(arg)->FindEndpoint(ep)) {
    endpoint->Fail(absl::UnavailableError(UcxStatus(status, "the connection to the peer is lost").message()));
  }
}

// Told in a task of its own: this may be within one of UCX's callbacks, in which the owner could not close
// the endpoint. Without an owner (it waits in the cache) there is nothing to tell.
void UcxEndpoint::Fail(absl::Status status) {
  // The first failure names the cause; others follow from it.
  if (closing_ || !failure_.ok()) return;
  failure_ = std::move(status);
  worker_->Post([self = shared_from_this()] {
    if (self->closing_) return;
    if (self->owner_ != nullptr) {
      self->owner_->OnFailed(self->failure_);
    } else {
      self->Close(nullptr);
    }
  });
}

// Within a callback of UCX, so the frame is handed on by a task: the owner may close the endpoint in answer,
// which it must not do here. Tasks keep the order of arrival.
void UcxEndpoint::ControlArrived(std::string_view bytes) {
  absl::StatusOr<pull::Frame> message = DecodeWhole(bytes);
  if (message.ok() && std::holds_alternative<pull::Data>(*message)) {
    message = absl::InvalidArgumentError(
        "receive by UCX: the peer sent DATA without a piece; run one "
        "release on both nodes");
  }
  if (!message.ok()) {
    Fail(message.status());
    return;
  }
  worker_->Post([self = shared_from_this(), message = *std::move(message)] {
    if (self->usable() && self->owner_ != nullptr) self->owner_->OnControl(message);
  });
}

// The value returned to UCX says what holds the data: UCS_OK, it is done with; UCS_INPROGRESS, a receive was
// started for it. An eager piece is in UCX's buffer and is copied here and now; of a rendezvous only the news
// has arrived, and the bytes come straight to where the owner wants them.
ucs_status_t UcxEndpoint::DataArrived(std::string_view header_bytes, void* data, uint64_t bytes,
                                      bool rendezvous) {
  const absl::StatusOr<pull::Frame> frame = DecodeWhole(header_bytes);
  const auto* head = frame.ok() ? std::get_if<pull::Data>(&*frame) : nullptr;
  if (head == nullptr || head->bytes != bytes || owner_ == nullptr || !usable()) {
    Fail(frame.ok() ? absl::InternalError("receive by UCX: the peer sent bytes that were not requested; run "
                                          "one release on both nodes")
                    : frame.status());
    return UCS_OK;
  }
  if (!rendezvous) {
    absl::Status taken = owner_->OnPiece(*head, {static_cast<const std::byte*>(data), bytes});
    if (!taken.ok()) Fail(std::move(taken));
    return UCS_OK;
  }
  const absl::StatusOr<HostSpan> destination = owner_->OnRendezvous(*head);
  if (!destination.ok()) {
    Fail(destination.status());
    return UCS_OK;
  }
  if (destination->empty()) return UCS_OK;
  CHECK_EQ(destination->size(), bytes);
  Operation* operation = StartOperation([owner = owner_, head = *head](const absl::Status& status) {
    owner->OnRendezvousReceived(head, status);
  });
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  UseMemory(*worker_, destination->data(), param);
  param.cb.recv_am = &UcxEndpoint::ReceiveCallback;
  param.user_data = operation;
  Started(operation, ucp_am_recv_data_nbx(worker_->worker(), data, destination->data(), bytes, &param));
  return UCS_INPROGRESS;
}

void UcxEndpoint::SendControl(const pull::Frame& message) {
  if (!usable()) return;
  Operation* operation = StartOperation([this](absl::Status status) {
    if (!status.ok()) Fail(std::move(status));
  });
  operation->header = pull::EncodeFrame(message);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  // REPLY tells the other side by which of its endpoints this came, and so of which pull it is.
  param.flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = &UcxEndpoint::SendCallback;
  param.user_data = operation;
  Started(operation, ucp_am_send_nbx(ep_, UcxWorker::kControlId, operation->header.data(),
                                     operation->header.size(), nullptr, 0, &param));
}

void UcxEndpoint::SendData(const pull::Data& head, ConstHostSpan piece, std::shared_ptr<void> hold,
                           Done done) {
  if (!usable()) {
    done(failure_.ok() ? absl::CancelledError("use a UCX endpoint: the endpoint is closed; connect again")
                       : failure_);
    return;
  }
  Operation* operation = StartOperation(std::move(done));
  operation->header = pull::EncodeFrame(head);
  operation->hold = std::move(hold);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  UseMemory(*worker_, piece.data(), param);
  param.flags =
      UCP_AM_SEND_FLAG_REPLY |
      (piece.size() >= worker_->rendezvous_bytes() ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER);
  param.cb.send = &UcxEndpoint::SendCallback;
  param.user_data = operation;
  Started(operation, ucp_am_send_nbx(ep_, UcxWorker::kDataId, operation->header.data(),
                                     operation->header.size(), piece.data(), piece.size(), &param));
}

void UcxEndpoint::Get(HostSpan destination, uint64_t remote_address, ucp_rkey_h rkey, Done done) {
  if (!usable()) {
    done(failure_.ok() ? absl::CancelledError("use a UCX endpoint: the endpoint is closed; connect again")
                       : failure_);
    return;
  }
  Operation* operation = StartOperation(std::move(done));
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  UseMemory(*worker_, destination.data(), param);
  param.cb.send = &UcxEndpoint::SendCallback;
  param.user_data = operation;
  Started(operation, ucp_get_nbx(ep_, destination.data(), destination.size(), remote_address, rkey, &param));
}

void UcxEndpoint::Close(std::function<void()> closed) {
  if (closed != nullptr) on_closed_.push_back(std::move(closed));
  if (closing_) {
    MaybeClosed();
    return;
  }
  closing_ = true;
  // From here on UCX's callbacks find no endpoint: what still arrives is dropped.
  worker_->RemoveEndpoint(ep_);
  Operation* operation = StartOperation([](const absl::Status&) {});
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  param.cb.send = &UcxEndpoint::SendCallback;
  param.user_data = operation;
  const ucp_ep_h ep = std::exchange(ep_, nullptr);
  Started(operation, ucp_ep_close_nbx(ep, &param));
}

// An operation keeps its endpoint alive, and what UCX reads or writes, until Complete, which comes exactly
// once for each.
UcxEndpoint::Operation* UcxEndpoint::StartOperation(Done done) {
  ++in_flight_;
  worker_->AddInFlight(1);
  return new Operation{
      .endpoint = shared_from_this(), .header = {}, .hold = nullptr, .done = std::move(done)};
}

// UCX answers in one of three ways: null, done already, and no callback comes; an error, likewise; or a
// request, for which the callback comes later.
void UcxEndpoint::Started(Operation* operation, ucs_status_ptr_t result) {
  if (result == nullptr) {
    Complete(operation, UCS_OK);
  } else if (UCS_PTR_IS_ERR(result)) {
    Complete(operation, UCS_PTR_STATUS(result));
  }
}

void UcxEndpoint::SendCallback(void* request, ucs_status_t status, void* user_data) {
  auto* operation = static_cast<Operation*>(user_data);
  ucp_request_free(request);
  operation->endpoint->Complete(operation, status);
}

void UcxEndpoint::ReceiveCallback(void* request, ucs_status_t status, size_t, void* user_data) {
  SendCallback(request, status, user_data);
}

void UcxEndpoint::Complete(Operation* operation, ucs_status_t status) {
  // Keeps this endpoint until the end of the function.
  const std::unique_ptr<Operation> owned(operation);
  // Before the owner is told, which may count on its memory being free.
  owned->hold.reset();
  owned->done(UcxStatus(status, "move bytes by UCX"));
  --in_flight_;
  worker_->AddInFlight(-1);
  MaybeClosed();
}

// Closed is: closing was asked for, and nothing is in flight, the close itself included. Only then may memory
// be used for something else.
void UcxEndpoint::MaybeClosed() {
  if (!closing_ || in_flight_ > 0) return;
  if (!closed_) {
    closed_ = true;
    worker_->AddOpenEndpoint(-1);
  }
  if (!on_closed_.empty()) {
    worker_->Post([calls = std::exchange(on_closed_, {})] {
      for (const std::function<void()>& call : calls) call();
    });
  }
}

}  // namespace tensorcast::transport
