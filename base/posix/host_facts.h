// The kernel's limits for this process, and the network links that are up. The status of a node shows them.
// Memory limits are in core/memory/host_limits.h. Stateless; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tensorcast {

struct LinkFacts {
  std::string interface = {};
  uint64_t mbit = 0;  // the rate, in Mbit/s
};

// A value that the kernel does not report is 0 or empty.
struct HostFacts {
  uint64_t descriptors_open = 0;
  uint64_t descriptors_max = 0;    // the soft limit; 2^64-1: no limit
  uint64_t locked_memory_max = 0;  // bytes; 2^64-1: no limit
  uint32_t cpus = 0;               // CPUs that this process may use
  // Hardware links and bonds that are up and report a rate; sorted by name. Leaves out bridges, veth
  // pairs, and links that belong to a bond.
  std::vector<LinkFacts> links;
};

// Tests pass folders of their own as `proc` and `sysfs`.
HostFacts ReadHostFacts(const std::string& proc = "/proc", const std::string& sysfs = "/sys");

}  // namespace tensorcast
