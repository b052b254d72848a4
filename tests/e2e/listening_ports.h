// The network ports that a process has open.
#pragma once

#include <sys/types.h>

#include <set>

namespace tensorcast {

// The TCP ports, of IPv4 and IPv6, on which a process listens, in this network namespace or another.
std::set<int> ListeningPorts(pid_t pid);

}  // namespace tensorcast
