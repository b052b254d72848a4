// References for GPUs, measured in this process: plain copies to and from page-locked memory and between
// devices, reads at the rate of a device's memory, digests by the kernel, and NCCL's own broadcast. One
// thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "collective/communicator.h"
#include "core/device/device_runtime.h"

namespace tensorcast::bench {

class GpuYardsticks {
 public:
  // Each copy has `bytes`. UNAVAILABLE if this host has no GPU.
  static absl::StatusOr<std::unique_ptr<GpuYardsticks>> Open(uint64_t bytes);
  ~GpuYardsticks();
  GpuYardsticks(const GpuYardsticks&) = delete;
  GpuYardsticks& operator=(const GpuYardsticks&) = delete;

  DeviceRuntime& devices() { return *devices_; }
  int device_count() const { return static_cast<int>(devices_->devices().size()); }

  // Each returns the rate in GB/s, from the enqueueing to the end.
  absl::StatusOr<double> ToDevice(int device);
  absl::StatusOr<double> ToHost(int device);
  absl::StatusOr<double> Copy(int from, int to);
  // The max rate at which the device can read its memory, derived from a copy within the device: a copy reads
  // and writes.
  absl::StatusOr<double> Read(int device);
  // UNIMPLEMENTED if the device has no kernel.
  absl::StatusOr<double> Digest(int device);
  // A broadcast from the first of `ranks` to the others by NCCL, in this process. UNAVAILABLE without NCCL.
  absl::StatusOr<double> Broadcast(const RequestContext& context, const std::string& library,
                                   std::span<const int> ranks);

 private:
  // A device's two buffers and stream.
  struct Device {
    DevicePtr first;
    DevicePtr second;
    std::unique_ptr<Stream> stream;
  };
  GpuYardsticks(std::unique_ptr<DeviceRuntime> devices, uint64_t bytes)
      : devices_(std::move(devices)), bytes_(bytes), host_(bytes, std::byte{1}) {}

  absl::StatusOr<Device*> Use(int device);
  absl::Status Join(const RequestContext& context, const std::string& library, std::span<const int> ranks);

  const std::unique_ptr<DeviceRuntime> devices_;
  const uint64_t bytes_;
  std::vector<std::byte> host_;  // page-locked
  std::map<int, Device> used_;
  std::unique_ptr<CollectiveLibrary> nccl_;
  std::unique_ptr<Communicator> communicator_;
  std::vector<int> ranks_;  // of the communicator
};

}  // namespace tensorcast::bench
