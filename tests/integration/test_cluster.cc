#include "tests/integration/test_cluster.h"

#include <filesystem>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "core/safetensors/safetensors.h"
#include "gtest/gtest.h"

namespace tensorcast::testing {
void TestNode::Stop(absl::Duration grace) {
  if (server_ != nullptr) {
    // Held fetches would be waited for until the grace is over.
    gate_.Release();
    server_->Shutdown(SteadyNow() + grace);
  }
  client_.reset();
  admin_.reset();
  server_.reset();
}

TestCluster::TestCluster(absl::Duration grant_ttl) : grant_ttl_(grant_ttl) {
  std::filesystem::create_directories(folder_.path() + "/models");
  StartGlobalStore("127.0.0.1:0");
}

// Daemons first: each says goodbye to a global store that is still there.
TestCluster::~TestCluster() {
  for (const std::unique_ptr<TestNode>& node : nodes_) node->Stop();
  global_store_.reset();
}

void TestCluster::StartGlobalStore(const std::string& listen) {
  global_store::GlobalStoreOptions options;
  options.listen = listen;
  options.metadata_store = "sqlite";
  options.metadata_path = folder_.path() + "/global_store.db";
  options.heartbeat_interval = absl::Milliseconds(100);
  options.node_ttl = absl::Seconds(10);
  options.grant_ttl = grant_ttl_;
  absl::StatusOr<std::unique_ptr<global_store::GlobalStoreServer>> started =
      global_store::GlobalStoreServer::Start(options);
  CHECK_OK(started.status());
  global_store_ = *std::move(started);
  global_store_address_ = global_store_->address();
}

void TestCluster::StopGlobalStore() { global_store_.reset(); }

void TestCluster::RestartGlobalStore() {
  StopGlobalStore();
  StartGlobalStore(global_store_address_);
}

TestNode& TestCluster::AddNode(const std::string& name, const Change& change) {
  nodes_.push_back(std::make_unique<TestNode>(name, absl::StrCat(folder_.path(), "/", name)));
  StartNode(*nodes_.back(), change);
  return *nodes_.back();
}

void TestCluster::StartNode(TestNode& node, const Change& change) {
  absl::StatusOr<std::unique_ptr<DeviceRuntime>> devices =
      CreateFakeRuntime({.device_count = 1, .device_bytes = 64 << 20});
  CHECK_OK(devices.status());
  daemon::DaemonOptions options;
  options.name = node.name_;
  options.listen = "127.0.0.1:0";
  options.state_dir = node.state_dir_;
  options.global_store = global_store_address_;
  options.lanes = {"loopback"};
  options.make_transport = [&node](std::string_view) { return NewGatedTransport(&node.gate_); };
  options.pool = {.bytes = 64 << 20, .use_huge_pages = false, .prefault_threads = 0};
  options.devices = devices->get();
  options.disk.import_roots = {folder_.path() + "/models"};
  options.engine.staging_buffers = 4;
  options.engine.staging_buffer_bytes = 2 << 20;
  options.serving_buffers = 2;
  if (change) change(options);
  absl::StatusOr<std::unique_ptr<daemon::DaemonServer>> server =
      daemon::DaemonServer::Start(std::move(options));
  CHECK_OK(server.status());
  CHECK_OK((*server)->WaitRegistered(SteadyNow() + absl::Seconds(20)));
  const std::string address = (*server)->addresses().back();
  auto client = client::Client::Connect({.daemon = address});
  CHECK_OK(client.status());
  auto admin = client::AdminClient::Connect(address);
  CHECK_OK(admin.status());
  node.server_ = *std::move(server);
  node.devices_ = *std::move(devices);
  node.client_ = *std::move(client);
  node.admin_ = *std::move(admin);
}

std::string TestCluster::WriteModel(const std::string& name, const TestArtifact& artifact) {
  const std::string path = absl::StrCat(folder_.path(), "/models/", name, ".safetensors");
  CHECK_OK(WriteSafetensors(path, artifact.layout, {}, artifact.image));
  return path;
}

std::unique_ptr<client::Client> RemoteClient(TestNode& node) {
  auto client = client::Client::Connect({.daemon = node.server().addresses().front()});
  CHECK_OK(client.status());
  return *std::move(client);
}

void OnItsOwnHost(daemon::DaemonOptions& options) {
  options.host_id = absl::StrCat("host-of-", options.name);
}

RequestContext Soon() { return RequestContext::Background(absl::Seconds(30)); }

std::vector<std::string> LanesOf(const std::optional<TransferReport>& report) {
  std::vector<std::string> lanes;
  if (report.has_value()) {
    for (const StageReport& stage : report->stages) {
      if (stage.stage == Stage::kFetch) lanes.push_back(stage.source.lane);
    }
  }
  return lanes;
}

}  // namespace tensorcast::testing
