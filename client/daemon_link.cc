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

// One channel serves all stubs: a daemon answers the calls of the global store, too, by passing them on.
DaemonLink::DaemonLink(const std::string& address, std::shared_ptr<const rpc::Credentials> credentials)
    : address_(address),
      channel_(rpc::MakeChannel(address, {.credentials = std::move(credentials), .session_id = NewUuid()})),
      daemon_(v1::StoreDaemon::NewStub(channel_)),
      global_store_(v1::GlobalStore::NewStub(channel_)),
      records_(v1::Records::NewStub(channel_)) {}

// Each try looks for the daemon again: where none was named, one may come to any of the default folders.
absl::StatusOr<std::unique_ptr<DaemonLink>> DaemonLink::Connect(const ClientOptions& options) {
  RequestContext context = RequestContext::Background(options.wait_for_daemon + options.connect_timeout);
  context.cancellation = options.cancellation;
  std::unique_ptr<DaemonLink> link;
  const auto connect = [&](const rpc::Attempt&) -> absl::Status {
    // The channel is made anew with each try: the address, and the certificates in the files, may have
    // changed.
    TC_ASSIGN_OR_RETURN(const std::string address, FindDaemon(options.daemon));
    TC_RETURN_IF_ERROR(CheckServerAddress(address));
    TC_ASSIGN_OR_RETURN(std::shared_ptr<const rpc::Credentials> credentials,
                        Load(options.certificates, address));
    const bool in_clear = credentials == nullptr;
    link.reset(new DaemonLink(address, std::move(credentials)));
    return link->Greet(context, options.connect_timeout, in_clear);
  };
  TC_RETURN_IF_ERROR(rpc::RetryUnavailable(
      context, {.retry_for = options.wait_for_daemon, .what = "connect to the daemon"}, connect));
  return link;
}

// By the handshake of the connection, so that no call is spent: one to a process that is stopped, or speaks
// another protocol, does not end it.
absl::Status DaemonLink::Greet(RequestContext context, absl::Duration timeout, bool in_clear) {
  context.deadline = std::min(context.deadline, SteadyNow() + timeout);
  // First by a plain connection, of which the errno says why nothing answers. gRPC would only say
  // UNAVAILABLE.
  TC_RETURN_IF_ERROR(CheckListener(address_, context));
  const std::string what = absl::StrCat("connect to the daemon at ", address_);
  const absl::Status connected = rpc::AwaitConnection(*channel_, context, what);
  if (absl::IsDeadlineExceeded(connected)) {
    return absl::UnavailableError(
        absl::StrCat(what, ": no answer came within ", absl::FormatDuration(timeout),
                     "; check whether the daemon is suspended, and check the network"));
  }
  if (!absl::IsUnavailable(connected)) return connected;
  const std::string_view remedy =
      IsUnixAddress(address_) ? "check that a daemon listens on this socket"
      : in_clear
          ? "if the daemon requires certificates, give this client ca, certificate and key (in the CLI: "
            "security.ca, security.certificate and security.key)"
          : "check that the daemon has a certificate of the same authority";
  return absl::UnavailableError(absl::StrCat(what, ": the peer ended the connection; ", remedy));
}

absl::Status DaemonLink::CheckHandleSocket(const std::string& path) const {
  struct stat info{};
  const bool found = !path.empty() && stat(path.c_str(), &info) == 0;
  if (found && S_ISSOCK(info.st_mode)) return absl::OkStatus();
  if (!path.empty() && !found && errno == EACCES) {
    return absl::PermissionDeniedError(absl::StrCat(
        "reach the handle socket \"", path, "\" of the daemon at ", address_, ": user ", geteuid(),
        " may not use this socket; run this program as the daemon's user, or as a member of a group in "
        "daemon.handle_groups"));
  }
  if (path.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("reach the handle socket of the daemon at ", address_,
                                                      ": this daemon offers no handle socket; use the daemon "
                                                      "of this host, and set daemon.local_lane: true in its "
                                                      "configuration"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("reach the handle socket \"", path, "\" of the daemon at ", address_,
                   ": the socket is not on this host; use the daemon of this host (in a container, mount the "
                   "socket's folder)"));
}

absl::StatusOr<std::string> DaemonLink::HandleSocket(const RequestContext& context) {
  {
    absl::MutexLock lock(&mutex_);
    // A daemon that was started again may have another one; only where this one is gone is it asked.
    if (CheckHandleSocket(handle_socket_).ok()) return handle_socket_;
  }
  // Without the lock, which no call may hold. Two callers can ask at once, and both get the same answer.
  TC_ASSIGN_OR_RETURN(const v1::GetStatusResponse status,
                      rpc::CallUnary(*daemon_, &v1::StoreDaemon::Stub::GetStatus, context, {},
                                     {.what = "get the handle socket of the daemon"}));
  const std::string& path = status.node().handle_socket();
  TC_RETURN_IF_ERROR(CheckHandleSocket(path));
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
