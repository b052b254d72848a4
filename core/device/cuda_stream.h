// The cuda backend's streams, and what those of one runtime share. Private to this folder.
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

// Which devices reach each other's memory. Thread-safe.
class PeerAccess {
 public:
  // Whether what runs on `device` reaches memory of `other`, after the first call says so to CUDA. Where it
  // does not, copies between them go through the host, by CUDA itself.
  bool Enable(int device, int other);

 private:
  absl::Mutex mutex_;
  std::map<std::pair<int, int>, bool> asked_ ABSL_GUARDED_BY(mutex_);
};

// Device memory for the digests of one batch, lent to streams. It is kept to the end: cudaFree would wait for
// everything that runs on the device. Thread-safe.
class DigestBuffers {
 public:
  ~DigestBuffers();

  absl::StatusOr<DevicePtr> Take(int device);
  // REQUIRES: nothing that runs uses it any more.
  void Give(DevicePtr buffer);

 private:
  absl::Mutex mutex_;
  std::map<int, std::vector<DevicePtr>> idle_ ABSL_GUARDED_BY(mutex_);
  std::vector<DevicePtr> all_ ABSL_GUARDED_BY(mutex_);
};

// What the streams of a runtime share, and must not outlive.
struct StreamsShare {
  AllocationTable allocations;
  PeerAccess peers;
  DigestBuffers digest_buffers;
};

// `shared` must outlive the stream.
absl::StatusOr<std::unique_ptr<Stream>> MakeCudaStream(int device, bool can_digest, StreamsShare& shared);

}  // namespace tensorcast
