// What this host can give a pool: asked by the pool itself, and by code that checks its size beforehand.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace tensorcast {

struct HostLimits {
  uint64_t physical_bytes = 0;   // of memory, or the control group's limit where that is lower
  uint64_t available_bytes = 0;  // without swapping; the kernel's estimate
  uint64_t file_bytes = 0;       // RLIMIT_FSIZE, which holds for memfds too
};

HostLimits ReadHostLimits();

// RESOURCE_EXHAUSTED, saying which limit is in the way, when a pool of `bytes` cannot be had. What is merely
// in use at the moment is in the way only of a pool that is `prefaulted`: taking it would bring the
// out-of-memory killer.
// `segment_bytes`: of the largest of its files.
absl::Status CheckFits(uint64_t bytes, uint64_t segment_bytes, bool prefaulted, const HostLimits& limits);

// Of the 2 MiB size, and not promised to others; 0 where the host has none.
uint64_t FreeHugePageBytes();

}  // namespace tensorcast
