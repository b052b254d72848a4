// Two GPUs, as NVML would tell of them: the first half busy with 10 of 80 bytes used, the second broken.
extern "C" {

struct FakeUtilization {
  unsigned int gpu;
  unsigned int memory;
};
struct FakeMemory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

static int first;
static int second;

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = 2;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void** device) {
  *device = index == 0 ? &first : &second;
  return 0;
}
int nvmlDeviceGetUtilizationRates(void* device, FakeUtilization* rates) {
  if (device != &first) return 15;
  *rates = {50, 20};
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* device, FakeMemory* memory) {
  if (device != &first) return 15;
  *memory = {80, 70, 10};
  return 0;
}
}
