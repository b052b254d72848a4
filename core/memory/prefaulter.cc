#include "core/memory/prefaulter.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "absl/log/log.h"
#include "base/status.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; its number is the same on every architecture
#endif

namespace tensorcast {
namespace {

// About 6 ms of page clearing.
constexpr uint64_t kStepBytes = uint64_t{64} << 20;

}  // namespace

Prefaulter::Prefaulter(const SharedRegion& region, int threads) : region_(region), running_(threads) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

Prefaulter::~Prefaulter() {
  stop_ = true;
  for (std::thread& thread : threads_) thread.join();
}

void Prefaulter::Wait() {
  absl::MutexLock lock(&mutex_);
  auto ended = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return running_ == 0; };
  mutex_.Await(absl::Condition(&ended));
}

void Prefaulter::Run() {
  while (!stop_) {
    const uint64_t offset = next_offset_.fetch_add(kStepBytes);
    if (offset >= region_.bytes()) break;
    const uint64_t bytes = std::min(kStepBytes, region_.bytes() - offset);
    if (const absl::Status status = Populate(offset, bytes); !status.ok()) {
      if (!stop_.exchange(true)) LOG(ERROR) << status.message() << "; the rest appears at first touch";
      break;
    }
    if (populated_bytes_.fetch_add(bytes) + bytes == region_.bytes()) {
      complete_.store(true, std::memory_order_release);
    }
  }
  absl::MutexLock lock(&mutex_);
  --running_;
}

absl::Status Prefaulter::Populate(uint64_t offset, uint64_t bytes) {
  int result;
  do {
    result = madvise(region_.base() + offset, bytes, MADV_POPULATE_WRITE);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN) && !stop_);
  if (result == 0 || stop_) return absl::OkStatus();
  // An older kernel: give the file its pages, which is the dear part; mapping them at first touch costs
  // little. A write to each page from here would race with those who use the pool already.
  if (errno == EINVAL) {
    do {
      result = fallocate(region_.fd(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
    } while (result != 0 && errno == EINTR && !stop_);
    if (result == 0 || stop_) return absl::OkStatus();
  }
  return ErrnoStatus(
      errno, "pre-faulting",
      absl::StrCat("host pool bytes ", offset, " to ", offset + bytes, " of ", region_.bytes()));
}

}  // namespace tensorcast
