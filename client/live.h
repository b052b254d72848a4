// LiveClient: the calls of proto/live.proto. With a live lease, an attached replica in host memory or on a
// GPU becomes a later version at the same addresses. For Python and the tests; not part of the installed
// package. Thread-safe. tensorcast/client.h describes the errors and clocks.
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

  // Makes the replica's lease a live lease. Returns the hold: a token that names the lease in the calls
  // below. FAILED_PRECONDITION if this process is not attached to the whole replica, or if the daemon cannot
  // run kernels on the replica's GPU.
  absl::StatusOr<std::string> MakeLive(const RequestContext& context, const Replica& replica);
  // Stages a version for the replica. The replica does not change. Also fetches the version's manifest for
  // Commit.
  absl::Status Prepare(const RequestContext& context, const std::string& hold,
                       const std::string& artifact_id);

  // The version that a replica has become.
  struct Committed {
    std::string hold;  // names the lease from now on
    v1::Replica replica;
    std::shared_ptr<const Manifest> manifest;
  };
  // Waits at most `wait` until all holders of the replica have called Commit. The daemon then writes the
  // version. The context's deadline must be later than now plus `wait`.
  //
  // After an error of the daemon the replica is unchanged, except after:
  // - INTERNAL: a GPU failed during the write, and the replica is lost. The message says so.
  // - UNAVAILABLE, or no answer: the daemon may have written the version, or may still write the version.
  //   Call Commit again.
  // If Replica::lost() is true, the replica may hold bytes of both versions.
  //
  // REQUIRES: no work of this process uses the memory during the call. The daemon cannot see this process's
  // GPU kernels and copies: synchronise their streams before the call.
  absl::StatusOr<Committed> Commit(const RequestContext& context, const std::string& hold,
                                   const std::string& artifact_id, absl::Duration wait,
                                   const Replica& replica);
  // Makes `replica` describe the new version. REQUIRES: no other thread uses `replica` during the call.
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
  std::shared_ptr<const Manifest> manifest_ ABSL_GUARDED_BY(mutex_);  // fetched last; may be null
};

}  // namespace tensorcast::client
