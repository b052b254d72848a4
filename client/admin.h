// What tools and operators need beside Client: listing, deleting, pinning, status. Results are the contract's
// own messages. Thread-safe. Errors as in client.h.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "proto/daemon.pb.h"
#include "proto/global_store.pb.h"

namespace tensorcast::client {

class AdminClient {
 public:
  // `daemon` is unix:/path or host:port. Fails with UNAVAILABLE when nobody answers within the timeout, with
  // CANCELLED when it is given up before.
  static absl::StatusOr<std::unique_ptr<AdminClient>> Connect(
      const std::string& daemon, absl::Duration connect_timeout = absl::Seconds(5),
      const Cancellation& cancellation = {});
  virtual ~AdminClient() = default;

  // All pages.
  virtual absl::StatusOr<std::vector<v1::Artifact>> ListArtifacts(const RequestContext& context,
                                                                  bool unkeyed_only,
                                                                  absl::Duration min_age) = 0;
  virtual absl::Status DeleteArtifact(const RequestContext& context, std::string_view artifact_id,
                                      bool only_if_unkeyed) = 0;

  // This daemon's replicas; of one artifact, or all of them.
  virtual absl::StatusOr<std::vector<v1::Replica>> ListReplicas(const RequestContext& context,
                                                                std::string_view artifact_id) = 0;
  virtual absl::Status EvictReplica(const RequestContext& context, std::string_view replica_id,
                                    bool force) = 0;
  virtual absl::Status SetPinned(const RequestContext& context, std::string_view replica_id, bool pinned) = 0;

  virtual absl::StatusOr<v1::GetStatusResponse> GetStatus(const RequestContext& context) = 0;
  // Calls `on_status` with the status now and after each interval, until the context ends or it returns
  // false.
  virtual absl::Status WatchStatus(const RequestContext& context, absl::Duration interval,
                                   std::function<bool(const v1::GetStatusResponse&)> on_status) = 0;
  virtual absl::StatusOr<v1::GetClusterStatusResponse> GetClusterStatus(const RequestContext& context) = 0;
  virtual absl::Status DrainNode(const RequestContext& context, std::string_view node_id, bool draining) = 0;
};

}  // namespace tensorcast::client
