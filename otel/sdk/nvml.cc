#include "otel/sdk/nvml.h"

#include <dlfcn.h>

#include <utility>

#include "otel/sdk/nvml_abi.h"

namespace tensorcast::otel::sdk {
namespace {

using nvml::Device;
using nvml::MemoryInfo;
using nvml::Return;
using nvml::UtilizationRates;

// False where the library does not have the function: an old driver.
template <class Function>
bool Find(void* library, const char* name, Function** function) {
  *function = reinterpret_cast<Function*>(dlsym(library, name));
  return *function != nullptr;
}

}  // namespace

struct Nvml::Functions {
  Return (*init)();
  Return (*shutdown)();
  Return (*count)(unsigned int*);
  Return (*handle)(unsigned int, Device*);
  Return (*utilization)(Device, UtilizationRates*);
  Return (*memory)(Device, MemoryInfo*);

  // A library without one of them is not used at all.
  bool FindAll(void* library) {
    return Find(library, "nvmlInit_v2", &init) && Find(library, "nvmlShutdown", &shutdown) &&
           Find(library, "nvmlDeviceGetCount_v2", &count) &&
           Find(library, "nvmlDeviceGetHandleByIndex_v2", &handle) &&
           Find(library, "nvmlDeviceGetUtilizationRates", &utilization) &&
           Find(library, "nvmlDeviceGetMemoryInfo", &memory);
  }
};

// At run time, not linked: most hosts have no NVIDIA driver, and the same binary runs there without these
// metrics.
std::shared_ptr<const Nvml> Nvml::Load(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return nullptr;
  auto functions = std::make_unique<Functions>();
  if (!functions->FindAll(handle) || functions->init() != 0) {
    dlclose(handle);
    return nullptr;
  }
  return std::shared_ptr<const Nvml>(new Nvml(handle, std::move(functions)));
}

Nvml::Nvml(void* library, std::unique_ptr<Functions> functions)
    : library_(library), functions_(std::move(functions)) {
  unsigned int count = 0;
  if (functions_->count(&count) != 0) return;
  for (unsigned int i = 0; i < count; ++i) {
    Device device = nullptr;
    // Null keeps the places of those after it: a GPU that has failed has no figures.
    devices_.push_back(functions_->handle(i, &device) == 0 ? device : nullptr);
  }
}

Nvml::~Nvml() {
  // NVML is shut down before the library goes, which the functions are in.
  functions_->shutdown();
  dlclose(library_);
}

std::optional<double> Nvml::Utilization(int gpu) const {
  UtilizationRates rates{};
  const Device device = devices_[static_cast<size_t>(gpu)];
  if (device == nullptr || functions_->utilization(device, &rates) != 0) return std::nullopt;
  return rates.gpu / 100.0;
}

std::optional<Nvml::Bytes> Nvml::Memory(int gpu) const {
  MemoryInfo info{};
  const Device device = devices_[static_cast<size_t>(gpu)];
  if (device == nullptr || functions_->memory(device, &info) != 0) return std::nullopt;
  return Bytes{static_cast<double>(info.used), static_cast<double>(info.total)};
}

}  // namespace tensorcast::otel::sdk
