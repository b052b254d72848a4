// The interface to GPUs. It has two backends: `cuda`, and the test double `fake`, which keeps device memory
// in shared memory.
//
// A UUID identifies a device between processes, an ordinal within a process. Thread-safe, but only one
// thread at a time may use a Stream. A runtime must outlive its streams and its allocations.
//
// Errors: INVALID_ARGUMENT for a device that does not exist, and for a range outside the allocations that
// the runtime made or opened.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tensorcast {

struct DeviceInfo {
  int ordinal = 0;
  std::string uuid;  // "GPU-xxxxxxxx-xxxx-..." as NVML writes it; "FAKE-..." for the double
  std::string name;
  uint64_t total_bytes = 0;
  std::string pci_bus_id;        // "0000:3b:00.0", as sysfs writes it; empty for the double
  bool runs_kernels = false;     // supports Stream::Digest and Stream::Change
  bool locks_read_only = false;  // supports RegisterHost with kReadOnly
};

// An address in a device's memory. The host must never dereference it.
struct DevicePtr {
  int device = -1;
  uint64_t address = 0;

  explicit operator bool() const { return device >= 0; }
  DevicePtr operator+(uint64_t bytes) const { return {device, address + bytes}; }
  friend bool operator==(const DevicePtr&, const DevicePtr&) = default;
};

// A point in the order of a stream's work. Must not outlive its stream. Thread-safe.
class Event {
 public:
  virtual ~Event() = default;
  // Blocks until all work that was enqueued before the event is done. Returns the first error of that work,
  // even if an earlier call returned the same error.
  virtual absl::Status Await() = 0;
};

// XXH3-128 (https://github.com/Cyan4973/xxHash) in canonical byte order.
using DigestBytes = std::array<uint8_t, 16>;

struct DeviceRange {
  DevicePtr begin;
  uint64_t bytes = 0;
};

// Changes of elements in a block of device memory.
struct ElementChanges {
  // Max elements in a block, so that a place fits in 16 bits.
  static constexpr uint32_t kMaxElements = uint32_t{1} << 16;

  enum class Kind : uint8_t {
    kValues,  // the operands are the new values, `width` bytes each
    kSteps,   // the operands are zig-zag steps of one byte in the monotone order of the element's bits
              // (core/difference/FORMAT.md)
  };

  DevicePtr begin;  // a multiple of `width`
  uint32_t elements = 0;
  uint32_t width = 1;  // bytes of an element: 1, 2, 4 or 8
  Kind kind = Kind::kValues;
  std::span<const uint16_t> places;     // the changed elements, counted from `begin`; none occurs twice
  const std::byte* operands = nullptr;  // one for each place; values begin at a multiple of `width`
};

// A queue of work on one device. Copies, digests and changes run in the order of the calls, asynchronously
// to the host. Synchronize and events return the errors of enqueued work. Host memory of a copy must stay
// valid until the copy is done. The destructor waits for all work.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual absl::Status CopyToDevice(DevicePtr destination, const std::byte* source, uint64_t bytes) = 0;
  // `source` may also be device memory that another library of this process allocated, if the backend can
  // check that the memory exists.
  virtual absl::Status CopyToHost(std::byte* destination, DevicePtr source, uint64_t bytes) = 0;
  // The two addresses may be on different devices; the copy is direct if the devices are peers.
  virtual absl::Status CopyOnDevice(DevicePtr destination, DevicePtr source, uint64_t bytes) = 0;
  // Computes the digest of each range. `digests` has one element for each range and must stay valid until
  // the work is done. If `digests` is not page-locked, the call blocks until earlier work is done.
  // INVALID_ARGUMENT for ranges that are not on the stream's device, and if `digests` has another size.
  // UNIMPLEMENTED if the device runs no kernels (DeviceInfo::runs_kernels).
  virtual absl::Status Digest(std::span<const DeviceRange> ranges, std::span<DigestBytes> digests) = 0;
  // Changes elements of device memory. The device changes the blocks of one call in any order, so two blocks
  // must not change the same element. `places` and `operands` must be in page-locked host memory
  // (RegisterHost with kReadWrite), and must stay valid and unchanged until the work is done. The
  // array `blocks` itself may be freed after the call. A place past the end of its block changes nothing.
  //
  // INVALID_ARGUMENT for blocks that are not on the stream's device or have too many elements, for a width
  // other than 1, 2, 4 or 8, for addresses that are not multiples of the width, and for host memory that is
  // not page-locked. UNIMPLEMENTED if the device runs no kernels (DeviceInfo::runs_kernels).
  virtual absl::Status Change(std::span<const ElementChanges> blocks) = 0;
  // Blocks until all enqueued work is done. Returns the first error since the last call, if any.
  virtual absl::Status Synchronize() = 0;
  // Whether all enqueued work is done. Does not wait. Errors as Synchronize.
  virtual absl::StatusOr<bool> IsIdle() = 0;
  // Lets another library of the vendor (NCCL) enqueue work. Calls `use` once, on this thread, with the
  // stream as a cudaStream_t. During the call the stream's device is the thread's current device. The work
  // may use only the `bytes` bytes at `memory`, which must be inside an allocation. If `bytes` is 0, the
  // work must not use device memory. UNIMPLEMENTED if the backend has no such library.
  virtual absl::Status Lend(DevicePtr memory, uint64_t bytes,
                            absl::FunctionRef<absl::Status(void* stream)> use) = 0;
  // Records an event after all work that is enqueued so far.
  virtual absl::StatusOr<std::unique_ptr<Event>> Record() = 0;
};

// Names one allocation, for other processes on the same host with the same backend (core/device/FORMAT.md).
struct IpcHandle {
  std::string device_uuid;
  std::string opaque;  // at most 255 bytes
  uint64_t bytes = 0;
};
void Fields(auto& io, IpcHandle& handle) {  // base/byte_fields.h
  io(handle.device_uuid, handle.opaque, handle.bytes);
}

// How host memory is mapped in this process.
enum class HostAccess : uint8_t { kReadWrite, kReadOnly };

class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;

  virtual std::string_view backend() const = 0;  // "cuda", "fake", or "none" for the null runtime
  virtual const std::vector<DeviceInfo>& devices() const = 0;
  // The ordinal of the device with this UUID, or NOT_FOUND.
  absl::StatusOr<int> FindDevice(std::string_view uuid) const;
  // INTERNAL, with the reason, if the device is broken for this process. Only a new process can use the
  // device again. New operations on a broken device fail; freeing memory succeeds and does nothing.
  virtual absl::Status CheckHealth(int device) const = 0;
  // Whether code on `device` can access memory of `other` directly: the devices are the same or peers. If
  // not, copies between the two devices go through the host.
  virtual bool Reaches(int device, int other) = 0;
  // Makes the device permanently the thread's current device, with its primary context. Call it on threads on
  // which a library (UCX) calls the vendor's driver.
  virtual absl::Status MakeCurrent(int device) = 0;

  // RESOURCE_EXHAUSTED when the device is full; INVALID_ARGUMENT for 0 bytes.
  virtual absl::StatusOr<DevicePtr> Allocate(int device, uint64_t bytes) = 0;
  // REQUIRES: no stream still uses the memory, and no other process has it open.
  virtual absl::Status Free(DevicePtr pointer) = 0;

  virtual absl::StatusOr<std::unique_ptr<Stream>> CreateStream(int device) = 0;

  // Page-locks host memory for fast copies. The call is slow: call it once for a pool, not for each tensor.
  // kReadOnly memory may only be the source of copies; UNIMPLEMENTED if a device cannot page-lock such
  // memory. Without devices the call does nothing and returns OK.
  virtual absl::Status RegisterHost(std::byte* base, uint64_t bytes, HostAccess access) = 0;
  virtual absl::Status UnregisterHost(std::byte* base) = 0;

  // `allocation` is a result of Allocate.
  virtual absl::StatusOr<IpcHandle> Export(DevicePtr allocation) = 0;
  // Maps an allocation of another process; CloseIpc unmaps it. FAILED_PRECONDITION for a handle that this
  // process exported, INVALID_ARGUMENT for a handle that is malformed or from another backend, NOT_FOUND for
  // a device that this process does not see and for memory that no longer exists.
  virtual absl::StatusOr<DevicePtr> OpenIpc(const IpcHandle& handle) = 0;
  virtual absl::Status CloseIpc(DevicePtr pointer) = 0;
};

// The GPUs of this host. UNAVAILABLE with the reason when the binary was built without CUDA, there is no
// driver, or there is no GPU.
absl::StatusOr<std::unique_ptr<DeviceRuntime>> CreateCudaRuntime();

// A runtime without devices, for hosts that keep replicas only in host memory and on disk. Operations that
// need a device fail with FAILED_PRECONDITION.
std::unique_ptr<DeviceRuntime> CreateNullRuntime();

}  // namespace tensorcast
