// The cuda backend's streams, and the state that all streams of a runtime share. Private to this folder.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/device/allocation_table.h"
#include "core/device/device_runtime.h"

namespace tensorcast {

// Which devices can access each other's memory. Thread-safe.
class PeerAccess {
 public:
  // Whether code on `device` can access memory of `other`. The first call for two devices enables the access
  // in CUDA. If the result is false, CUDA copies between the two devices through the host.
  bool Enable(int device, int other);

 private:
  absl::Mutex mutex_;
  std::map<std::pair<int, int>, bool> asked_ ABSL_GUARDED_BY(mutex_);
};

// Lends device memory to streams, for the digests of one batch. Only the destructor frees memory, because
// cudaFree waits for all work on the device. Thread-safe.
class DigestBuffers {
 public:
  ~DigestBuffers();

  absl::StatusOr<DevicePtr> Take(int device);
  // Takes a buffer back. REQUIRES: no running work uses the buffer.
  void Give(DevicePtr buffer);

 private:
  absl::Mutex mutex_;
  std::map<int, std::vector<DevicePtr>> idle_ ABSL_GUARDED_BY(mutex_);
  std::vector<DevicePtr> all_ ABSL_GUARDED_BY(mutex_);
};

// The state that the streams of a runtime share. Must outlive these streams.
struct StreamsShare {
  AllocationTable allocations;
  LockedHostTable locked;
  PeerAccess peers;
  DigestBuffers digest_buffers;
};

absl::StatusOr<std::unique_ptr<Stream>> MakeCudaStream(int device, bool runs_kernels, StreamsShare& shared);

}  // namespace tensorcast
