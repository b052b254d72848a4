// The memory that this host can give a pool. The pool uses it, and code that checks a pool's size beforehand.
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

// RESOURCE_EXHAUSTED, with the limit, when the host cannot give a pool of `bytes`. Memory that is only in use
// at the moment counts against a `prefaulted` pool: prefaulting more than is available would start the
// out-of-memory killer. `segment_bytes` is the size of the pool's largest file.
absl::Status CheckFits(uint64_t bytes, uint64_t segment_bytes, bool prefaulted, const HostLimits& limits);

// Free huge pages of 2 MiB that are not reserved for other processes; 0 if the host has none.
uint64_t FreeHugePageBytes();

}  // namespace tensorcast
