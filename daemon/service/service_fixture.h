// A node for the tests of this folder: a real engine, disk tier and handle socket; its global store and peers
// are doubles. The parts are public, so that tests can inspect and change them.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/testing/temp_folder.h"
#include "core/device/fake_device.h"
#include "core/device/testing/device_faults.h"
#include "core/device/testing/fault_hooks.h"
#include "core/disk/import_roots.h"
#include "core/safetensors/safetensors.h"
#include "core/testing/scripted_source.h"
#include "core/testing/test_artifact.h"
#include "daemon/global_store_link/fake_global_store.h"
#include "daemon/service/ingest.h"
#include "daemon/service/materialize.h"
#include "daemon/service/status_report.h"
#include "daemon/sources/fake_peers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/grant_token/grant_token.h"

namespace tensorcast::daemon {

class ServiceTest : public ::testing::Test {
 public:
  static constexpr char kGrantKey[] = "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk";

  void SetUp() override {
    std::filesystem::create_directories(folder + "/models");
    std::filesystem::create_directories(folder + "/artifacts");
    auto made_pool = HostPool::Create({.bytes = 32 << 20, .use_huge_pages = false, .prefault_threads = 0});
    ASSERT_TRUE(made_pool.ok()) << made_pool.status();
    pool = *std::move(made_pool);
    auto made_devices =
        CreateFakeRuntime({.device_count = 1, .device_bytes = 8 << 20, .hooks = HooksOf(device_faults)});
    ASSERT_TRUE(made_devices.ok()) << made_devices.status();
    devices = *std::move(made_devices);
    auto opened = ArtifactStore::Open(folder + "/artifacts");
    ASSERT_TRUE(opened.ok()) << opened.status();
    artifact_store = *std::move(opened);
    auto roots = ImportRoots::Beneath({folder + "/models"});
    ASSERT_TRUE(roots.ok()) << roots.status();
    imports = std::make_shared<const ImportRoots>(*std::move(roots));
    auto made_engine = StoreEngine::Create({.node_id = "me",
                                            .host_pool = pool.get(),
                                            .devices = devices.get(),
                                            .artifact_store = artifact_store.get(),
                                            .eviction_guard = eviction_guard.get(),
                                            .listener = &feed,
                                            .staging_buffers = 2,
                                            .staging_buffer_bytes = 2 << 20});
    ASSERT_TRUE(made_engine.ok()) << made_engine.status();
    engine = *std::move(made_engine);
    auto started = HandleServer::Start({.path = folder + "/handles.sock",
                                        .ticket_ttl = absl::Minutes(1),
                                        .stall_timeout = absl::Seconds(2)});
    ASSERT_TRUE(started.ok()) << started.status();
    handles = *std::move(started);
    sessions = std::make_unique<Sessions>(handles.get(), pool.get(), devices.get());
    known_keys = std::make_unique<KnownKeys>(&store, folder + "/known_keys");
    link = std::make_unique<GlobalStoreLink>(LinkOptions());
    servings = std::make_unique<ServeRegistry>(
        ServeRegistry::Options{.engine = engine.get(), .devices = devices.get(), .grant_key = [] {
                                 return rpc::GrantKey{.bytes = kGrantKey, .given = SteadyNow()};
                               }});
    opener = std::make_unique<GrantedSourceOpener>(
        GrantedSourceOpener::Options{.node_id = "me", .local = nullptr, .peers = &peers});
    finder = std::make_unique<SourceFinder>(SourceFinder::Options{.grants = {.global_store = &store,
                                                                             .link = link.get(),
                                                                             .peers = &peers,
                                                                             .opener = opener.get(),
                                                                             .running = &grants,
                                                                             .background = &background},
                                                                  .devices = devices.get(),
                                                                  .objects = imports});
    difference_paths = std::make_unique<DifferencePaths>(DifferencePaths::Options{
        .engine = engine.get(), .global_store = &store, .sources = finder.get(), .devices = devices.get()});
    materializer = std::make_unique<Materializer>(MaterializerOptions());
    difference_maker =
        std::make_unique<DifferenceMaker>(DifferenceMaker::Options{.engine = engine.get(),
                                                                   .known_keys = known_keys.get(),
                                                                   .global_store = &store,
                                                                   .materializer = materializer.get(),
                                                                   .node_id = "me"});
    ingester = std::make_unique<Ingester>(IngesterOptions());
    groups = std::make_unique<BroadcastGroups>(BroadcastGroups::Options{
        .node_name = "me", .global_store = &store, .link = link.get(), .engine = engine.get()});
    status = std::make_unique<StatusReporter>(StatusReporter::Options{.node = &node,
                                                                      .global_store_label = "the store",
                                                                      .link = link.get(),
                                                                      .engine = engine.get(),
                                                                      .pool = pool.get(),
                                                                      .devices = devices.get(),
                                                                      .artifact_store = artifact_store.get(),
                                                                      .handles = handles.get(),
                                                                      .servings = servings.get(),
                                                                      .transfers = &transfers,
                                                                      .groups = groups.get()});
    // The global store only answers calls of nodes that it knows.
    store.knows_node = true;
  }

  GlobalStoreLink::Options LinkOptions() {
    GlobalStoreLink::Options options{.client = &store, .feed = &feed};
    options.node.set_node_id("me");
    return options;
  }

  Materializer::Options MaterializerOptions() {
    return {.node = &node,
            .engine = engine.get(),
            .devices = devices.get(),
            .sources = finder.get(),
            .global_store = &store,
            .known_keys = known_keys.get(),
            .sessions = sessions.get(),
            .handle_socket = handles->path(),
            .servings = servings.get(),
            .lanes = {"local", "disk"},
            .differences = difference_paths.get()};
  }

  Ingester::Options IngesterOptions() {
    return {.node = &node,
            .engine = engine.get(),
            .devices = devices.get(),
            .disk_tier = true,
            .sessions = sessions.get(),
            .objects = imports,
            .sources = finder.get(),
            .global_store = &store,
            .link = link.get(),
            .known_keys = known_keys.get(),
            .publications = &publications,
            .differences = difference_maker.get()};
  }

  // Writes a safetensors file with the artifact's tensors to the import root.
  std::string WriteModel(const std::string& name) {
    const std::string path = absl::StrCat(folder, "/models/", name);
    const absl::Status written = WriteSafetensors(path, artifact.layout, {}, artifact.image);
    EXPECT_TRUE(written.ok()) << written;
    return path;
  }

  // Describes the artifact's tensors, for a put of its image.
  v1::PutArtifactRequest DescribeArtifact() const {
    v1::PutArtifactRequest request;
    for (const Tensor& tensor : artifact.layout.tensors) {
      v1::PutArtifactRequest::TensorDescription* described = request.add_tensors();
      described->set_name(tensor.name);
      described->set_dtype(std::string(DTypeName(tensor.dtype)));
      described->mutable_shape()->Add(tensor.shape.begin(), tensor.shape.end());
    }
    return request;
  }

  absl::StatusOr<v1::PutArtifactResult> Import(const std::string& path, const std::string& key = "",
                                               bool durable = false) {
    v1::ImportArtifactRequest request;
    request.set_path(path);
    request.set_durable(durable);
    if (!key.empty()) request.mutable_binding()->set_key(key);
    return ingester->Import(context, request, /*asking=*/"", nullptr);
  }

  // Makes a replica of the artifact here without a call. Returns the replica's id.
  std::string MakeReplica(Location location = {}) {
    auto provider = std::make_shared<testing::ScriptedProvider>(
        std::vector{testing::MakeControl(artifact.image, testing::SourceScript{})});
    auto pending =
        engine->Ingest(context, {.manifest = artifact.manifest, .location = location, .sources = provider});
    EXPECT_TRUE(pending.ok()) << pending.status();
    auto lease = (*pending)->Wait(context);
    EXPECT_TRUE(lease.ok()) << lease.status();
    return (*lease)->replica_id();
  }

  // Sets the global store's binding of the key.
  void Bind(const std::string& name, const std::string& artifact_id, uint64_t revision) {
    store.With([&](FakeGlobalStore& it) {
      v1::Key& key = it.keys[name];
      key.set_name(name);
      key.set_artifact_id(artifact_id);
      key.set_revision(revision);
    });
  }

  static v1::Node Description() {
    v1::Node description;
    description.set_node_id("me");
    description.set_name("node-0");
    return description;
  }

  const tensorcast::testing::TempFolder temp_folder;
  const std::string& folder = temp_folder.path();
  const testing::TestArtifact artifact =
      testing::MakeTestArtifact(1, {kMinChunkBytes, kMinChunkBytes, kMinChunkBytes});  // a chunk each
  const RequestContext context = RequestContext::Background(absl::Seconds(20));
  FakeGlobalStore store;
  FakePeers peers;
  LocalNode node{Description()};
  TransferLog transfers;
  ReplicaFeed feed{[this](const TransferReport& report) { transfers.Add(report); }};
  std::unique_ptr<EvictionGuard> eviction_guard;  // set it before SetUp; null: any replica may go
  std::unique_ptr<HostPool> pool;
  const std::shared_ptr<DeviceFaults> device_faults = std::make_shared<DeviceFaults>();
  std::unique_ptr<DeviceRuntime> devices;
  std::shared_ptr<ArtifactStore> artifact_store;
  std::shared_ptr<const ObjectStore> imports;
  Publications publications;
  RunningGrants grants;
  std::unique_ptr<KnownKeys> known_keys;
  std::unique_ptr<GlobalStoreLink> link;
  std::unique_ptr<GrantedSourceOpener> opener;
  std::unique_ptr<SourceFinder> finder;
  std::unique_ptr<StoreEngine> engine;
  std::unique_ptr<HandleServer> handles;
  std::unique_ptr<Sessions> sessions;
  std::unique_ptr<ServeRegistry> servings;
  std::unique_ptr<DifferencePaths> difference_paths;
  std::unique_ptr<DifferenceMaker> difference_maker;
  std::unique_ptr<Materializer> materializer;
  std::unique_ptr<Ingester> ingester;
  std::unique_ptr<BroadcastGroups> groups;
  std::unique_ptr<StatusReporter> status;
  TaskLoop background;  // destroyed first: its tasks use the other members
};

}  // namespace tensorcast::daemon
