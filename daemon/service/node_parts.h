// What the calls of the daemon work with: the parts of one running node, borrowed. Everything must outlive
// the services.
#pragma once

#include <atomic>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/disk/artifact_store.h"
#include "core/disk/import_roots.h"
#include "core/engine/engine.h"
#include "core/handles/handle_server.h"
#include "core/memory/host_pool.h"
#include "daemon/global_store_link/known_keys.h"
#include "daemon/service/publications.h"
#include "daemon/serving/serve_registry.h"
#include "daemon/session/sessions.h"
#include "daemon/sources/peer_access.h"
#include "daemon/telemetry/reports.h"
#include "proto/types.pb.h"

namespace tensorcast::daemon {

struct NodeParts {
  std::string node_id;
  std::string global_store_label;  // its address, or "embedded"
  StoreEngine* engine = nullptr;
  HostPool* pool = nullptr;
  DeviceRuntime* devices = nullptr;
  ArtifactStore* artifact_store = nullptr;  // null: no disk tier
  HandleServer* handles = nullptr;
  Sessions* sessions = nullptr;
  ServeRegistry* servings = nullptr;
  TransferLog* transfers = nullptr;
  KnownKeys* known_keys = nullptr;
  PeerAccess access;
  ImportRoots import_roots;
  std::atomic<bool> stopping = false;
  mutable Publications publications;
  mutable std::atomic<int> origin_checks = 0;  // under way

  // This node as it is registered. Its address is known only once the server listens, hence the lock.
  v1::Node Node() const {
    absl::MutexLock lock(&node_mutex);
    return node;
  }
  void SetNode(v1::Node description) {
    absl::MutexLock lock(&node_mutex);
    node = std::move(description);
  }
  mutable absl::Mutex node_mutex;
  v1::Node node ABSL_GUARDED_BY(node_mutex);

  // UNAVAILABLE once the daemon is on its way out.
  absl::Status CheckAccepting() const {
    return stopping ? absl::UnavailableError("this daemon is stopping; ask again when it is back")
                    : absl::OkStatus();
  }

  // The facts of one replica; NOT_FOUND when it is gone.
  absl::StatusOr<ReplicaInfo> FindReplica(std::string_view replica_id) const;
};

}  // namespace tensorcast::daemon
