// NVML's types, with its binary layout; shared with the stand-in library of tests. Source: nvml.h of the
// NVIDIA Management Library.
#pragma once

namespace tensorcast::otel::sdk::nvml {

using Return = int;  // 0 is success
using Device = void*;

struct UtilizationRates {
  unsigned int gpu;  // percent
  unsigned int memory;
};

struct MemoryInfo {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

}  // namespace tensorcast::otel::sdk::nvml
