#include "client/daemon_link.h"

#include <grpcpp/channel.h>
#include <sys/stat.h>

#include <utility>

#include "base/address.h"
#include "base/ids.h"
#include "base/status.h"
#include "rpc/call.h"
#include "rpc/channel.h"

namespace tensorcast::client {
namespace {

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

absl::StatusOr<std::unique_ptr<DaemonLink>> DaemonLink::Connect(const std::string& address,
                                                                const ClientCertificates& certificates,
                                                                absl::Duration timeout,
                                                                const Cancellation& cancellation) {
  if (address.empty()) return absl::InvalidArgumentError("no daemon is given: it is unix:/path or host:port");
  TC_ASSIGN_OR_RETURN(std::shared_ptr<const rpc::Credentials> credentials, Load(certificates, address));
  const std::string_view doubt = address.starts_with("unix:") ? "may this user open its socket"
                                 : credentials == nullptr
                                     ? "does it want certificates (security.ca, .certificate, .key)"
                                     : "has it certificates, as this process has";
  auto link = std::unique_ptr<DaemonLink>(new DaemonLink(address, std::move(credentials)));
  RequestContext context = RequestContext::Background(timeout);
  context.cancellation = cancellation;
  auto status = link->GetStatus(context, timeout);
  // A global store answers, too: to whom an operator has to go whose calls no daemon may forward.
  if (absl::IsUnimplemented(status.status())) return link;
  if (!status.ok()) {
    // Anything else is an answer, and says better what is wrong.
    const bool silent = absl::IsDeadlineExceeded(status.status()) || absl::IsUnavailable(status.status());
    if (!silent) return Annotate(status.status(), absl::StrCat("the daemon at ", address));
    return absl::UnavailableError(absl::StrCat("the daemon at ", address, " did not answer within ",
                                               absl::FormatDuration(timeout), " (", status.status().message(),
                                               "); is it running, is this its address, and ", doubt, "?"));
  }
  absl::MutexLock lock(&link->mutex_);
  link->handle_socket_ = status->node().handle_socket();
  return link;
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
  if (!IsSocket(path)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the handle socket \"", path, "\" of the daemon at ", address_,
                     " is not on this host, so its tensors cannot be reached from here: use the daemon of "
                     "this host (in a container, "
                     "mount the socket's folder)"));
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
