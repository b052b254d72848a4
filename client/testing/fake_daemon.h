// A daemon in the test's process, with real gRPC, a real handle socket and a real host pool, but without an
// engine. It stores puts, serves attaches, and fails as a test asks. For this folder's tests. Its RPCs are
// thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/artifact/manifest.h"
#include "core/difference/difference_encoder.h"
#include "core/handles/handle_server.h"
#include "core/memory/host_pool.h"
#include "proto/daemon.grpc.pb.h"
#include "proto/global_store.grpc.pb.h"
#include "rpc/executor.h"
#include "rpc/handlers.h"
#include "rpc/server.h"

namespace tensorcast::client {

class FakeDaemon {
 public:
  explicit FakeDaemon(const std::string& folder);
  ~FakeDaemon();

  const std::string& address() const { return address_; }
  HandleServer& handles() { return *handles_; }

  // StopServing and then Serve act like a restart at the same address: artifacts and keys stay.
  void StopServing();
  void Serve();

  // Behaviour of the next calls. A test sets it before the call.
  std::atomic<int> unavailable_materializes{0};  // the next N fail
  std::atomic<bool> hang_materialize{false};     // until cancelled
  std::atomic<bool> hang_after_result{false};    // until cancelled, after progress of kBytesAfterResult
  static constexpr uint64_t kBytesAfterResult = 7;
  std::atomic<int> unavailable_puts{0};  // the next N fail after their offers were taken
  std::atomic<bool> corrupt_manifest{false};
  std::atomic<bool> device_claims{false};          // tickets give device memory
  std::atomic<uint64_t> image_bytes_of_claims{0};  // the image size that claims report; 0: the true size
  std::atomic<bool> hide_handle_socket{false};
  std::function<absl::Status(const v1::ImportArtifactRequest&)> on_import;

  void SetKey(const std::string& key, const std::string& artifact_id, uint64_t revision,
              const std::string& files_id = "");
  void RemoveKey(const std::string& key, bool tell_watchers = true);
  // Stores the difference between two artifacts; a description of the target then lists it.
  void KeepDifference(const std::string& base_id, const std::string& target_id,
                      const EncodedDifference& difference);
  void ForgetDifferences();
  int watchers() const;
  // Every watch ends with UNAVAILABLE.
  void BreakWatches();

  std::atomic<int> manifests_sent{0};
  // The replicas that are pinned.
  std::set<std::string> pinned() const;

  v1::MaterializeReplicaRequest last_materialize;
  v1::PutArtifactRequest last_put;  // all messages of the last put, merged
  std::vector<std::string> request_ids;

 private:
  class StoreDaemonService;
  class GlobalStoreService;
  struct Stored {
    std::shared_ptr<const Manifest> manifest;
    std::shared_ptr<HostAllocation> memory;
  };
  using Watcher = std::pair<std::shared_ptr<rpc::StreamWriter<v1::WatchKeysResponse>>, rpc::Finisher>;

  // The path that clients are told.
  std::string handle_socket() const {
    return hide_handle_socket ? "/elsewhere/handles.sock" : handles_->path();
  }
  absl::StatusOr<std::string> Keep(const v1::PutArtifactRequest& put);
  // Sends the manifest in small pieces.
  absl::Status SendManifest(const Manifest& manifest,
                            rpc::StreamWriter<v1::MaterializeReplicaResponse>& writer);
  absl::StatusOr<std::string> Store(ImageLayout layout, std::span<const std::byte> image,
                                    std::map<std::string, std::string> metadata, ArtifactKind kind);
  absl::StatusOr<Stored> Find(const std::string& artifact_id);
  Claim ClaimOf(const Stored& stored);
  void Tell(const v1::WatchKeysResponse& change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string folder_;
  std::string address_;
  std::unique_ptr<HostPool> pool_;
  std::unique_ptr<HandleServer> handles_;
  mutable absl::Mutex mutex_;
  std::map<std::string, Stored> stored_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, v1::Key> keys_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::Difference> differences_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> pinned_ ABSL_GUARDED_BY(mutex_);
  std::vector<Watcher> watchers_ ABSL_GUARDED_BY(mutex_);
  rpc::Executor executor_;
  std::unique_ptr<StoreDaemonService> daemon_service_;
  std::unique_ptr<GlobalStoreService> store_service_;
  std::unique_ptr<rpc::Server> server_;
};

}  // namespace tensorcast::client
