#include "core/replicas/device_pool.h"

#include <algorithm>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast {

uint64_t DevicePool::BytesFor(uint64_t bytes) {
  return std::max<uint64_t>(1, (bytes + kGranuleBytes - 1) / kGranuleBytes) * kGranuleBytes;
}

DeviceBlock::DeviceBlock(DeviceBlock&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      pointer_(std::exchange(other.pointer_, DevicePtr())),
      bytes_(std::exchange(other.bytes_, 0)) {}

DeviceBlock& DeviceBlock::operator=(DeviceBlock&& other) noexcept {
  if (this != &other) {
    Reset();
    pool_ = std::exchange(other.pool_, nullptr);
    pointer_ = std::exchange(other.pointer_, DevicePtr());
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

DeviceBlock::~DeviceBlock() { Reset(); }

void DeviceBlock::Reset() {
  if (DevicePool* pool = std::exchange(pool_, nullptr); pool != nullptr) pool->Free(pointer_, bytes_);
}

DevicePool::DevicePool(DeviceRuntime* devices, uint64_t budget_bytes) : devices_(devices) {
  if (devices == nullptr) return;
  absl::MutexLock lock(&mutex_);
  for (const DeviceInfo& device : devices->devices()) {
    PoolStats stats;
    // A tenth is left for contexts, kernels and other users of the device.
    stats.capacity_bytes = budget_bytes != 0 ? budget_bytes : device.total_bytes / 10 * 9;
    stats_.push_back(stats);
  }
}

int DevicePool::device_count() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(stats_.size());
}

absl::Status DevicePool::CheckDevice(int device) const {
  const int count = device_count();
  if (device < 0 || device >= count) {
    return absl::InvalidArgumentError(
        absl::StrCat("use gpu:", device, ": this daemon uses ",
                     count == 0   ? "no GPUs; check daemon.device_runtime, or use location cpu or disk"
                     : count == 1 ? "only gpu:0; use gpu:0"
                                  : absl::StrCat("gpu:0 to gpu:", count - 1, "; use one of these GPUs")));
  }
  const absl::Status health = devices_->CheckHealth(device);
  if (health.ok()) return absl::OkStatus();
  // The remedy of the health, behind the ';', is for a process that uses the GPU itself.
  const std::string_view why = health.message().substr(0, health.message().find(';'));
  return absl::FailedPreconditionError(absl::StrCat("use gpu:", device, ": the GPU is unhealthy: ", why,
                                                    "; use another GPU, or restart the daemon"));
}

absl::StatusOr<DeviceBlock> DevicePool::Allocate(int device, uint64_t bytes) {
  TC_RETURN_IF_ERROR(CheckDevice(device));
  const uint64_t rounded = BytesFor(bytes);
  // The budget first, then the device, so that the mutex is not held while the driver works. What is reserved
  // counts as used at once; a failure gives it back.
  TC_RETURN_IF_ERROR(Reserve(device, rounded));
  absl::StatusOr<DevicePtr> pointer = devices_->Allocate(device, rounded);
  if (!pointer.ok()) {
    Release(device, rounded, /*failed=*/true);
    return pointer.status();
  }
  return DeviceBlock(this, *pointer, rounded);
}

// RESOURCE_EXHAUSTED is what the evicting allocator looks for: it evicts, or waits, and tries again.
absl::Status DevicePool::Reserve(int device, uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  PoolStats& stats = stats_[device];
  const uint64_t free = stats.capacity_bytes - stats.used_bytes;
  if (bytes > free) {
    ++stats.failed_allocations;
    return absl::ResourceExhaustedError(
        absl::StrCat("allocate ", bytes, " bytes on gpu:", device, ": ", free, " of the GPU's budget of ",
                     stats.capacity_bytes, " bytes are free; evict replicas, or raise daemon.device_pool"));
  }
  stats.used_bytes += bytes;
  stats.high_water_bytes = std::max(stats.high_water_bytes, stats.used_bytes);
  return absl::OkStatus();
}

void DevicePool::Release(int device, uint64_t bytes, bool failed) {
  absl::MutexLock lock(&mutex_);
  stats_[device].used_bytes -= bytes;
  stats_[device].failed_allocations += failed ? 1 : 0;
}

// Memory that the driver will not take back leaves the budget nevertheless: the allocation that then fails
// says what the device has.
void DevicePool::Free(DevicePtr pointer, uint64_t bytes) {
  if (absl::Status freed = devices_->Free(pointer); !freed.ok()) {
    LOG(ERROR) << "free " << bytes << " bytes on gpu:" << pointer.device << ": " << freed;
  }
  Release(pointer.device, bytes, /*failed=*/false);
}

PoolStats DevicePool::stats(int device) const {
  absl::MutexLock lock(&mutex_);
  if (device < 0 || static_cast<size_t>(device) >= stats_.size()) return PoolStats();
  return stats_[device];
}

}  // namespace tensorcast
