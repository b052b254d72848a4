// What the configuration says of the host pool.
#pragma once

#include <cstdint>

#include "base/config_reader.h"

namespace tensorcast {

// As HostPool::Options has them.
struct PoolOptions {
  uint64_t bytes = uint64_t{4} << 30;
  bool use_huge_pages = true;
  int prefault_threads = 1;

  void FromConfig(ConfigReader& config) {
    config.Read("daemon.host_pool", bytes);
    config.Read("daemon.huge_pages", use_huge_pages);
  }
  void Validate(Findings& findings) const;
};

}  // namespace tensorcast
