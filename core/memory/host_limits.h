// Reads how much memory this host can give to a pool. Stateless; thread-safe.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace tensorcast {

struct HostLimits {
  uint64_t physical_bytes = 0;   // the host's memory, or the control group's limit if that is lower
  uint64_t available_bytes = 0;  // without swapping: MemAvailable of /proc/meminfo, at most physical_bytes
  uint64_t file_bytes = 0;       // RLIMIT_FSIZE, which also limits memfds
};

HostLimits ReadHostLimits();

// RESOURCE_EXHAUSTED, with the limit, if the host cannot give memory to a pool of `bytes` bytes. A
// `prefaulted` pool must also fit the memory that is available now. `segment_bytes` is the size of the
// pool's largest file.
absl::Status CheckFits(uint64_t bytes, uint64_t segment_bytes, bool prefaulted, const HostLimits& limits);

// The bytes in free huge pages of 2 MiB that are not reserved for other processes; 0 if the host has none.
uint64_t FreeHugePageBytes();

}  // namespace tensorcast
