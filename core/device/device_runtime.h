// The interface to GPUs, with two backends: `cuda`, and `fake`, a test double for the hardware that keeps
// device memory in shared memory. Only this folder includes CUDA's headers.
//
// Between processes a device is identified by its UUID, within a process by its ordinal. Thread-safe, except
// that one thread at a time may use a Stream. A runtime must outlive its streams and the use of its memory.
//
// Errors: all backends return INVALID_ARGUMENT for a device that does not exist and for a range outside its
// allocations, because they check addresses before they use them.
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
  // even if another call has already returned it.
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
    kSteps,   // the operands are steps of one byte: zig-zag, in the monotone order of the element's bits
              // (core/difference/FORMAT.md)
  };

  DevicePtr begin;  // a multiple of `width`
  uint32_t elements = 0;
  uint32_t width = 1;  // bytes of an element: 1, 2, 4 or 8
  Kind kind = Kind::kValues;
  std::span<const uint16_t> places;     // the changed elements, counted from `begin`; none occurs twice
  const std::byte* operands = nullptr;  // one for each place; for kValues at a multiple of `width`
};

// A queue of work on one device. Its functions enqueue copies, digests and changes, which run in order and
// asynchronously to the host. Errors of enqueued work are returned by Synchronize and by events. Host memory
// of a copy must stay valid until the copy is done. The destructor waits for all work.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual absl::Status CopyToDevice(DevicePtr destination, const std::byte* source, uint64_t bytes) = 0;
  // `source` may also be device memory that another library of this process allocated, if the backend can
  // check that it exists.
  virtual absl::Status CopyToHost(std::byte* destination, DevicePtr source, uint64_t bytes) = 0;
  // The two addresses may be on different devices; the copy is direct if the devices are peers.
  virtual absl::Status CopyOnDevice(DevicePtr destination, DevicePtr source, uint64_t bytes) = 0;
  // Computes the digest of each range on the stream's own device, in order with the copies. `digests` has one
  // element for each range and must stay valid until the work is done. Blocks until earlier work is done
  // unless `digests` is page-locked. INVALID_ARGUMENT for ranges on another device; UNIMPLEMENTED if the
  // device runs no kernels (DeviceInfo::runs_kernels).
  virtual absl::Status Digest(std::span<const DeviceRange> ranges, std::span<DigestBytes> digests) = 0;
  // Changes elements on the stream's own device, in order with the copies. The blocks of one call are changed
  // in any order, so no two of them may change the same element. The device reads `places` and `operands`
  // from page-locked host memory (RegisterHost with kReadWrite) while it works: they must stay valid and
  // unchanged until the work is done. The memory of `blocks` itself need only live during the call. A place
  // past the end of its block changes nothing.
  //
  // INVALID_ARGUMENT for blocks on another device or with too many elements, for a width other than 1, 2, 4
  // or 8, for addresses that are not multiples of the width, and for host memory that is not page-locked.
  // UNIMPLEMENTED if the device runs no kernels (DeviceInfo::runs_kernels).
  virtual absl::Status Change(std::span<const ElementChanges> blocks) = 0;
  // Blocks until all enqueued work is done. Returns the first error since the last call, if any.
  virtual absl::Status Synchronize() = 0;
  // As Synchronize, but does not wait: false if enqueued work is not done.
  virtual absl::StatusOr<bool> IsIdle() = 0;
  // Lets another library of the vendor (NCCL) enqueue work. Calls `use` once, on this thread, with the stream
  // as that library takes it (a cudaStream_t) and with the stream's device as the current one. The work uses
  // only `bytes` bytes at `memory`, which are checked like the addresses of a copy. If `bytes` is 0, the work
  // uses no device memory. UNIMPLEMENTED if the backend has no such library.
  virtual absl::Status Lend(DevicePtr memory, uint64_t bytes,
                            absl::FunctionRef<absl::Status(void* stream)> use) = 0;
  // Records an event after all work that is enqueued so far.
  virtual absl::StatusOr<std::unique_ptr<Event>> Record() = 0;
};

// A handle to one allocation. Other processes of the same host and the same backend can open the allocation
// with it (core/device/FORMAT.md).
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
  // OK, or INTERNAL with the reason why the device is broken for this process; only a new process can use the
  // device again. On a broken device new operations fail; freeing memory succeeds and does nothing.
  virtual absl::Status CheckHealth(int device) const = 0;
  // Whether code on `device` can access memory of `other` directly, because the two are the same device or
  // are peers. If not, copies between them go through the host.
  virtual bool Reaches(int device, int other) = 0;
  // Makes the device, with its primary context, the thread's current one permanently. For threads on which a
  // library (UCX) calls the vendor's driver.
  virtual absl::Status MakeCurrent(int device) = 0;

  // RESOURCE_EXHAUSTED when the device is full.
  virtual absl::StatusOr<DevicePtr> Allocate(int device, uint64_t bytes) = 0;
  // REQUIRES: no stream still uses the memory, and no other process has it open.
  virtual absl::Status Free(DevicePtr pointer) = 0;

  virtual absl::StatusOr<std::unique_ptr<Stream>> CreateStream(int device) = 0;

  // Page-locks host memory for fast copies. The call is slow: use it once for a pool, not for each tensor.
  // kReadOnly: the memory is mapped only for reading, and may only be the source of copies; UNIMPLEMENTED if
  // a device cannot page-lock such memory. Does nothing (OK) without devices.
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
