// What the kernel lets this process have, and which network links are up: for a status that other tools
// judge. Memory is not among them (core/memory/host_limits.h). Stateless; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tensorcast {

struct LinkFacts {
  std::string interface = {};
  uint64_t mbit = 0;
};

// 0 and empty for what the kernel does not say.
struct HostFacts {
  uint64_t descriptors_open = 0;
  uint64_t descriptors_max = 0;    // the soft limit; 2^64-1: none
  uint64_t locked_memory_max = 0;  // bytes; 2^64-1: no limit
  uint32_t cpus = 0;               // that this process may use
  // Of hardware, and bonds of it, that are up and say their rate, by name. The rate that bridges and the
  // pairs of containers say is made up.
  std::vector<LinkFacts> links;
};

// `proc` and `sysfs`: tests have folders of their own.
HostFacts ReadHostFacts(const std::string& proc = "/proc", const std::string& sysfs = "/sys");

}  // namespace tensorcast
