#include "rpc/access.h"

#include <grpcpp/server_context.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "otel/api/metrics_catalogue.h"
#include "rpc/endpoint_access.h"

namespace tensorcast::rpc {
namespace {

using security::Contains;
using security::Only;
using security::Role;
using security::RoleSet;

constexpr absl::Duration kSweepInterval = absl::Seconds(1);
constexpr RoleSet kClient = Only(Role::kClient);

// Those of a host have no certificate: a socket stands for a role.
std::string_view TextOfUnix(RoleSet roles) {
  return security::RoleText(Contains(roles, Role::kOperator) ? Role::kOperator : Role::kClient);
}

// Nullopt when the node names no client or operator: the node then calls for itself.
std::optional<std::string> Asking(const security::Identity& identity, std::string_view said) {
  if (said == security::RoleText(Role::kClient) || said == security::RoleText(Role::kOperator)) {
    return std::string(said);
  }
  const absl::StatusOr<security::Name> name = security::ParseName(said);
  if (!name.ok() || (name->role != Role::kClient && name->role != Role::kOperator)) return std::nullopt;
  // A denied name gets no rights through a node either.
  if (!identity.CheckName(*name).ok()) return std::nullopt;
  return name->ToString();
}

}  // namespace

AccessControl::AccessControl(Options options) : options_(std::move(options)) {
  if (options_.credentials == nullptr) return;
  sweep_ = TaskLoop::Every(kSweepInterval, [this] { CancelOverdue(); });
}

absl::Status AccessControl::Refusal(std::string_view label, const Caller& caller, RoleSet wanted) const {
  const std::string needs = absl::StrCat("requires the role ", security::RolesText(wanted));
  const bool operators = Contains(wanted, Role::kOperator);
  if (caller.peer.empty()) {
    const std::string remedy =
        !operators || options_.operator_socket.empty()
            ? "; let a process with the required role make the call"
            : absl::StrCat("; connect to ", options_.operator_socket, " as user ", UserText(geteuid()));
    return absl::PermissionDeniedError(absl::StrCat("call ", label, ": the call ", needs, ", and the socket ",
                                                    options_.unix_socket, " grants the role ", caller.asking,
                                                    remedy));
  }
  const std::string forwarded =
      caller.peer == caller.asking ? "" : absl::StrCat(" on behalf of ", caller.asking);
  const std::string_view server = label.starts_with("GlobalStore/") ? "the global store" : "the daemon";
  const std::string remedy = operators
                                 ? absl::StrCat("; connect to ", server, " with an operator's certificate")
                                 : "; let a process with the required role make the call";
  return absl::PermissionDeniedError(
      absl::StrCat("call ", label, " as ", caller.peer, forwarded, ": the call ", needs, remedy));
}

// Runs on a gRPC thread at the beginning of each call. The order: may the server answer at all (`admit`),
// which certificate the connection has, which roles follow from it or from the socket, and whether one of
// them may make this call. `caller` is filled for refused calls, too, since the refusal names it.
AccessControl::Decision AccessControl::Decide(const grpc::ServerContextBase& call, std::string_view label,
                                              std::string_view on_behalf_of) const {
  Decision decision;
  decision.refused = Admit();
  if (!decision.refused.ok()) return decision;
  // A caller without a certificate has the role of the socket; with one, the role in its name.
  RoleSet roles = options_.unix_roles;
  std::string_view role = TextOfUnix(options_.unix_roles);
  if (options_.credentials != nullptr) {
    absl::StatusOr<Credentials::Certificate> certificate = options_.credentials->CallerOf(call);
    if (!certificate.ok()) {
      decision.refused = certificate.status();
      otel::metrics::kRpcCallsRefused.Add(1, {label, ""});
      return decision;
    }
    decision.certificate = *std::move(certificate);
    // TLS always shows a certificate. A connection that is not a unix socket must not get the rights of one.
    if (decision.certificate == nullptr && !call.peer().starts_with("unix:")) {
      decision.refused = absl::UnauthenticatedError(
          absl::StrCat("call ", label,
                       ": the connection shows no certificate; set security.ca, security.certificate and "
                       "security.key of the caller"));
      return decision;
    }
  }
  if (decision.certificate == nullptr) {
    decision.caller.asking = role;
  } else {
    const security::Name& peer = decision.certificate->name;
    decision.caller.peer = peer.ToString();
    decision.caller.asking = decision.caller.peer;
    role = security::RoleText(peer.role);
    roles = Only(peer.role);
    // A node that calls for one of its clients gets a client's rights beside its own, never an operator's:
    // it could name any operator.
    if (peer.role == Role::kNode && !on_behalf_of.empty()) {
      if (auto asking = Asking(options_.credentials->identity(), on_behalf_of); asking.has_value()) {
        decision.caller.asking = *std::move(asking);
        roles |= kClient;
      }
    }
  }
  if (const RoleSet wanted = security::RolesOf(label); (wanted & roles) == 0) {
    decision.refused = Refusal(label, decision.caller, wanted);
    otel::metrics::kRpcCallsRefused.Add(1, {label, role});
  }
  return decision;
}

void AccessControl::Began(const void* call, Credentials::Certificate certificate, Cancellation cancellation) {
  // The interceptor takes the call out again in its destructor, so `running_` has the calls that are under
  // way.
  absl::MutexLock lock(&mutex_);
  running_.insert_or_assign(call, Running{std::move(certificate), std::move(cancellation)});
}

void AccessControl::Ended(const void* call) {
  absl::MutexLock lock(&mutex_);
  running_.erase(call);
}

void AccessControl::CancelOverdue() {
  std::vector<Running> overdue;
  {
    absl::MutexLock lock(&mutex_);
    // The certificate ran out, or its name was denied, since the call began.
    for (const auto& [call, running] : running_) {
      if (!options_.credentials->identity().CheckPeer(*running.certificate).ok()) overdue.push_back(running);
    }
  }
  // A cancellation runs callbacks, which may end the call and so come back here.
  for (const Running& one : overdue) {
    if (one.cancellation.IsCancelled()) continue;
    LOG(WARNING) << "cancel a running call of a peer: "
                 << options_.credentials->identity().CheckPeer(*one.certificate).message();
    one.cancellation.Cancel();
  }
}

}  // namespace tensorcast::rpc
