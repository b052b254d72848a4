#include "core/device/fake_stream.h"

#include <cstring>
#include <utility>

#include "base/status.h"

namespace tensorcast {

FakeStream::FakeStream(const AllocationTable& allocations, FakeDeviceHooks* hooks)
    : allocations_(allocations), hooks_(hooks), thread_([this] { Run(); }) {}

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
  if (hooks_ != nullptr) TC_RETURN_IF_ERROR(hooks_->BeforeCopy());
  std::memmove(copy.destination.at, copy.source.at, copy.bytes);
  return absl::OkStatus();
}

}  // namespace tensorcast
