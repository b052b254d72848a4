#include "core/device/device_runtime.h"

#include "absl/strings/str_cat.h"

namespace tensorcast {
namespace {

absl::Status NoDevice(std::string_view operation) {
  return absl::FailedPreconditionError(
      absl::StrCat(operation, ": this process runs without GPUs; use location cpu or disk"));
}

class NullRuntime final : public DeviceRuntime {
 public:
  std::string_view backend() const override { return "none"; }
  const std::vector<DeviceInfo>& devices() const override { return devices_; }
  absl::Status CheckHealth(int) const override { return NoDevice("check a device's health"); }
  bool Reaches(int, int) override { return false; }
  absl::Status MakeCurrent(int) override { return NoDevice("make a device current"); }

  absl::StatusOr<DevicePtr> Allocate(int, uint64_t) override { return NoDevice("allocate device memory"); }
  absl::Status Free(DevicePtr) override { return NoDevice("free device memory"); }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(int) override {
    return NoDevice("create a device stream");
  }
  // Without a device no copy needs page-locked memory, so these two succeed.
  absl::Status RegisterHost(std::byte*, uint64_t, HostAccess) override { return absl::OkStatus(); }
  absl::Status UnregisterHost(std::byte*) override { return absl::OkStatus(); }
  absl::StatusOr<IpcHandle> Export(DevicePtr) override { return NoDevice("export device memory"); }
  absl::StatusOr<DevicePtr> OpenIpc(const IpcHandle&) override { return NoDevice("open device memory"); }
  absl::Status CloseIpc(DevicePtr) override { return NoDevice("close device memory"); }

 private:
  std::vector<DeviceInfo> devices_;
};

}  // namespace

absl::StatusOr<int> DeviceRuntime::FindDevice(std::string_view uuid) const {
  for (const DeviceInfo& device : devices()) {
    if (device.uuid == uuid) return device.ordinal;
  }
  return absl::NotFoundError(absl::StrCat("find device ", uuid, ": the device is not one of the ",
                                          devices().size(), " devices that this process sees (", backend(),
                                          " backend); make the device visible (CUDA_VISIBLE_DEVICES)"));
}

std::unique_ptr<DeviceRuntime> CreateNullRuntime() { return std::make_unique<NullRuntime>(); }

}  // namespace tensorcast
