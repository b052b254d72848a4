// A connection to a store daemon: the channel, both services' stubs, and what the daemon said of itself.
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
#include "otel/api/span.h"
#include "proto/daemon.grpc.pb.h"
#include "proto/global_store.grpc.pb.h"
#include "rpc/credentials.h"
#include "tensorcast/client.h"

namespace tensorcast::client {

class DaemonLink {
 public:
  struct Target {
    std::string address;
    ClientCertificates certificates;
    absl::Duration timeout;  // for the answer of a daemon that is there
    absl::Duration wait;     // for one that is not there yet
  };
  // UNAVAILABLE when nothing listens at the address, at once unless it is to be waited for, or what listens
  // does not answer within the timeout; PERMISSION_DENIED when this user may not connect; CANCELLED when it
  // is given up before. INVALID_ARGUMENT for certificates that do not fit together.
  static absl::StatusOr<std::unique_ptr<DaemonLink>> Connect(const Target& target,
                                                             const Cancellation& cancellation);

  v1::StoreDaemon::Stub& daemon() const { return *daemon_; }
  v1::GlobalStore::Stub& global_store() const { return *global_store_; }  // served by the daemon too
  const std::string& address() const { return address_; }

  // FAILED_PRECONDITION, with the reason, when the daemon's handle socket is not on this host: the daemon can
  // be managed but its bytes cannot be reached. PERMISSION_DENIED when this user may not look.
  absl::Status CheckHandleSocket(const std::string& path) const;
  // The handle socket's path, and errors as CheckHandleSocket's. Asks the daemon the first time, and again
  // where the path that it gave is not there.
  absl::StatusOr<std::string> HandleSocket(const RequestContext& context) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  DaemonLink(const std::string& address, std::shared_ptr<const rpc::Credentials> credentials);
  // One try of Connect.
  absl::Status Greet(RequestContext context, absl::Duration timeout, bool in_clear);

  const std::string address_;
  const std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::StoreDaemon::Stub> daemon_;
  std::unique_ptr<v1::GlobalStore::Stub> global_store_;
  absl::Mutex mutex_;
  std::string handle_socket_ ABSL_GUARDED_BY(mutex_);
};

// The context of one operation of the library: the caller's, with a request id and a trace where it has none.
RequestContext OperationContext(const RequestContext& context);

// Runs an operation in a span of its own, the parent of the calls that it makes.
template <class Work>
auto InSpan(std::string_view name, const RequestContext& context, Work work) {
  RequestContext operation = OperationContext(context);
  otel::Span span(name, operation);
  span.AttachTo(&operation);
  return span.Record(work(operation));
}

}  // namespace tensorcast::client
