#include "core/memory/pool_options.h"

#include "core/memory/host_limits.h"
#include "core/memory/host_pool.h"

namespace tensorcast {

void PoolOptions::Validate(Findings& findings) const {
  // The default is for hosts that run a daemon; where it does not fit, the start says so.
  if (bytes == PoolOptions().bytes || bytes <= FreeHugePageBytes()) return;
  findings.Add("daemon.host_pool", CheckFits(bytes, kSegmentBytes, /*prefaulted=*/false, ReadHostLimits()));
}

}  // namespace tensorcast
