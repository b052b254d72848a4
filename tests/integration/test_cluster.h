// A global store and daemons in one process, with real sockets, pools and files, for tests.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/testing/eventually.h"
#include "base/testing/temp_folder.h"
#include "client/admin.h"
#include "core/artifact/layout.h"
#include "core/device/fake_device.h"
#include "core/testing/test_artifact.h"
#include "daemon/app/daemon_server.h"
#include "global_store/app/global_store_server.h"
#include "tensorcast/client.h"
#include "tests/integration/gated_transport.h"

namespace tensorcast::testing {

inline constexpr uint64_t kTestChunkBytes = kMinChunkBytes;  // for images below 512 MiB

// A daemon and its clients. Stop keeps the daemon's folder, so that it can be started again.
class TestNode {
 public:
  TestNode(std::string name, std::string state_dir)
      : name_(std::move(name)), state_dir_(std::move(state_dir)) {}

  daemon::DaemonServer& server() { return *server_; }
  client::Client& client() { return *client_; }
  client::AdminClient& admin() { return *admin_; }
  DeviceRuntime& devices() { return *devices_; }
  Gate& gate() { return gate_; }
  const std::string& name() const { return name_; }

  // Ends the daemon; clients notice.
  void Stop(absl::Duration grace = absl::ZeroDuration());
  bool running() const { return server_ != nullptr; }

 private:
  friend class TestCluster;
  const std::string name_;
  const std::string state_dir_;
  Gate gate_;
  std::unique_ptr<DeviceRuntime> devices_;
  std::unique_ptr<daemon::DaemonServer> server_;
  std::unique_ptr<client::Client> client_;
  std::unique_ptr<client::AdminClient> admin_;
};

class TestCluster {
 public:
  // SQLite's file is in the cluster's folder: restarts keep artifacts and keys.
  explicit TestCluster(absl::Duration grant_ttl = absl::Seconds(10));
  ~TestCluster();

  using Change = std::function<void(daemon::DaemonOptions&)>;
  // Starts a daemon and waits until it is registered. By default all nodes are on one host and use the local
  // lane; separate host ids make them pull over the loopback transport.
  TestNode& AddNode(const std::string& name, const Change& change = nullptr);
  void StartNode(TestNode& node, const Change& change = nullptr);

  global_store::GlobalStoreServer& global_store() { return *global_store_; }
  // Restarts it at the same address.
  void RestartGlobalStore();
  void StopGlobalStore();

  // Writes a safetensors file with these bytes in a folder from which daemons may import.
  std::string WriteModel(const std::string& name, const TestArtifact& artifact);
  const std::string& folder() const { return folder_.path(); }

 private:
  void StartGlobalStore(const std::string& listen);

  const absl::Duration grant_ttl_;
  const TempFolder folder_;
  std::string global_store_address_;
  std::unique_ptr<global_store::GlobalStoreServer> global_store_;
  std::vector<std::unique_ptr<TestNode>> nodes_;
};

// A client that reaches the node by host:port, like a client of another host: the daemon opens the paths that
// it names.
std::unique_ptr<client::Client> RemoteClient(TestNode& node);

// Puts the node on a host of its own.
void OnItsOwnHost(daemon::DaemonOptions& options);

RequestContext Soon();  // a context that ends after a time that only a hang takes

// The lanes over which bytes were fetched, in the report's order.
std::vector<std::string> LanesOf(const std::optional<TransferReport>& report);

}  // namespace tensorcast::testing
