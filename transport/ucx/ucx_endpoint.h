// One UCX connection between two daemons. Private to this folder. Only the progress thread uses it.
//
// An endpoint has at most one owner: a UcxReceiverChannel, or at the source a UcxSource::Connection. An idle
// endpoint in the receiver's cache has no owner. After an endpoint has failed, only Close has an effect.
#pragma once

#include <ucp/api/ucp.h>

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/address.h"
#include "core/memory/host_pool.h"
#include "transport/pull/wire.h"
#include "transport/ucx/ucx_worker.h"

namespace tensorcast::transport {

class EndpointOwner {
 public:
  virtual ~EndpointOwner() = default;
  // A frame without a piece has arrived. Called in the order of sending, never inside a UCX callback.
  virtual void OnControl(const pull::Frame& message) = 0;
  // A piece has arrived together with its head. `piece` is valid until the call returns. An error fails the
  // endpoint.
  virtual absl::Status OnPiece(const pull::Data& head, ConstHostSpan piece) = 0;
  // The peer offers a piece by rendezvous. Returns the piece's destination, exactly as long as the piece. An
  // empty span drops the piece. An error fails the endpoint.
  virtual absl::StatusOr<HostSpan> OnRendezvous(const pull::Data& head) = 0;
  // A piece by rendezvous has arrived, or failed with `status`. UCX no longer writes to the piece's
  // destination.
  virtual void OnRendezvousReceived(const pull::Data& head, const absl::Status& status) = 0;
  // The peer is lost or broke the protocol. Called once, never inside a UCX callback. The owner must call
  // Close.
  virtual void OnFailed(const absl::Status& status) = 0;
};

class UcxEndpoint : public std::enable_shared_from_this<UcxEndpoint> {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;

  // Returns before UCX has connected. If UCX cannot connect, the endpoint calls the owner's OnFailed.
  static absl::StatusOr<std::shared_ptr<UcxEndpoint>> Connect(UcxWorker* worker,
                                                              const SocketAddress& address);
  static absl::StatusOr<std::shared_ptr<UcxEndpoint>> Accept(UcxWorker* worker, ucp_conn_request_h request);
  ~UcxEndpoint();

  // nullptr: no owner. `owner` must exist until the endpoint has closed or has another owner.
  void set_owner(EndpointOwner* owner) { owner_ = owner; }
  bool usable() const { return ep_ != nullptr && failure_.ok(); }
  ucp_ep_h ep() const { return ep_; }
  // The number of operations that have not completed.
  int in_flight() const { return in_flight_; }
  UcxWorker& worker() { return *worker_; }

  // Request ids grow over the endpoint's whole life, so a late message of an earlier pull matches no request.
  uint64_t NextRequestId() { return ++requests_made_; }

  void SendControl(const pull::Frame& message);
  // Sends DATA: its head and the piece. Calls `done` exactly once, possibly before SendData returns. Until
  // `done` is called, UCX may read `piece`, and the endpoint keeps `hold`.
  void SendData(const pull::Data& head, ConstHostSpan piece, std::shared_ptr<void> hold, Done done);
  // Reads remote memory into `destination`. Calls `done` as SendData does.
  void Get(HostSpan destination, uint64_t remote_address, ucp_rkey_h rkey, Done done);

  // Closes by force: completes every operation in flight, and then calls `closed`, which may be null, in a
  // separate task. May be called several times. After Close, OnRendezvousReceived is the only method of the
  // owner that the endpoint calls.
  void Close(std::function<void()> closed);

  // The worker calls these.
  void ControlArrived(std::string_view bytes);
  ucs_status_t DataArrived(std::string_view header_bytes, void* data, uint64_t bytes, bool rendezvous);
  void Fail(absl::Status status);

 private:
  struct Operation;
  explicit UcxEndpoint(UcxWorker* worker) : worker_(worker) {}
  static absl::StatusOr<std::shared_ptr<UcxEndpoint>> Create(UcxWorker* worker, ucp_ep_params_t& params);
  static void ErrorCallback(void* arg, ucp_ep_h ep, ucs_status_t status);
  static void SendCallback(void* request, ucs_status_t status, void* user_data);
  static void ReceiveCallback(void* request, ucs_status_t status, size_t bytes, void* user_data);

  Operation* StartOperation(Done done);
  // Takes the result of a UCX nbx call: completes the operation now if UCX has already completed it.
  void Started(Operation* operation, ucs_status_ptr_t result);
  void Complete(Operation* operation, ucs_status_t status);
  void MaybeClosed();

  UcxWorker* const worker_;
  ucp_ep_h ep_ = nullptr;
  EndpointOwner* owner_ = nullptr;
  absl::Status failure_;
  int in_flight_ = 0;
  uint64_t requests_made_ = 0;
  bool closing_ = false;
  bool closed_ = false;
  std::vector<std::function<void()>> on_closed_;
};

}  // namespace tensorcast::transport
