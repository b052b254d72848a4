// Where a node keeps replicas outside GPUs: page-locked host memory and, if configured, the disk tier. Also
// opens the files and objects that the node may import. Thread-safe once open.
#pragma once

#include <cstddef>
#include <memory>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/device/device_runtime.h"
#include "core/device/numa.h"
#include "core/disk/artifact_store.h"
#include "core/memory/host_pool.h"
#include "core/replica/replica.h"
#include "core/source/object_reader.h"
#include "daemon/app/daemon_options.h"
#include "daemon/keeper/kept_pool.h"
#include "daemon/sources/origin_files.h"
#include "objects/http/read_rates.h"
#include "objects/s3/s3_writer.h"

namespace tensorcast::daemon {

class Storage {
 public:
  // `devices` and `kept` must outlive the result; `kept` may be null.
  static absl::StatusOr<std::unique_ptr<Storage>> Open(const DaemonOptions& options, DeviceRuntime* devices,
                                                       KeptPool* kept);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  HostPool& pool() const { return *pool_; }
  ArtifactStore* artifacts() const { return artifacts_.get(); }                   // null: no disk tier
  const std::shared_ptr<const ObjectStore>& imports() const { return imports_; }  // what may be imported
  // The rate limits, shared by all stores that read objects for this daemon.
  const std::shared_ptr<objects::ReadRates>& read_rates() const { return read_rates_; }
  // Tells whether an object outside this host is immutable (OriginOptions::ParseImmutable).
  const OriginChecker::IsImmutable& is_immutable() const { return is_immutable_; }
  // Null if daemon.archives is empty.
  const std::shared_ptr<const objects::S3Writer>& archives() const { return archives_; }
  // The NUMA nodes of the devices; the pool is allocated near them.
  const NumaNodes& numa_nodes() const { return numa_nodes_; }

  // Whether another replica on this node is a packed file of the same artifact. FAILED_PRECONDITION when the
  // packed file was cut short; other errors when it cannot be read.
  absl::StatusOr<bool> HasPacked(const ReplicaInfo& replica) const;

 private:
  explicit Storage(DeviceRuntime* devices)
      : devices_(devices), numa_nodes_(NumaNodesOf(devices->devices())) {}

  absl::Status PageLock(std::byte* begin, uint64_t bytes, HostAccess access);
  absl::Status PageLockAll();
  void Unlock(std::byte* begin);

  DeviceRuntime* const devices_;
  const NumaNodes numa_nodes_;
  absl::Mutex mutex_;
  std::set<std::byte*> page_locked_ ABSL_GUARDED_BY(mutex_);  // segments of the pool
  std::unique_ptr<HostPool> pool_;
  std::shared_ptr<ArtifactStore> artifacts_;
  std::shared_ptr<objects::ReadRates> read_rates_;
  std::shared_ptr<const ObjectStore> imports_;
  OriginChecker::IsImmutable is_immutable_;
  std::shared_ptr<const objects::S3Writer> archives_;
};

}  // namespace tensorcast::daemon
