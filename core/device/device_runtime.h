// The interface to GPUs, with two backends: `cuda`, and `fake`, a test double for the hardware that keeps
// device memory in shared memory. Only this folder includes CUDA's headers.
//
// Devices are named by UUID between processes and by ordinal within one. Thread-safe, except that one Stream
// is used by one thread at a time. A runtime outlives its streams and the use of its memory.
//
// Errors: INVALID_ARGUMENT for a device, address or size that does not exist, in all backends (addresses are
// checked before they reach the hardware).
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
  bool can_digest = false;       // Stream::Digest
  bool locks_read_only = false;  // RegisterHost of memory that is mapped for reading only
};

// An address in a device's memory; never to be dereferenced by the host.
struct DevicePtr {
  int device = -1;
  uint64_t address = 0;

  explicit operator bool() const { return device >= 0; }
  DevicePtr operator+(uint64_t bytes) const { return {device, address + bytes}; }
  friend bool operator==(const DevicePtr&, const DevicePtr&) = default;
};

// A place in a stream's order. Must not outlive its stream. Thread-safe.
class Event {
 public:
  virtual ~Event() = default;
  // Blocks until all work that was enqueued before the event is done. Returns the first error of that work,
  // even if another call has returned it already.
  virtual absl::Status Await() = 0;
};

// XXH3-128 in canonical byte order.
using DigestBytes = std::array<uint8_t, 16>;

struct DeviceRange {
  DevicePtr begin;
  uint64_t bytes = 0;
};

// Copies on one stream run in order and asynchronously to the host. Errors of earlier copies surface at
// Synchronize and at events. Host memory given to a copy must stay valid until the copy is done. Destroying a
// stream waits for its copies.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual absl::Status CopyToDevice(DevicePtr destination, const std::byte* source, uint64_t bytes) = 0;
  // `source` may also be memory that another library of this process allocated, if the backend can tell that
  // it exists.
  virtual absl::Status CopyToHost(std::byte* destination, DevicePtr source, uint64_t bytes) = 0;
  // Also from one device to another: directly, where they are peers.
  virtual absl::Status CopyOnDevice(DevicePtr destination, DevicePtr source, uint64_t bytes) = 0;
  // Computes the digest of each range on the stream's own device, in order with the copies. `digests` has one
  // element for each range, and must stay valid like the destination of a copy. INVALID_ARGUMENT for ranges
  // on another device; UNIMPLEMENTED if the device cannot digest (DeviceInfo::can_digest). May block until
  // earlier copies are done.
  virtual absl::Status Digest(std::span<const DeviceRange> ranges, std::span<DigestBytes> digests) = 0;
  // Blocks until all enqueued work is done. Returns the first error since the last call, if any.
  virtual absl::Status Synchronize() = 0;
  // As Synchronize, without waiting: whether all is done.
  virtual absl::StatusOr<bool> IsIdle() = 0;
  // For another library of the vendor's (NCCL), which enqueues work of its own: calls `use` once, on this
  // thread, with the stream as such a library takes it (a cudaStream_t) and its device current. Of device
  // memory that work touches `bytes` at `memory`, which are checked as a copy's are, or nothing (0).
  // UNIMPLEMENTED where there is no such library.
  virtual absl::Status Lend(DevicePtr memory, uint64_t bytes,
                            absl::FunctionRef<absl::Status(void* stream)> use) = 0;
  // Records an event after what is enqueued so far.
  virtual absl::StatusOr<std::unique_ptr<Event>> Record() = 0;
};

// An exporter's handle to one allocation, meaningful to other processes of the same host and the same
// backend.
struct IpcHandle {
  std::string device_uuid;
  std::string opaque;  // at most 255 bytes
  uint64_t bytes = 0;
};
void Fields(auto& io, IpcHandle& handle) {  // base/byte_fields.h
  io(handle.device_uuid, handle.opaque, handle.bytes);
}

// How host memory is mapped here.
enum class HostAccess : uint8_t { kReadWrite, kReadOnly };

class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;

  virtual std::string_view backend() const = 0;  // "cuda", "fake", or "none" for the null runtime
  virtual const std::vector<DeviceInfo>& devices() const = 0;
  // The ordinal of the device with this UUID, or NOT_FOUND.
  absl::StatusOr<int> FindDevice(std::string_view uuid) const;
  // OK, or INTERNAL with the reason why this process cannot use the device until the process ends. On such a
  // device new operations fail; freeing memory succeeds and does nothing.
  virtual absl::Status CheckHealth(int device) const = 0;
  // Whether code on `device` reaches memory of `other` directly: its own memory, or a peer's. If not, copies
  // from there go through the host.
  virtual bool Reaches(int device, int other) = 0;
  // For a library on this thread that uses the vendor's driver by itself (UCX): makes the device the thread's
  // current one, with its primary context, and leaves it so.
  virtual absl::Status MakeCurrent(int device) = 0;

  // RESOURCE_EXHAUSTED when the device is full. REQUIRES for Free: no stream still uses the memory and no
  // importer has it open.
  virtual absl::StatusOr<DevicePtr> Allocate(int device, uint64_t bytes) = 0;
  virtual absl::Status Free(DevicePtr pointer) = 0;

  virtual absl::StatusOr<std::unique_ptr<Stream>> CreateStream(int device) = 0;

  // Page-locks host memory for fast copies. Call it once for a pool, never for each tensor. Does nothing (OK)
  // without devices. kReadOnly: the memory is mapped only for reading, and is only a source of copies.
  // UNIMPLEMENTED if a device cannot page-lock such memory.
  virtual absl::Status RegisterHost(std::byte* base, uint64_t bytes, HostAccess access) = 0;
  virtual absl::Status UnregisterHost(std::byte* base) = 0;

  // `allocation` is what Allocate returned, not a place within it.
  virtual absl::StatusOr<IpcHandle> Export(DevicePtr allocation) = 0;
  // Maps another process's allocation. FAILED_PRECONDITION for a handle that this process exported.
  // INVALID_ARGUMENT for a malformed handle or another backend's, NOT_FOUND for a device that this process
  // does not see.
  virtual absl::StatusOr<DevicePtr> OpenIpc(const IpcHandle& handle) = 0;
  virtual absl::Status CloseIpc(DevicePtr pointer) = 0;
};

// The GPUs of this host. UNAVAILABLE with the reason when the binary was built without CUDA, there is no
// driver, or there is no GPU.
absl::StatusOr<std::unique_ptr<DeviceRuntime>> CreateCudaRuntime();

// A runtime without devices, for hosts that have replicas only in host memory and on disk. Operations that
// need a device fail with FAILED_PRECONDITION.
std::unique_ptr<DeviceRuntime> CreateNullRuntime();

}  // namespace tensorcast
