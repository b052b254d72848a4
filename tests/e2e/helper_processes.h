// The processes that a daemon starts (collective/helper, daemon/keeper), for tests that kill and stop them.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace tensorcast {

// Those that the daemon started to broadcast, and that have not ended.
std::vector<pid_t> HelpersOf(pid_t daemon);
// That keep the pool of the daemons of this state folder: none, or one.
std::vector<pid_t> KeepersOf(const std::string& state_dir);

}  // namespace tensorcast
