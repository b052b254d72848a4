// A connection to a store daemon: the channel, the stubs of its services, and the path of its handle socket.
// Private to this folder. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "base/status.h"
#include "otel/api/span.h"
#include "proto/daemon.grpc.pb.h"
#include "proto/global_store.grpc.pb.h"
#include "proto/records.grpc.pb.h"
#include "rpc/call.h"
#include "rpc/credentials.h"
#include "tensorcast/client.h"

namespace tensorcast::client {

class DaemonLink {
 public:
  // Finds the daemon and connects to it; errors as Client::Connect.
  static absl::StatusOr<std::unique_ptr<DaemonLink>> Connect(const ClientOptions& options);

  v1::StoreDaemon::Stub& daemon() const { return *daemon_; }
  v1::GlobalStore::Stub& global_store() const { return *global_store_; }  // forwarded by the daemon
  v1::Records::Stub& records() const { return *records_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  const std::string& address() const { return address_; }

  // FAILED_PRECONDITION if the daemon has no handle socket on this host: this process can then manage the
  // daemon, but cannot reach its memory. PERMISSION_DENIED if this user may not use the socket.
  absl::Status CheckHandleSocket(const std::string& path) const;
  // The handle socket's path. Asks the daemon at the first call, and again if the known path no longer
  // exists. Errors are those of CheckHandleSocket.
  absl::StatusOr<std::string> HandleSocket(const RequestContext& context) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  DaemonLink(const std::string& address, std::shared_ptr<const rpc::Credentials> credentials);
  // One attempt of Connect: waits for the daemon's handshake.
  absl::Status Greet(RequestContext context, absl::Duration timeout, bool in_clear);

  const std::string address_;
  const std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::StoreDaemon::Stub> daemon_;
  std::unique_ptr<v1::GlobalStore::Stub> global_store_;
  std::unique_ptr<v1::Records::Stub> records_;
  absl::Mutex mutex_;
  std::string handle_socket_ ABSL_GUARDED_BY(mutex_);
};

// A copy of the caller's context, with a new request id or trace if the context lacks one.
RequestContext OperationContext(const RequestContext& context);

// Reads all pages of a list into one message. The result may miss changes that happen during the call.
template <class Stub, class Request, class Response>
absl::StatusOr<Response> AllPages(Stub& stub,
                                  grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                               Response*),
                                  const RequestContext& operation, Request request, const char* what) {
  Response all;
  do {
    TC_ASSIGN_OR_RETURN(const Response page,
                        rpc::CallUnary(stub, method, operation, request, {.what = what}));
    all.MergeFrom(page);
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  all.clear_next_page_token();
  return all;
}

// Runs an operation in a span of its own. The span is the parent of the operation's calls.
template <class Work>
auto InSpan(std::string_view name, const RequestContext& context, Work work) {
  RequestContext operation = OperationContext(context);
  otel::Span span(name, operation);
  span.AttachTo(&operation);
  return span.Record(work(operation));
}

}  // namespace tensorcast::client
