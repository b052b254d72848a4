// Maps each running gRPC call to its RequestContext. The key is the address of the call's gRPC context.
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
// The session of the calling client: one value for the life of a client object.
inline constexpr char kSessionIdKey[] = "tc-session-id";
// The number of the attempt at the same call; sent from the second attempt on.
inline constexpr char kAttemptKey[] = "tc-attempt";
// The name of the caller that a node makes the call for (access.h).
inline constexpr char kCallerKey[] = "tc-caller";
// The number of messages in a client stream. With this number a server detects a stream that was cut off.
inline constexpr char kStreamMessagesKey[] = "tc-stream-messages";

inline constexpr size_t kMaxRequestIdBytes = 128;

// The caller, as the server determined it (access.h).
struct Caller {
  std::string peer;    // the URI name in the peer's certificate; empty: no certificate
  std::string asking;  // the original caller: the peer, or the name that the peer calls for; "operator" or
                       // "client" for callers of this host. Empty if callers are not checked
};

class CallContexts {
 public:
  static CallContexts& ForServer();
  static CallContexts& ForClient();

  struct Entry {
    RequestContext context;
    Caller caller;         // for servers that check their callers (access.h); else empty
    absl::Status refused;  // why the call is refused; OK: it is allowed
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

// The context of a call being served. If the server was not made by rpc::Server, a new context with the
// call's deadline.
RequestContext ServerCallContext(grpc::ServerContextBase* call);

// The caller of a call at a server that checks its callers (access.h); empty at other servers.
Caller CallerOf(const grpc::ServerContextBase& call);

// The deadline of a call being served, InfiniteFuture when the client set none.
SteadyTime ServerCallDeadline(const grpc::ServerContextBase& call);

// Converts a deadline to gRPC's monotonic clock.
gpr_timespec ToGrpcDeadline(SteadyTime deadline);

}  // namespace tensorcast::rpc
