// LiveClient: the calls about live leases (proto/live.proto). A replica in host memory or on a GPU becomes a
// later version at the same addresses while this process is attached to it. For Python and the tests; not
// part of the installed package. Thread-safe. tensorcast/client.h describes the errors and clocks.
#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "proto/live.pb.h"
#include "tensorcast/client.h"

namespace tensorcast {
class ClaimedReplica;
class Manifest;
}  // namespace tensorcast

namespace tensorcast::client {

class DaemonLink;

class LiveClient {
 public:
  // Connects like AdminClient::Connect.
  static absl::StatusOr<std::unique_ptr<LiveClient>> Connect(const ClientOptions& options);
  ~LiveClient();
  LiveClient(const LiveClient&) = delete;
  LiveClient& operator=(const LiveClient&) = delete;

  // Makes the replica's lease a live one. Returns the hold, the token that names the lease in the calls
  // below. FAILED_PRECONDITION if this process is not attached to the whole replica, or if the replica's GPU
  // runs no kernels of the daemon.
  absl::StatusOr<std::string> MakeLive(const RequestContext& context, const Replica& replica);
  // Stages a version for the replica; the replica does not change. Also fetches the version's manifest, so
  // that Commit need not fetch it.
  absl::Status Prepare(const RequestContext& context, const std::string& hold,
                       const std::string& artifact_id);

  // The version that a replica has become.
  struct Committed {
    std::string hold;  // names the lease from now on
    v1::Replica replica;
    std::shared_ptr<const Manifest> manifest;
  };
  // Waits at most `wait` until all holders of the replica commit; then the daemon writes the version. The
  // context's deadline must be later than the end of `wait`, because the daemon decides whether the holders
  // were in time. After an error from the daemon, the replica is unchanged, with two exceptions. INTERNAL:
  // a GPU failed during the write, the replica is lost, and the message says so. UNAVAILABLE, or no answer:
  // the replica may be rewritten already or soon, so commit again. If Replica::lost() is true, the bytes may
  // be of both versions.
  //
  // REQUIRES: no work of this process uses the memory meanwhile. On a GPU its kernels and copies run
  // asynchronously, and the daemon cannot see them: synchronise their streams before this call.
  absl::StatusOr<Committed> Commit(const RequestContext& context, const std::string& hold,
                                   const std::string& artifact_id, absl::Duration wait,
                                   const Replica& replica);
  // Makes the replica describe itself as the new version. REQUIRES: no other thread uses `replica` meanwhile.
  static void Adopt(const Committed& committed, const Replica& replica);

 private:
  struct Stubs;
  explicit LiveClient(std::unique_ptr<DaemonLink> link);
  static absl::Status TakeLease(const RequestContext& context, const std::string& handle_socket,
                                const std::string& ticket, ClaimedReplica& claimed);
  absl::StatusOr<std::shared_ptr<const Manifest>> ManifestOf(const RequestContext& context,
                                                             const std::string& artifact_id);

  const std::unique_ptr<DaemonLink> link_;
  const std::unique_ptr<Stubs> stubs_;
  absl::Mutex mutex_;
  std::shared_ptr<const Manifest> manifest_ ABSL_GUARDED_BY(mutex_);  // the one fetched last; may be null
};

}  // namespace tensorcast::client
