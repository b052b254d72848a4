// Hosts on one machine: each daemon in a network namespace of its own with a host id of its own, on a bridge
// in the global store's namespace. Links can be cut and made slow. The machine's own network is not touched:
// clients use unix sockets.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/posix/unique_fd.h"
#include "cli/cluster/local_cluster.h"

namespace tensorcast {

// Names of namespaces carry the process id: two runs on one machine do not meet. What is in a namespace goes
// with it. Thread-compatible.
class Network {
 public:
  explicit Network(int nodes) : nodes_(nodes) {}
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // False where namespaces cannot be made: that takes root, `ip` and veth.
  bool SetUp();
  // Puts the cluster on it: as many daemons as nodes, each on a host of its own.
  void Use(ClusterOptions& options) const;
  // The same on the ports of SECURITY.md's table: 7000, 7001, 7002 and, for UCX, 7010.
  void UseDocumentedPorts(ClusterOptions& options) const;

  bool Cut(int node);
  bool Heal(int node);
  // What the node sends from now on leaves it at this rate at most; needs `tc`.
  bool Throttle(int node, uint64_t bits_per_second);
  // A firewall: to and from other hosts, TCP passes the node only where one end has a port of these, such as
  // {"7000", "7010-7019"}. Replaces what was allowed before.
  bool AllowOnly(int node, const std::vector<std::string>& ports);
  // A packet socket that hears all that goes to and from the node, and keeps it, at most some hundred MiB,
  // until it is read; not set when it failed.
  UniqueFd Capture(int node) const;

 private:
  struct Ports {
    int global_store = 0;
    int daemon = 0;
    int tcp = 0;
    int ucx = 0;
  };
  void Use(ClusterOptions& options, const Ports& ports) const;
  bool AddNode(int node);

  const int nodes_;
};

}  // namespace tensorcast
