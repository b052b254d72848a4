#include "core/device/fake_stream.h"

#include <cstring>
#include <utility>

#include "absl/time/clock.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/device/fake_faults.h"

namespace tensorcast {
namespace {

// The delay is read again and again, so that a test can hold a copy up and let it go.
void WaitOutDelay(FakeDeviceFaults& faults) {
  if (faults.copy_delay_ns.load() == 0) return;
  ++faults.delayed_copies;
  const absl::Time start = SteadyNow();
  while (SteadyNow() - start < absl::Nanoseconds(faults.copy_delay_ns.load()))
    absl::SleepFor(absl::Microseconds(200));
  --faults.delayed_copies;
}

}  // namespace

FakeStream::FakeStream(const AllocationTable& allocations, std::shared_ptr<FakeDeviceFaults> faults)
    : allocations_(allocations), faults_(std::move(faults)), thread_([this] { Run(); }) {}

FakeStream::~FakeStream() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  thread_.join();
}

absl::Status FakeStream::CopyToDevice(DevicePtr destination, const std::byte* source, uint64_t bytes) {
  return Enqueue(DeviceEnd(destination, bytes), End{.at = const_cast<std::byte*>(source)}, bytes);
}

absl::Status FakeStream::CopyToHost(std::byte* destination, DevicePtr source, uint64_t bytes) {
  return Enqueue(End{.at = destination}, DeviceEnd(source, bytes), bytes);
}

absl::Status FakeStream::CopyOnDevice(DevicePtr destination, DevicePtr source, uint64_t bytes) {
  return Enqueue(DeviceEnd(destination, bytes), DeviceEnd(source, bytes), bytes);
}

absl::Status FakeStream::Synchronize() {
  absl::MutexLock lock(&mutex_);
  auto idle = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return unfinished_ == 0; };
  mutex_.Await(absl::Condition(&idle));
  return std::exchange(first_error_, absl::OkStatus());
}

absl::StatusOr<FakeStream::End> FakeStream::DeviceEnd(DevicePtr pointer, uint64_t bytes) const {
  TC_ASSIGN_OR_RETURN(DeviceAllocation allocation, allocations_.Find(pointer, bytes));
  return End{.at = allocation.fake->data() + (pointer.address - allocation.base.address),
             .memory = allocation.fake};
}

absl::Status FakeStream::Enqueue(absl::StatusOr<End> destination, absl::StatusOr<End> source,
                                 uint64_t bytes) {
  TC_RETURN_IF_ERROR(destination.status());
  TC_RETURN_IF_ERROR(source.status());
  if (bytes == 0) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  queue_.push_back({*std::move(destination), *std::move(source), bytes});
  ++unfinished_;
  return absl::OkStatus();
}

void FakeStream::Run() {
  while (true) {
    Copy copy;
    {
      absl::MutexLock lock(&mutex_);
      auto wanted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stop_ || !queue_.empty(); };
      mutex_.Await(absl::Condition(&wanted));
      if (queue_.empty()) return;
      copy = std::move(queue_.front());
      queue_.pop_front();
    }
    const absl::Status status = Execute(copy);
    copy = {};  // lets go of the memory before anybody is told that the copy is done
    absl::MutexLock lock(&mutex_);
    first_error_.Update(status);
    --unfinished_;
  }
}

absl::Status FakeStream::Execute(const Copy& copy) {
  if (faults_ != nullptr) {
    WaitOutDelay(*faults_);
    if (TakeFault(faults_->fail_copies)) return absl::InternalError("fake device: injected copy failure");
  }
  std::memmove(copy.destination.at, copy.source.at, copy.bytes);
  return absl::OkStatus();
}

}  // namespace tensorcast
