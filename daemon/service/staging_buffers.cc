#include "daemon/service/staging_buffers.h"

#include <utility>

#include "core/status/status.h"
#include "otel/api/steady_time.h"

namespace tensorcast::daemon {

absl::StatusOr<std::shared_ptr<StagingBuffers>> StagingBuffers::Create(HostPool* pool, int count) {
  absl::StatusOr<HostAllocation> memory = pool->Allocate(kGranuleBytes * count);
  if (!memory.ok()) {
    return Annotate(memory.status(),
                    "buffers to serve replicas on GPUs and disks from; make host_pool larger");
  }
  std::shared_ptr<StagingBuffers> buffers(new StagingBuffers(*std::move(memory)));
  absl::MutexLock lock(&buffers->mutex_);
  for (int i = 0; i < count; ++i) {
    buffers->free_.push_back(buffers->memory_.Spans(kGranuleBytes * i, kGranuleBytes).front());
  }
  return buffers;
}

StagingBuffers::Buffer::~Buffer() { owner_->GiveBack(bytes_); }

absl::StatusOr<std::shared_ptr<StagingBuffers::Buffer>> StagingBuffers::Acquire(absl::Time deadline) {
  HostSpan bytes;
  {
    absl::MutexLock lock(&mutex_);
    const auto any = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !free_.empty(); };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&any), TimeLeft(deadline))) {
      return absl::DeadlineExceededError("every staging buffer is in use by a slower pull");
    }
    bytes = free_.back();
    free_.pop_back();
  }
  return std::make_shared<Buffer>(shared_from_this(), bytes);
}

void StagingBuffers::GiveBack(HostSpan bytes) {
  absl::MutexLock lock(&mutex_);
  free_.push_back(bytes);
}

}  // namespace tensorcast::daemon
