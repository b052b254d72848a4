// A stream of the fake backend: a thread that copies, in order, what is enqueued. Private to this folder.
#pragma once

#include <deque>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/device/allocation_table.h"
#include "core/device/device_runtime.h"
#include "core/device/fake_device.h"
#include "core/device/fake_memory.h"

namespace tensorcast {

class FakeStream final : public Stream {
 public:
  // Both must outlive the stream; `hooks` may be null.
  FakeStream(const AllocationTable& allocations, FakeDeviceHooks* hooks);
  ~FakeStream() override;

  absl::Status CopyToDevice(DevicePtr destination, const std::byte* source, uint64_t bytes) override;
  absl::Status CopyToHost(std::byte* destination, DevicePtr source, uint64_t bytes) override;
  absl::Status CopyOnDevice(DevicePtr destination, DevicePtr source, uint64_t bytes) override;
  absl::Status Synchronize() override;

 private:
  // One end of a copy; holds the device memory, if that is what it is, until the copy is done.
  struct End {
    std::byte* at = nullptr;
    std::shared_ptr<FakeMemory> memory;
  };
  struct Copy {
    End destination;
    End source;
    uint64_t bytes = 0;
  };

  absl::StatusOr<End> DeviceEnd(DevicePtr pointer, uint64_t bytes) const;
  absl::Status Enqueue(absl::StatusOr<End> destination, absl::StatusOr<End> source, uint64_t bytes);
  void Run();
  absl::Status Execute(const Copy& copy);

  const AllocationTable& allocations_;
  FakeDeviceHooks* const hooks_;
  absl::Mutex mutex_;
  std::deque<Copy> queue_ ABSL_GUARDED_BY(mutex_);
  int unfinished_ ABSL_GUARDED_BY(mutex_) = 0;  // the queue and the copy that runs
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tensorcast
