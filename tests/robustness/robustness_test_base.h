// Shared by the robustness tests: a cluster of real processes, and the invariants that must hold after a
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
  // E2eTest's options, with lifetimes short enough to wait for.
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
  // Drops all of the node's replicas of the artifact in memory.
  absl::Status DropReplicas(int node, const std::string& artifact_id);
  // Waits until the global store, asked through `node`, lists this many replicas of the artifact.
  absl::Status AwaitReplicas(int node, const std::string& artifact_id, int replicas);
  // Waits until the node's daemon has no running ingest. An ingest that no call waits for ends when its
  // current read or copy does; until then its replica is filling, and cannot be evicted.
  absl::Status AwaitNoIngests(int node);
  // Makes new connections after a restart, since clients have connections to a process that is gone.
  void Reconnect(int node);

  std::unique_ptr<chaos::Invariants> invariants_;
};

// Gives the cluster certificates of this authority: each daemon is "node/node-N", and servers have ports that
// require certificates, on loopback unless others are set.
void UseCertificates(ClusterOptions& options, const security::testing::TestAuthority& authority);

// Runs a program of the system; false when it failed.
bool RunTool(std::vector<std::string> argv);

// A port of this host that is unused now.
int FreePort();
// The port of host:port.
int PortOf(const std::string& address);
// A silent connection to a port of this host, or to a unix socket; not set when it failed.
UniqueFd ConnectTcp(int port);
UniqueFd ConnectUnix(const std::string& path);

}  // namespace tensorcast
