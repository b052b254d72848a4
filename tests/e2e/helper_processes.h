// The processes that a daemon starts (collective/helper, daemon/keeper), for tests that kill and stop them.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace tensorcast {

// The live processes that the daemon started for broadcasts.
std::vector<pid_t> HelpersOf(pid_t daemon);
// The processes that keep the pool of this state folder's daemons: none, or one.
std::vector<pid_t> KeepersOf(const std::string& state_dir);

}  // namespace tensorcast
