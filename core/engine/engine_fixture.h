// The fixture of the engine's tests: an engine on a real host pool, a fake device and a real folder, with a
// listener that records and a guard that can refuse.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/testing/temp_folder.h"
#include "core/device/device_broadcaster.h"
#include "core/device/testing/fault_hooks.h"
#include "core/engine/engine.h"
#include "core/testing/faulty_store.h"
#include "core/testing/scripted_source.h"
#include "core/testing/test_artifact.h"
#include "gtest/gtest.h"

namespace tensorcast::testing {

inline constexpr uint64_t kStagingBytes = kMinChunkBytes;  // of one staging buffer
inline constexpr Location kCpu{LocationKind::kCpu, 0};
inline constexpr Location kGpu{LocationKind::kGpu, 0};
inline constexpr Location kDisk{LocationKind::kDisk, 0};

// Records all changes, and checks that each replica's state changes are legal.
class RecordingListener final : public ReplicaListener {
 public:
  void OnReplicaChanged(const ReplicaInfo& replica, const std::shared_ptr<const Manifest>& manifest) override;
  void OnTransferEnded(const TransferReport& report) override;

  std::vector<ReplicaState> StatesOf(const std::string& replica_id) const;
  std::vector<TransferReport> reports() const;
  // Blocks until `count` transfers have ended.
  void WaitForReports(size_t count) const;
  void WaitForState(const std::string& replica_id, ReplicaState state) const;

 private:
  mutable absl::Mutex mutex_;
  std::map<std::string, std::vector<ReplicaState>> states_ ABSL_GUARDED_BY(mutex_);
  std::vector<TransferReport> reports_ ABSL_GUARDED_BY(mutex_);
};

class ScriptedGuard final : public EvictionGuard {
 public:
  absl::Status MayEvict(const ReplicaInfo& replica) override;

  void Refuse(const std::string& artifact_id);
  void SetUndecided(bool undecided);       // true: the guard cannot ask, and says so of each replica
  std::vector<std::string> asked() const;  // artifact ids

 private:
  mutable absl::Mutex mutex_;
  std::set<std::string> refused_ ABSL_GUARDED_BY(mutex_);
  bool undecided_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::string> asked_ ABSL_GUARDED_BY(mutex_);
};

class EngineFixture : public ::testing::Test {
 protected:
  struct Setup {
    int host_granules = 16;       // in addition to those for staging
    bool share_granules = false;  // HostPool::Options::share_granules
    uint64_t device_pool_bytes = uint64_t{32} << 20;
    int staging_buffers = 2;
    int max_concurrent_ingests = 4;
    bool disk = true;
    bool guard = false;
    bool distrust_other_hosts = false;
    DeviceVerification device_verification = DeviceVerification::kFull;
    absl::Duration peer_timeout = absl::InfiniteDuration();
    DeviceBroadcaster* broadcaster = nullptr;
  };

  EngineFixture();
  ~EngineFixture() override;

  void Start(const Setup& setup);
  void Start() { Start(Setup()); }
  // Ends the engine; the pools must then be empty.
  void Stop();
  // A new engine on the same pools and folder.
  void Restart();

  std::unique_ptr<PendingReplica> Materialize(const TestArtifact& artifact, Location location,
                                              std::shared_ptr<SourceProvider> sources,
                                              const RequestContext& context = {},
                                              bool wait_for_space = false);
  // Makes the replica and waits until it is ready.
  absl::StatusOr<std::unique_ptr<ReplicaLease>> Get(const TestArtifact& artifact, Location location,
                                                    std::shared_ptr<SourceProvider> sources = nullptr,
                                                    bool wait_for_space = false);
  // As Get, from a good source. Dies on an error.
  std::unique_ptr<ReplicaLease> MustGet(const TestArtifact& artifact, Location location);
  absl::StatusOr<std::unique_ptr<ReplicaLease>> IngestFirst(const TestArtifact& artifact, Location location,
                                                            std::shared_ptr<SourceProvider> sources);
  std::vector<std::byte> Read(const ReplicaLease& lease);
  void WaitUntilIdle();  // until no ingest is active

  const TempFolder directory_;
  Setup setup_;
  std::shared_ptr<DeviceFaults> faults_ = std::make_shared<DeviceFaults>();
  std::unique_ptr<HostPool> pool_;
  std::unique_ptr<DeviceRuntime> devices_;
  std::unique_ptr<FaultyStore> store_;
  ScriptedGuard guard_;
  std::unique_ptr<RecordingListener> listener_;
  std::unique_ptr<StoreEngine> engine_;
};

// A reader that serves other nodes: ends its lease when the availability ends.
class Reader {
 public:
  explicit Reader(absl::StatusOr<std::unique_ptr<ReplicaLease>> lease);
  // Ends the lease in any case.
  ~Reader();
  // Whether the availability has ended, which tells the reader to stop.
  bool told_to_stop() const { return chunks_->ended(); }

 private:
  void Stop();

  std::unique_ptr<ReplicaLease> lease_;
  const std::shared_ptr<const Availability> chunks_;
  std::once_flag stops_;
  absl::Notification stop_;
  Availability::Watch watch_;
  std::thread thread_;
};

// A provider of one good source.
std::shared_ptr<ScriptedProvider> GoodProvider(const TestArtifact& artifact);
std::shared_ptr<ScriptedProvider> ProviderOf(const std::vector<std::shared_ptr<SourceControl>>& controls);
// A context with a new cancellation and a deadline after `timeout`.
RequestContext ContextFor(absl::Duration timeout = absl::InfiniteDuration());

}  // namespace tensorcast::testing
