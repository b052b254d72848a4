// Decides whether a caller may make a call. A server with certificates, or with a socket that grants only
// some roles, has an AccessControl. Its interceptor asks before each call, and a refused call ends before its
// handler runs.
//
// A process that calls on behalf of another sends that name (metadata `tc-caller`). Only nodes may do that,
// and such calls have the rights of a client, never of an operator: no process can delete or drain with a
// node's certificate.
//
// Internal to this folder; thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/request_context.h"
#include "base/task_loop.h"
#include "rpc/call_contexts.h"
#include "rpc/credentials.h"
#include "security/roles.h"

namespace grpc {
class ServerContextBase;
}  // namespace grpc

namespace tensorcast::rpc {

class AccessControl {
 public:
  struct Options {
    std::shared_ptr<const Credentials> credentials;  // null: the server only has unix sockets
    security::RoleSet unix_roles;                    // of callers over a unix socket
    std::string unix_socket;                         // its path, for messages
    std::string operator_socket;                     // this and `admit`: see ServerOptions
    std::function<absl::Status()> admit;
  };
  explicit AccessControl(Options options);

  struct Decision {
    Caller caller;
    absl::Status refused;                  // PERMISSION_DENIED, UNAUTHENTICATED, or the error of `admit`
    Credentials::Certificate certificate;  // null: the caller has none
  };
  // The current result of `admit`.
  absl::Status Admit() const { return options_.admit != nullptr ? options_.admit() : absl::OkStatus(); }
  // `label` is "GlobalStore/BindKey"; `on_behalf_of` is the metadata, empty without it.
  Decision Decide(const grpc::ServerContextBase& call, std::string_view label,
                  std::string_view on_behalf_of) const;

  // Between Began and Ended, a call is cancelled when its caller's certificate expires or is denied.
  void Began(const void* call, Credentials::Certificate certificate, Cancellation cancellation);
  void Ended(const void* call);

 private:
  struct Running {
    Credentials::Certificate certificate;
    Cancellation cancellation;
  };
  void CancelOverdue();

  // Why the caller may not make the call, and what to do.
  absl::Status Refusal(std::string_view label, const Caller& caller, security::RoleSet wanted) const;

  const Options options_;
  absl::Mutex mutex_;
  std::unordered_map<const void*, Running> running_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<TaskLoop> sweep_;  // last: it uses the other members
};

}  // namespace tensorcast::rpc
