// Whether a caller may make a call. A server that has certificates, or a socket with fewer rights than all,
// has one of these; its interceptor asks for each call, and a call that is refused ends before its handler
// runs.
//
// A process that calls on behalf of another says so (metadata `tc-caller`). It is believed of nodes alone,
// and gives them what a client may, never what only an operator may: a node's certificate does not permit
// deleting or draining.
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
    std::shared_ptr<const Credentials> credentials;  // null: connections are those of unix sockets
    security::RoleSet unix_roles;                    // of callers over a unix socket
    std::string unix_socket;                         // its path, for messages
    std::string operator_socket;                     // as in ServerOptions, as the next
    std::function<absl::Status()> admit;
  };
  explicit AccessControl(Options options);

  struct Decision {
    Caller caller;
    absl::Status refused;                  // PERMISSION_DENIED, UNAUTHENTICATED, or what `admit` says
    Credentials::Certificate certificate;  // null: there was none
  };
  // What `admit` says now.
  absl::Status Admit() const { return options_.admit != nullptr ? options_.admit() : absl::OkStatus(); }
  // `label` is "GlobalStore/BindKey"; `on_behalf_of` the metadata, empty where there was none.
  Decision Decide(const grpc::ServerContextBase& call, std::string_view label,
                  std::string_view on_behalf_of) const;

  // A call that runs: cancelled when its caller's certificate ends or its name is denied.
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
  std::unique_ptr<TaskLoop> sweep_;  // last: it uses the others
};

}  // namespace tensorcast::rpc
