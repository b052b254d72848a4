// Rebuilds chunks of a version (the target) on a GPU, from an earlier version (the base) on the same GPU or
// on a GPU that this GPU reaches. The GPU reads lists of the changes (core/difference: ChangeLists) from
// page-locked host memory. The image passes through no host memory.
//
// The caller must compare each chunk with the target's digest. A chunk may be rebuilt again.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/device/device_runtime.h"
#include "core/difference/difference_decoder.h"

namespace tensorcast::daemon {

class DeviceRebuild {
 public:
  // `devices` must outlive this object. Each running rebuild has memory for `list_bytes` of lists; a chunk
  // with longer lists is made in several parts. UNIMPLEMENTED if device `to` cannot run kernels or cannot
  // reach the memory of device `from`; other errors are those of the device. REQUIRES: list_bytes >=
  // ChangeLists::kMinRoomBytes.
  static absl::StatusOr<std::unique_ptr<DeviceRebuild>> Open(DeviceRuntime* devices, int from, int to,
                                                             uint64_t list_bytes);
  ~DeviceRebuild();
  DeviceRebuild(const DeviceRebuild&) = delete;
  DeviceRebuild& operator=(const DeviceRebuild&) = delete;

  // Makes the target's chunk at `place` on device `to` from the base's chunk, which has `bytes` bytes at
  // `base` on device `from`. Blocks until the devices no longer use the bytes of these chunks.
  // INVALID_ARGUMENT for a damaged record, INTERNAL for an error of the devices. After an error the bytes at
  // `place` are undefined.
  absl::Status Rebuild(DecoderPath path, uint32_t chunk, DevicePtr base, DevicePtr place, uint64_t bytes);

 private:
  struct Worker;

  DeviceRebuild(DeviceRuntime* devices, int to, uint64_t list_bytes);
  absl::StatusOr<std::unique_ptr<Worker>> Take();
  void GiveBack(std::unique_ptr<Worker> worker);

  DeviceRuntime* const devices_;
  const int device_;
  const uint64_t list_bytes_;
  absl::Mutex mutex_;
  std::vector<std::unique_ptr<Worker>> idle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::daemon
