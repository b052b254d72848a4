#include "daemon/serving/staging_buffers.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

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

absl::StatusOr<std::shared_ptr<StagingBuffers::Buffer>> StagingBuffers::Acquire(absl::Duration patience) {
  HostSpan bytes;
  {
    absl::MutexLock lock(&mutex_);
    while (free_.empty()) {
      const uint64_t before = given_back_;
      const auto moved = [this, before]()
                             ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return given_back_ != before; };
      if (!mutex_.AwaitWithTimeout(absl::Condition(&moved), patience)) {
        return absl::DeadlineExceededError(absl::StrCat("no staging buffer came back for ",
                                                        absl::FormatDuration(patience),
                                                        ": the pulls that have them all stand still"));
      }
    }
    bytes = free_.back();
    free_.pop_back();
  }
  return std::make_shared<Buffer>(shared_from_this(), bytes);
}

void StagingBuffers::GiveBack(HostSpan bytes) {
  absl::MutexLock lock(&mutex_);
  free_.push_back(bytes);
  ++given_back_;
}

}  // namespace tensorcast::daemon
