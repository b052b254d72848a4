// Two GPUs as NVML would report them: the first is half busy with 10 of 80 bytes used, the second is broken.
#include "otel/sdk/nvml_abi.h"

namespace nvml = tensorcast::otel::sdk::nvml;

extern "C" {

static int first;
static int second;

nvml::Return nvmlInit_v2() { return 0; }
nvml::Return nvmlShutdown() { return 0; }
nvml::Return nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = 2;
  return 0;
}
nvml::Return nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvml::Device* device) {
  *device = index == 0 ? &first : &second;
  return 0;
}
nvml::Return nvmlDeviceGetUtilizationRates(nvml::Device device, nvml::UtilizationRates* rates) {
  if (device != &first) return 15;
  *rates = {50, 20};
  return 0;
}
nvml::Return nvmlDeviceGetMemoryInfo(nvml::Device device, nvml::MemoryInfo* memory) {
  if (device != &first) return 15;
  *memory = {80, 70, 10};
  return 0;
}
}
