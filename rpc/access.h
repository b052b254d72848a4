// Decides whether a caller may make a call. The server's interceptor asks before each call, and a refused
// call ends before its handler runs.
//
// A node that calls on behalf of another caller sends that caller's name (metadata `tc-caller`). Only nodes
// may send a name. Such a call has the rights of a client, never of an operator.
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
    security::RoleSet unix_roles;                    // the roles of callers over a unix socket
    std::string unix_socket;                         // the socket's path, for messages
    std::string operator_socket;                     // see ServerOptions, also for `admit`
    std::function<absl::Status()> admit;
  };
  explicit AccessControl(Options options);

  struct Decision {
    Caller caller;
    absl::Status refused;                  // PERMISSION_DENIED, UNAUTHENTICATED, or the error of `admit`
    Credentials::Certificate certificate;  // null: the caller has no certificate
  };
  // The current result of `admit`.
  absl::Status Admit() const { return options_.admit != nullptr ? options_.admit() : absl::OkStatus(); }
  // `label`: for example "GlobalStore/BindKey". `on_behalf_of`: the value of `tc-caller`; empty if the call
  // has none.
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

  // The error, with a remedy, for a caller that may not make the call.
  absl::Status Refusal(std::string_view label, const Caller& caller, security::RoleSet wanted) const;

  const Options options_;
  absl::Mutex mutex_;
  std::unordered_map<const void*, Running> running_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<TaskLoop> sweep_;  // last: its task uses the other members
};

}  // namespace tensorcast::rpc
