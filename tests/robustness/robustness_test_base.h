// What the robustness tests share: a cluster of real processes and the invariants that must hold after a
// fault.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/posix/unique_fd.h"
#include "base/steady_time.h"
#include "client/admin.h"
#include "security/identity.h"
#include "tests/e2e/e2e_test_base.h"
#include "tools/workshop/chaos/invariants.h"

namespace tensorcast {

namespace security::testing {
class TestAuthority;
}

class RobustnessTest : public E2eTest {
 protected:
  // As E2eTest's, with lifetimes short enough to wait for.
  ClusterOptions FastOptions() const;
  void StartRobustCluster(const ClusterOptions& options);

  static SteadyTime Soon() { return SteadyNow() + kStepTimeout; }
  chaos::Invariants& invariants() { return *invariants_; }
  absl::StatusOr<std::unique_ptr<client::AdminClient>> Admin(int node) {
    return client::AdminClient::Connect(cluster_->addresses(node).unix_socket);
  }

  // Imports a model on the node under a key and acknowledges it to the invariants.
  absl::StatusOr<client::PutResult> Import(int node, const std::string& key, const std::string& model,
                                           bool durable = false);
  // Drops every replica in memory that the node has of the artifact.
  absl::Status DropReplicas(int node, const std::string& artifact_id);
  // Waits until the global store, asked through `node`, lists this many replicas of the artifact.
  absl::Status AwaitReplicas(int node, const std::string& artifact_id, int replicas);
  // Waits until the node's daemon has no ingest under way. One that no call waits for ends once its current
  // read or copy does; until then its replica is filling, and cannot be evicted.
  absl::Status AwaitNoIngests(int node);
  // After a restart, clients hold connections to a process that is gone.
  void Reconnect(int node);

  std::unique_ptr<chaos::Invariants> invariants_;
};

// A cluster with certificates of this authority: every daemon's is "node/node-N", and both servers have ports
// that ask for them, of loopback where none are set yet.
void UseCertificates(ClusterOptions& options, const security::testing::TestAuthority& authority);

// Runs a program of the system; false when it failed.
bool RunTool(std::vector<std::string> argv);

// Of this host, one that is unused at this moment.
int FreePort();
// Of host:port.
int PortOf(const std::string& address);
// A connection to a port of this host, or to a unix socket, on which nothing was said; not set when it
// failed.
UniqueFd ConnectTcp(int port);
UniqueFd ConnectUnix(const std::string& path);

}  // namespace tensorcast
