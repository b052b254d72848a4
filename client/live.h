// Live leases: replicas of host memory that become a later version at the same addresses while this process
// is attached to them (proto/live.proto). For Python and the tests; not part of the installed package.
// Thread-safe. Errors and clocks as in tensorcast/client.h.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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
  // As AdminClient::Connect.
  static absl::StatusOr<std::unique_ptr<LiveClient>> Connect(const ClientOptions& options);
  ~LiveClient();
  LiveClient(const LiveClient&) = delete;
  LiveClient& operator=(const LiveClient&) = delete;

  // Makes the replica's lease a live one; the hold that names it below. FAILED_PRECONDITION where the replica
  // is not attached in host memory whole.
  absl::StatusOr<std::string> MakeLive(const RequestContext& context, const Replica& replica);
  // Stages a version for the replica, which stays as it is.
  absl::Status Prepare(const RequestContext& context, const std::string& hold,
                       const std::string& artifact_id);

  // What a replica has become.
  struct Committed {
    std::string hold;  // of the lease from now on
    v1::Replica replica;
    std::shared_ptr<const Manifest> manifest;
  };
  // Waits until all holders of the replica commit, for `wait` at most. The context should last longer: the
  // daemon decides whether that was in time. After its error the replica is as it was. Where the daemon does
  // not answer that is not known: commit again, and where the replica is lost() its bytes may be of both.
  absl::StatusOr<Committed> Commit(const RequestContext& context, const std::string& hold,
                                   const std::string& artifact_id, absl::Duration wait,
                                   const Replica& replica);
  // From here on the replica says that it is the version. REQUIRES: no other thread uses it meanwhile.
  static void Adopt(const Committed& committed, const Replica& replica);

 private:
  struct Stubs;
  explicit LiveClient(std::unique_ptr<DaemonLink> link);
  static absl::Status TakeLease(const RequestContext& context, const std::string& handle_socket,
                                const std::string& ticket, ClaimedReplica& claimed);

  const std::unique_ptr<DaemonLink> link_;
  const std::unique_ptr<Stubs> stubs_;
};

}  // namespace tensorcast::client
