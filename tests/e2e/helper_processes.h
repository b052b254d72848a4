// The helper processes (collective/helper) of a daemon, for tests that kill and stop them.
#pragma once

#include <sys/types.h>

#include <vector>

namespace tensorcast {

// Those that the daemon started to broadcast, and that have not ended.
std::vector<pid_t> HelpersOf(pid_t daemon);

}  // namespace tensorcast
