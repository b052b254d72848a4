// Maps each gRPC call to its RequestContext. Interceptors and handlers have only the call's gRPC context in
// common, so the RequestContext is stored under the address of that while the call lives:
//   server: the interceptor stores it, the handler helpers look it up;
//   client: the call helpers store it, the interceptor looks it up and sends it as metadata.
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
// The session of the calling client: one value from its connection to its end.
inline constexpr char kSessionIdKey[] = "tc-session-id";
// The number of the attempt at the same call, from the second on.
inline constexpr char kAttemptKey[] = "tc-attempt";
// The name that the call is made for (access.h).
inline constexpr char kCallerKey[] = "tc-caller";
// The number of messages in a client stream. A server cannot otherwise tell a stream that ended from one that
// was cut off by a cancellation.
inline constexpr char kStreamMessagesKey[] = "tc-stream-messages";

inline constexpr size_t kMaxRequestIdBytes = 128;

// The caller, as the server determined it (access.h).
struct Caller {
  std::string peer;    // the URI name in the peer's certificate; empty: it has none
  std::string asking;  // the name that asked: the peer, or the name that the peer calls for; "operator"
                       // or "client" for callers of this host. Empty if callers are not checked
};

class CallContexts {
 public:
  static CallContexts& ForServer();
  static CallContexts& ForClient();

  struct Entry {
    RequestContext context;
    Caller caller;         // for servers that check their callers (access.h); else empty
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

// The context of a call being served: deadline, trace, request id, and the cancellation that the handler
// helpers trigger. A server made without rpc::Server has stored none; then returns a fresh one with the
// call's deadline.
RequestContext ServerCallContext(grpc::ServerContextBase* call);

// The caller of a call at a server that checks its callers (access.h); empty for others.
Caller CallerOf(const grpc::ServerContextBase& call);

// The deadline of a call being served, InfiniteFuture when the client set none.
SteadyTime ServerCallDeadline(const grpc::ServerContextBase& call);

// Converts a deadline for gRPC: by the monotonic clock, which gRPC uses anyway. A deadline by the wall clock
// would move when that clock is set.
gpr_timespec ToGrpcDeadline(SteadyTime deadline);

}  // namespace tensorcast::rpc
