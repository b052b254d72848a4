// Which RequestContext belongs to which gRPC call. gRPC gives interceptors and handlers one thing in common,
// the call's own context object, so the RequestContext is filed under its address while the call lives:
//   server: the interceptor files it, the handler helpers look it up;
//   client: the call helpers file it, the interceptor looks it up and injects it as metadata.
// Thread-safe.
#pragma once

#include <grpc/support/time.h>

#include <array>
#include <optional>
#include <string>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/request_context.h"
#include "base/steady_time.h"

namespace grpc {
class ServerContextBase;
}  // namespace grpc

namespace tensorcast::rpc {

// Metadata keys on the wire.
inline constexpr char kTraceparentKey[] = "traceparent";
inline constexpr char kTracestateKey[] = "tracestate";
inline constexpr char kRequestIdKey[] = "tc-request-id";
// Of the client that calls: the same for all that it does from its connecting to its end.
inline constexpr char kSessionIdKey[] = "tc-session-id";
// Which attempt at the same call this is, when it is not the first.
inline constexpr char kAttemptKey[] = "tc-attempt";
// The name that a call is made for (access.h).
inline constexpr char kCallerKey[] = "tc-caller";
// How many messages a client stream has. A server cannot tell a stream that ended from one that was cut off
// by a cancellation; the count can.
inline constexpr char kStreamMessagesKey[] = "tc-stream-messages";

inline constexpr size_t kMaxRequestIdBytes = 128;

// The caller, as the server found it out (access.h).
struct Caller {
  std::string peer;    // the URI name in the certificate at the other end; empty: there was none
  std::string asking;  // the name that asked: the peer, or the name it calls for; "operator" or "client" for
                       // callers of this host. Empty where nothing is checked
};

class CallContexts {
 public:
  static CallContexts& ForServer();
  static CallContexts& ForClient();

  struct Entry {
    RequestContext context;
    Caller caller;         // of servers that check their callers (access.h); else empty
    absl::Status refused;  // why the call may not be made
  };
  void File(const void* call, Entry entry);
  std::optional<Entry> Find(const void* call) const;
  void Remove(const void* call);

 private:
  struct Shard {
    mutable absl::Mutex mutex;
    std::unordered_map<const void*, Entry> entries ABSL_GUARDED_BY(mutex);
  };
  Shard& shard(const void* call) const;

  mutable std::array<Shard, 16> shards_;
};

// The context of a call being served: deadline, trace, request id; its cancellation is the one that the
// handler helpers cancel. A server made without rpc::Server has none filed; then a fresh one with the call's
// deadline.
RequestContext ServerCallContext(grpc::ServerContextBase* call);

// Of a call being served by a server that checks its callers (access.h); empty for others.
Caller CallerOf(const grpc::ServerContextBase& call);

// The deadline of a call being served, InfiniteFuture when the client set none.
SteadyTime ServerCallDeadline(const grpc::ServerContextBase& call);

// Our deadlines as gRPC takes them: by the monotonic clock, which gRPC measures in anyway. One by the wall
// clock would move when that is set.
gpr_timespec ToGrpcDeadline(SteadyTime deadline);

}  // namespace tensorcast::rpc
