// Where a node keeps replicas, apart from its GPUs: page-locked host memory and, unless it is switched off,
// the packed files of its disk tier; and what it may import. Thread-safe once open.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "core/device/device_runtime.h"
#include "core/disk/artifact_store.h"
#include "core/disk/import_roots.h"
#include "core/memory/host_pool.h"
#include "core/replica/replica.h"
#include "daemon/app/daemon_options.h"

namespace tensorcast::daemon {

class Storage {
 public:
  // `devices` must outlive it.
  static absl::StatusOr<std::unique_ptr<Storage>> Open(const DaemonOptions& options, DeviceRuntime* devices);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  HostPool& pool() const { return *pool_; }
  ArtifactStore* artifacts() const { return artifacts_.get(); }  // null: no disk tier
  const ImportRoots& import_roots() const { return import_roots_; }

  // Whether another replica of this one's artifact is a packed file here, looked at just now. An error when
  // the file is listed, but is not what it should be.
  absl::StatusOr<bool> HasPacked(const ReplicaInfo& replica) const;

 private:
  explicit Storage(DeviceRuntime* devices) : devices_(devices) {}

  DeviceRuntime* const devices_;
  std::unique_ptr<HostPool> pool_;
  size_t page_locked_segments_ = 0;  // of those from the pool's start on
  std::unique_ptr<ArtifactStore> artifacts_;
  ImportRoots import_roots_;
};

}  // namespace tensorcast::daemon
