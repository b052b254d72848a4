// The calls of NVIDIA's management library that the GPU metrics need. The library is loaded at run time;
// without it only these metrics are missing. Interface: "NVML API Reference Guide", NVIDIA.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tensorcast::otel::sdk {

// Thread-safe, because NVML is.
class Nvml {
 public:
  // Null when the library cannot be loaded, lacks a function, or finds no driver.
  static std::shared_ptr<const Nvml> Load(const std::string& library);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  struct Bytes {
    double used = 0;
    double total = 0;
  };

  int device_count() const { return static_cast<int>(devices_.size()); }
  std::optional<double> Utilization(int gpu) const;  // 0 to 1; nullopt if NVML fails
  std::optional<Bytes> Memory(int gpu) const;

 private:
  struct Functions;
  Nvml(void* library, std::unique_ptr<Functions> functions);

  void* const library_;
  const std::unique_ptr<Functions> functions_;
  std::vector<void*> devices_;  // null if a device could not be opened
};

}  // namespace tensorcast::otel::sdk
