// Hosts on one machine: each daemon is in a network namespace of its own, with a host id of its own, on a
// bridge in the global store's namespace. Links can be cut and slowed down. The machine's own network is not
// changed: clients use unix sockets.
//
// A namespace has no name: it lives as long as this process has it open or a process runs in it, and its
// links end with it. Thus nothing is left behind, however the process ends.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/posix/unique_fd.h"
#include "tools/workshop/cluster/local_cluster.h"

namespace tensorcast {

// Thread-compatible; call from the main thread (process.h).
class Network {
 public:
  // FAILED_PRECONDITION if namespaces cannot be made: that needs root, `ip` and veth.
  static absl::StatusOr<std::unique_ptr<Network>> Make(int nodes);
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  int nodes() const { return static_cast<int>(nodes_.size()); }
  // The address at which other nodes reach the node, and the subnet of all nodes.
  static std::string Address(int node);
  static std::string Subnet();

  // Puts the cluster on this network: `daemons_a_node` daemons on each node, in order.
  void Use(ClusterOptions& options, int daemons_a_node = 1) const;
  // The same on the ports in SECURITY.md's table: 7000, 7001, 7002 and, for UCX, 7010.
  void UseDocumentedPorts(ClusterOptions& options) const;

  absl::Status Cut(int node);
  absl::Status Heal(int node);
  // Limits the rate at which the node sends and receives from now on; needs `tc`.
  absl::Status Throttle(int node, uint64_t bits_per_second);
  // All bytes that the node's link has sent so far, including headers.
  absl::StatusOr<uint64_t> SentBytes(int node) const;

  // Runs `work` on a thread inside the node: sockets that it opens belong to the node, wherever they are used
  // later.
  absl::Status Inside(int node, absl::FunctionRef<void()> work) const;
  // Runs a program of the system, such as `ip`, inside the node; if it fails, its output is the error's text.
  absl::Status Run(int node, const std::vector<std::string>& command) const;

 private:
  struct Ports {
    int global_store = 0;
    int daemon = 0;
    int tcp = 0;
    int ucx = 0;
  };

  Network() = default;
  absl::Status AddHub();
  absl::Status AddNode();
  absl::Status RunInHub(const std::vector<std::string>& command) const;
  void UsePorts(ClusterOptions& options, const Ports& ports, int daemons_a_node) const;

  UniqueFd hub_;
  std::vector<UniqueFd> nodes_;
};

}  // namespace tensorcast
