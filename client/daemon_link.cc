#include "client/daemon_link.h"

#include <grpcpp/channel.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

#include "base/address.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "client/daemon_address.h"
#include "rpc/call.h"
#include "rpc/channel.h"

namespace tensorcast::client {
namespace {

constexpr absl::Duration kReconnectTime = absl::Milliseconds(200);

bool IsSocket(const std::string& path) {
  struct stat info{};
  return !path.empty() && stat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode);
}

// Null where the connection is in clear.
absl::StatusOr<std::shared_ptr<const rpc::Credentials>> Load(const ClientCertificates& files,
                                                             const std::string& address) {
  if (IsUnixAddress(address)) return nullptr;
  if (files.ca.empty() && files.certificate.empty() && files.key.empty()) return nullptr;
  TC_ASSIGN_OR_RETURN(std::shared_ptr<security::Identity> identity,
                      security::Identity::Load({.ca = files.ca,
                                                .certificate = files.certificate,
                                                .key = files.key,
                                                .trust_domain = files.trust_domain}));
  return std::make_shared<const rpc::Credentials>(std::move(identity));
}

}  // namespace

DaemonLink::DaemonLink(const std::string& address, std::shared_ptr<const rpc::Credentials> credentials)
    : address_(address) {
  const auto channel =
      rpc::MakeChannel(address, {.credentials = std::move(credentials), .session_id = NewUuid()});
  daemon_ = v1::StoreDaemon::NewStub(channel);
  global_store_ = v1::GlobalStore::NewStub(channel);
}

// Each try looks for the daemon again: where none was named, one may come to any of the default folders.
absl::StatusOr<std::unique_ptr<DaemonLink>> DaemonLink::Connect(const ClientOptions& options) {
  RequestContext context = RequestContext::Background(options.wait_for_daemon + options.connect_timeout);
  context.cancellation = options.cancellation;
  std::unique_ptr<DaemonLink> link;
  const auto connect = [&](const rpc::Attempt&) -> absl::Status {
    TC_ASSIGN_OR_RETURN(const std::string address, FindDaemon(options.daemon));
    TC_RETURN_IF_ERROR(CheckServerAddress(address));
    TC_ASSIGN_OR_RETURN(std::shared_ptr<const rpc::Credentials> credentials,
                        Load(options.certificates, address));
    const bool in_clear = credentials == nullptr;
    link.reset(new DaemonLink(address, std::move(credentials)));
    return link->Greet(context, options.connect_timeout, in_clear);
  };
  TC_RETURN_IF_ERROR(
      rpc::RetryUnavailable(context, {.retry_for = options.wait_for_daemon, .what = "connecting"}, connect));
  return link;
}

absl::Status DaemonLink::Greet(RequestContext context, absl::Duration timeout, bool in_clear) {
  context.deadline = std::min(context.deadline, SteadyNow() + timeout);
  TC_RETURN_IF_ERROR(CheckListener(address_, context));
  auto status = GetStatus(context, absl::ZeroDuration());
  // gRPC shares connections within a process: one to the daemon that listened here before is found broken by
  // its first use only.
  if (absl::IsUnavailable(status.status())) status = GetStatus(context, kReconnectTime);
  if (status.ok()) {
    absl::MutexLock lock(&mutex_);
    handle_socket_ = status->node().handle_socket();
    return absl::OkStatus();
  }
  // A global store answers, too: an operator connects to it for what no daemon may forward.
  if (absl::IsUnimplemented(status.status())) return absl::OkStatus();
  if (absl::IsDeadlineExceeded(status.status())) {
    return absl::UnavailableError(absl::StrCat("connect to the daemon at ", address_,
                                               ": it did not answer within ", absl::FormatDuration(timeout),
                                               "; check that the process that listens there is not stopped"));
  }
  if (!absl::IsUnavailable(status.status())) {
    return Annotate(status.status(), absl::StrCat("connect to the daemon at ", address_));
  }
  const std::string_view remedy =
      IsUnixAddress(address_) ? "check that the socket is a daemon's"
      : in_clear ? "where the daemon has certificates, set security.ca, security.certificate and security.key"
                 : "check that the daemon has certificates, of the same authority";
  return absl::UnavailableError(absl::StrCat("connect to the daemon at ", address_,
                                             ": it ended the connection (", status.status().message(), "); ",
                                             remedy));
}

absl::StatusOr<v1::GetStatusResponse> DaemonLink::GetStatus(const RequestContext& context,
                                                            absl::Duration retry_for) const {
  return rpc::CallUnary(*daemon_, &v1::StoreDaemon::Stub::GetStatus, context, {},
                        {.retry_for = retry_for, .what = "asking the daemon for its status"});
}

absl::StatusOr<std::string> DaemonLink::HandleSocket(const RequestContext& context) {
  {
    absl::MutexLock lock(&mutex_);
    // A daemon that was started again may have another one; only where this one is gone is it asked.
    if (IsSocket(handle_socket_)) return handle_socket_;
  }
  TC_ASSIGN_OR_RETURN(const v1::GetStatusResponse status, GetStatus(context, rpc::CallOptions().retry_for));
  const std::string& path = status.node().handle_socket();
  if (struct stat info{}; stat(path.c_str(), &info) != 0 && errno == EACCES) {
    return absl::PermissionDeniedError(absl::StrCat(
        "reach the handle socket \"", path, "\" of the daemon at ", address_, ": user ", geteuid(),
        " may not; run this as the daemon's user, or in a group of daemon.handle_groups"));
  }
  if (!IsSocket(path)) {
    return absl::FailedPreconditionError(
        absl::StrCat("reach the handle socket \"", path, "\" of the daemon at ", address_,
                     ": it is not on this host; use the daemon of this host (in a container, mount the "
                     "socket's folder)"));
  }
  absl::MutexLock lock(&mutex_);
  handle_socket_ = path;
  return path;
}

// One id and one trace for all calls of an operation: repetitions are recognised by the id.
RequestContext OperationContext(const RequestContext& context) {
  RequestContext operation = context;
  if (operation.request_id.empty()) operation.request_id = NewUuid();
  if (!operation.trace.IsValid()) operation.trace = TraceContext::NewRoot();
  return operation;
}

}  // namespace tensorcast::client
