// What a process has open to the network.
#pragma once

#include <sys/types.h>

#include <set>

namespace tensorcast {

// The TCP ports, of IPv4 and IPv6, that a process of this network namespace or another listens on.
std::set<int> ListeningPorts(pid_t pid);

}  // namespace tensorcast
