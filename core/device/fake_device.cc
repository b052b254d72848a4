#include "core/device/fake_device.h"

#include <unistd.h>

#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "base/task_loop.h"
#include "core/device/allocation_table.h"
#include "core/device/element_changes.h"
#include "core/device/fake_memory.h"
#include "core/device/xxh3.h"

namespace tensorcast {
namespace {

// x86-64 and arm64 hosts use no such address, so code that dereferences one crashes at once.
constexpr uint64_t kFirstAddress = 0x5afe'0000'0000'0000;
// Between allocations, so that running over the end of one never reaches another.
constexpr uint64_t kAddressStep = uint64_t{2} << 20;
constexpr int kMaxDevices = 64;

std::shared_ptr<FakeDeviceHooks> HooksFor(const FakeDeviceOptions& options) {
  if (options.hooks != nullptr || HooksOfThisProgram == nullptr) return options.hooks;
  return HooksOfThisProgram();
}

// A thread that executes enqueued copies in order. Operations are counted: an event is the number of the last
// operation before it, and has come when so many are done. Two errors are kept, as on hardware: Synchronize
// returns and forgets the first since its last call, and events return the first of all that came before
// them.
class FakeStream final : public Stream {
 public:
  // All must outlive the stream; `hooks` may be null.
  FakeStream(int device, const AllocationTable& allocations, const LockedHostTable& locked,
             FakeDeviceHooks* hooks)
      : device_(device), allocations_(allocations), locked_(locked), hooks_(hooks) {}

  absl::Status CopyToDevice(DevicePtr destination, const std::byte* source, uint64_t bytes) override;
  absl::Status CopyToHost(std::byte* destination, DevicePtr source, uint64_t bytes) override;
  absl::Status CopyOnDevice(DevicePtr destination, DevicePtr source, uint64_t bytes) override;
  absl::Status Digest(std::span<const DeviceRange> ranges, std::span<DigestBytes> digests) override;
  absl::Status Change(std::span<const ElementChanges> blocks) override;
  absl::Status Synchronize() override;
  absl::StatusOr<bool> IsIdle() override;
  absl::Status Lend(DevicePtr, uint64_t, absl::FunctionRef<absl::Status(void*)>) override {
    return absl::UnimplementedError(
        "lend the stream of a fake device: no other library can use such a stream; use a GPU");
  }
  absl::StatusOr<std::unique_ptr<Event>> Record() override;

 private:
  class Recorded;

  // One end of a copy; holds the device memory, if that is what it is, until the copy is done.
  struct End {
    std::byte* at = nullptr;
    std::shared_ptr<FakeMemory> memory;
  };
  // Holds the device memory that it concerns.
  using Operation = std::function<absl::Status()>;

  absl::StatusOr<End> DeviceEnd(DevicePtr pointer, uint64_t bytes) const;
  absl::Status EnqueueCopy(absl::StatusOr<End> destination, absl::StatusOr<End> source, uint64_t bytes);
  void Enqueue(Operation operation);
  void Execute(Operation operation);

  const int device_;
  const AllocationTable& allocations_;
  const LockedHostTable& locked_;
  FakeDeviceHooks* const hooks_;
  absl::Mutex mutex_;
  uint64_t enqueued_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);  // since the last Synchronize
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);      // the first of all, kept for all later ones
  uint64_t failed_ ABSL_GUARDED_BY(mutex_) = 0;
  TaskLoop loop_;  // last: what is enqueued uses the others, and runs before they go
};

class FakeStream::Recorded final : public Event {
 public:
  Recorded(FakeStream* stream, uint64_t number) : stream_(stream), number_(number) {}

  absl::Status Await() override {
    absl::MutexLock lock(&stream_->mutex_);
    auto reached = [this]() {
      stream_->mutex_.AssertReaderHeld();
      return stream_->done_ >= number_;
    };
    stream_->mutex_.Await(absl::Condition(&reached));
    return stream_->failed_ <= number_ ? stream_->failure_ : absl::OkStatus();
  }

 private:
  FakeStream* const stream_;
  const uint64_t number_;  // of the last operation before it
};

absl::Status FakeStream::CopyToDevice(DevicePtr destination, const std::byte* source, uint64_t bytes) {
  return EnqueueCopy(DeviceEnd(destination, bytes), End{.at = const_cast<std::byte*>(source)}, bytes);
}

absl::Status FakeStream::CopyToHost(std::byte* destination, DevicePtr source, uint64_t bytes) {
  return EnqueueCopy(End{.at = destination}, DeviceEnd(source, bytes), bytes);
}

absl::Status FakeStream::CopyOnDevice(DevicePtr destination, DevicePtr source, uint64_t bytes) {
  return EnqueueCopy(DeviceEnd(destination, bytes), DeviceEnd(source, bytes), bytes);
}

absl::Status FakeStream::Synchronize() {
  absl::MutexLock lock(&mutex_);
  auto idle = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return done_ == enqueued_; };
  mutex_.Await(absl::Condition(&idle));
  return std::exchange(first_error_, absl::OkStatus());
}

absl::StatusOr<bool> FakeStream::IsIdle() {
  absl::MutexLock lock(&mutex_);
  if (done_ < enqueued_) return false;
  TC_RETURN_IF_ERROR(std::exchange(first_error_, absl::OkStatus()));
  return true;
}

absl::StatusOr<std::unique_ptr<Event>> FakeStream::Record() {
  absl::MutexLock lock(&mutex_);
  return std::make_unique<Recorded>(this, enqueued_);
}

absl::StatusOr<FakeStream::End> FakeStream::DeviceEnd(DevicePtr pointer, uint64_t bytes) const {
  TC_ASSIGN_OR_RETURN(DeviceAllocation allocation, allocations_.Find(pointer, bytes));
  return End{.at = allocation.fake->data() + (pointer.address - allocation.base.address),
             .memory = allocation.fake};
}

absl::Status FakeStream::EnqueueCopy(absl::StatusOr<End> destination, absl::StatusOr<End> source,
                                     uint64_t bytes) {
  TC_RETURN_IF_ERROR(destination.status());
  TC_RETURN_IF_ERROR(source.status());
  if (bytes == 0) return absl::OkStatus();
  Enqueue([this, to = *std::move(destination), from = *std::move(source), bytes]() -> absl::Status {
    if (hooks_ != nullptr) TC_RETURN_IF_ERROR(hooks_->BeforeCopy(device_));
    // Both ends may overlap on one device.
    std::memmove(to.at, from.at, bytes);
    return absl::OkStatus();
  });
  return absl::OkStatus();
}

absl::Status FakeStream::Digest(std::span<const DeviceRange> ranges, std::span<DigestBytes> digests) {
  TC_RETURN_IF_ERROR(CheckDigests(device_, ranges, digests));
  std::vector<End> ends;
  for (const DeviceRange& range : ranges) {
    TC_ASSIGN_OR_RETURN(End end, DeviceEnd(range.begin, range.bytes));
    ends.push_back(std::move(end));
  }
  for (size_t i = 0; i < ends.size(); ++i) {
    Enqueue([end = std::move(ends[i]), bytes = ranges[i].bytes, digest = &digests[i]] {
      const auto scratch = std::make_unique<xxh3::Scratch>();
      xxh3::DigestRange(xxh3::SequentialTeam(), reinterpret_cast<const uint8_t*>(end.at), bytes, *scratch,
                        digest->data());
      return absl::OkStatus();
    });
  }
  return absl::OkStatus();
}

absl::Status FakeStream::Change(std::span<const ElementChanges> blocks) {
  TC_RETURN_IF_ERROR(CheckChanges(device_, blocks, locked_));
  std::vector<std::pair<End, ElementBlock>> work;
  for (const ElementChanges& block : blocks) {
    TC_ASSIGN_OR_RETURN(End end, DeviceEnd(block.begin, uint64_t{block.elements} * block.width));
    const ElementBlock there = {.begin = end.at,
                                .places = block.places.data(),
                                .operands = block.operands,
                                .count = static_cast<uint32_t>(block.places.size()),
                                .elements = block.elements,
                                .width = block.width,
                                .steps = block.kind == ElementChanges::Kind::kSteps};
    work.emplace_back(std::move(end), there);
  }
  Enqueue([work = std::move(work), hooks = hooks_, device = device_]() -> absl::Status {
    if (hooks != nullptr) TC_RETURN_IF_ERROR(hooks->BeforeCopy(device));
    for (const auto& [end, block] : work) {
      ChangeElements(block, /*lane=*/0, /*lanes=*/1);
      if (hooks != nullptr) hooks->AfterChange(block.begin);
    }
    return absl::OkStatus();
  });
  return absl::OkStatus();
}

void FakeStream::Enqueue(Operation operation) {
  {
    absl::MutexLock lock(&mutex_);
    ++enqueued_;
  }
  loop_.Post([this, operation = std::move(operation)]() mutable { Execute(std::move(operation)); });
}

void FakeStream::Execute(Operation operation) {
  const absl::Status status = operation();
  operation = nullptr;  // lets go of the memory before any waiter is told that it is done
  absl::MutexLock lock(&mutex_);
  first_error_.Update(status);
  ++done_;
  if (!status.ok() && failure_.ok()) {
    failure_ = status;
    failed_ = done_;
  }
}

class FakeRuntime final : public DeviceRuntime {
 public:
  explicit FakeRuntime(const FakeDeviceOptions& options)
      : hooks_(HooksFor(options)), used_bytes_(options.device_count) {
    for (int i = 0; i < options.device_count; ++i) {
      // The UUID is the same in every process of the host, as a GPU's is.
      devices_.push_back({.ordinal = i,
                          .uuid = absl::StrFormat("FAKE-00000000-0000-0000-0000-%012x", i),
                          .name = "fake device",
                          .total_bytes = options.device_bytes,
                          .runs_kernels = true,
                          .locks_read_only = true});
    }
  }

  std::string_view backend() const override { return "fake"; }
  const std::vector<DeviceInfo>& devices() const override { return devices_; }
  absl::Status CheckHealth(int device) const override {
    return hooks_ == nullptr ? absl::OkStatus() : hooks_->CheckHealth(device);
  }
  bool Reaches(int, int) override { return true; }
  absl::Status MakeCurrent(int device) override { return CheckDevice(device); }

  absl::StatusOr<DevicePtr> Allocate(int device, uint64_t bytes) override {
    TC_RETURN_IF_ERROR(CheckDevice(device));
    if (bytes == 0) {
      return absl::InvalidArgumentError(
          "allocate device memory: 0 bytes were asked for; ask for at least 1 byte");
    }
    if (hooks_ != nullptr) TC_RETURN_IF_ERROR(hooks_->BeforeAllocation());
    // Counted before it is made, so that two threads cannot take the last bytes twice.
    TC_RETURN_IF_ERROR(Reserve(device, bytes));
    auto memory = FakeMemory::Create(bytes);
    if (!memory.ok()) {
      Release(device, bytes);
      return memory.status();
    }
    return Place(device, bytes, MemoryOrigin::kAllocated, *std::move(memory));
  }

  absl::Status Free(DevicePtr pointer) override {
    TC_RETURN_IF_ERROR(Drop(pointer, MemoryOrigin::kAllocated).status());
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(int device) override {
    TC_RETURN_IF_ERROR(CheckDevice(device));
    return std::make_unique<FakeStream>(device, allocations_, locked_, hooks_.get());
  }

  absl::Status RegisterHost(std::byte* base, uint64_t bytes, HostAccess access) override {
    if (base == nullptr || bytes == 0) {
      return absl::InvalidArgumentError(
          "page-lock host memory: the address is null or the size is 0; pass an address and at least 1 byte");
    }
    if (!locked_.Add(base, bytes, access)) {
      return absl::AlreadyExistsError(
          "register host memory: the memory is registered already; register each memory once");
    }
    return absl::OkStatus();
  }

  absl::Status UnregisterHost(std::byte* base) override {
    if (!locked_.Remove(base)) {
      return absl::NotFoundError(
          "unregister host memory: no registered memory begins at this address; pass a registered address");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<IpcHandle> Export(DevicePtr allocation) override {
    TC_ASSIGN_OR_RETURN(DeviceAllocation found, allocations_.FindBase(allocation, MemoryOrigin::kAllocated));
    TC_RETURN_IF_ERROR(CheckHealth(allocation.device));
    return IpcHandle{.device_uuid = devices_[allocation.device].uuid,
                     .opaque = EncodeFakeIpc(found.fake->ipc_fields()),
                     .bytes = found.bytes};
  }

  absl::StatusOr<DevicePtr> OpenIpc(const IpcHandle& handle) override {
    TC_ASSIGN_OR_RETURN(const FakeIpcFields fields, DecodeFakeIpc(handle.opaque));
    TC_ASSIGN_OR_RETURN(const int device, FindDevice(handle.device_uuid));
    TC_RETURN_IF_ERROR(CheckHealth(device));
    if (fields.process == ThisProcessToken() && fields.pid == static_cast<uint32_t>(getpid())) {
      return absl::FailedPreconditionError(
          "open device memory: this process exported the handle itself; use the allocation's own pointer");
    }
    TC_ASSIGN_OR_RETURN(auto memory, FakeMemory::Open(fields, handle.bytes));
    return Place(device, handle.bytes, MemoryOrigin::kImported, std::move(memory));
  }

  absl::Status CloseIpc(DevicePtr pointer) override {
    return Drop(pointer, MemoryOrigin::kImported).status();
  }

 private:
  absl::Status CheckDevice(int device) const {
    if (device >= 0 && device < static_cast<int>(devices_.size())) return CheckHealth(device);
    return absl::InvalidArgumentError(absl::StrCat("use device ", device, ": this process sees ",
                                                   devices_.size(),
                                                   " devices, numbered from 0; name one of those"));
  }

  absl::Status Reserve(int device, uint64_t bytes) {
    absl::MutexLock lock(&mutex_);
    const uint64_t free = devices_[device].total_bytes - used_bytes_[device];
    if (bytes > free) {
      return absl::ResourceExhaustedError(
          absl::StrCat("allocate ", bytes, " bytes on fake device ", device, ": ", free, " of the device's ",
                       devices_[device].total_bytes, " bytes are free; raise daemon.fake_device_memory"));
    }
    used_bytes_[device] += bytes;
    return absl::OkStatus();
  }

  void Release(int device, uint64_t bytes) {
    absl::MutexLock lock(&mutex_);
    used_bytes_[device] -= bytes;
  }

  DevicePtr Place(int device, uint64_t bytes, MemoryOrigin origin, std::shared_ptr<FakeMemory> memory) {
    DevicePtr base{.device = device};
    {
      absl::MutexLock lock(&mutex_);
      base.address = next_address_;
      next_address_ += (bytes / kAddressStep + 2) * kAddressStep;  // never reused: stale pointers stay errors
    }
    allocations_.Add({.base = base, .bytes = bytes, .origin = origin, .fake = std::move(memory)});
    return base;
  }

  // A copy that has not run yet holds the memory too, so more than one owner means that copies still use it.
  // Real devices would not notice; this one reports it. The allocation goes back into the table, and stays
  // allocated.
  absl::StatusOr<DeviceAllocation> Drop(DevicePtr base, MemoryOrigin origin) {
    TC_ASSIGN_OR_RETURN(DeviceAllocation dropped, allocations_.Remove(base, origin));
    if (dropped.fake.use_count() > 1) {
      allocations_.Add(dropped);
      return absl::FailedPreconditionError(
          "release device memory: copies still use the memory; synchronize the streams of the copies first");
    }
    if (origin == MemoryOrigin::kAllocated) Release(base.device, dropped.bytes);
    return dropped;
  }

  const std::shared_ptr<FakeDeviceHooks> hooks_;
  std::vector<DeviceInfo> devices_;
  AllocationTable allocations_;
  LockedHostTable locked_;
  absl::Mutex mutex_;
  uint64_t next_address_ ABSL_GUARDED_BY(mutex_) = kFirstAddress;
  std::vector<uint64_t> used_bytes_ ABSL_GUARDED_BY(mutex_);  // by device
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceRuntime>> CreateFakeRuntime(const FakeDeviceOptions& options) {
  if (options.device_count < 1 || options.device_count > kMaxDevices || options.device_bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("make ", options.device_count, " fake devices of ", options.device_bytes,
                     " bytes: 1 to ", kMaxDevices,
                     " devices with at least 1 byte each are allowed; set daemon.fake_devices and "
                     "daemon.fake_device_memory"));
  }
  return std::make_unique<FakeRuntime>(options);
}

}  // namespace tensorcast
