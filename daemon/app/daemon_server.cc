#include "daemon/app/daemon_server.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/log/log.h"
#include "absl/synchronization/mutex.h"
#include "base/posix/private_files.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "daemon/app/housekeeper.h"
#include "daemon/app/node_agent.h"
#include "daemon/app/node_gauges.h"
#include "daemon/global_store_link/own_port.h"
#include "daemon/node/node_state.h"
#include "daemon/service/global_store_proxy.h"
#include "daemon/service/store_daemon_service.h"
#include "daemon/telemetry/telemetry.h"
#include "rpc/address.h"
#include "rpc/channel.h"
#include "rpc/executor.h"
#include "rpc/health.h"
#include "rpc/server.h"

namespace tensorcast::daemon {
namespace {

constexpr uint32_t kProtocolVersion = 1;
constexpr absl::Duration kChoreInterval = absl::Seconds(1);
constexpr absl::Duration kPeerCheckInterval = absl::Seconds(10);
constexpr absl::Duration kLostFilesInterval = absl::Seconds(10);
constexpr absl::Duration kPortCheckInterval = absl::Seconds(2);
constexpr absl::Duration kPortCheckTimeout = absl::Seconds(5);
constexpr absl::Duration kFarewell = absl::Seconds(2);  // for the last calls of a shutdown
constexpr int kQuickThreads = 64;
constexpr int kWaitingThreads = 512;  // started on demand; each waits for a transfer or watches

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unnamed";
}

// What others are told to connect to: an address of this host alone where nothing else is listened on.
absl::StatusOr<std::string> Advertised(const DaemonOptions& options, const std::string& bound) {
  if (rpc::IsUnixAddress(bound)) {
    return bound;
  }
  TC_ASSIGN_OR_RETURN(const rpc::HostPort listening, rpc::ParseHostPort(bound));
  rpc::HostPort advertised = listening;
  if (!options.advertise.empty()) {
    TC_ASSIGN_OR_RETURN(advertised, rpc::ParseHostPort(options.advertise));
    if (advertised.port == 0) {
      advertised.port = listening.port;
    }
  }
  if (rpc::IsWildcard(advertised)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "daemon.listen is ", options.listen,
        ", every address of this host, and others need one to connect to: set daemon.advertise"));
  }
  return rpc::FormatHostPort(advertised);
}

std::string Absolute(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.string();
}

// Page-locked host memory, for as long as this lives.
class HostRegistration {
 public:
  static absl::StatusOr<std::unique_ptr<HostRegistration>> Make(DeviceRuntime* devices, HostPool* pool) {
    TC_RETURN_IF_ERROR(devices->RegisterHost(pool->base(), pool->bytes()));
    return std::unique_ptr<HostRegistration>(new HostRegistration(devices, pool->base()));
  }
  ~HostRegistration() {
    const absl::Status status = devices_->UnregisterHost(base_);
    LOG_IF(WARNING, !status.ok()) << "The host pool stays page-locked: " << status;
  }

 private:
  HostRegistration(DeviceRuntime* devices, std::byte* base) : devices_(devices), base_(base) {}
  DeviceRuntime* const devices_;
  std::byte* const base_;
};

// A packed file can be cut short behind the daemon's back. (One that was removed is found out by the store.)
absl::Status CheckPackedFile(const PackedFile& packed) {
  struct stat open {};
  const uint64_t bytes = packed.image_offset() + packed.manifest()->layout().image_bytes;
  if (fstat(packed.fd(), &open) == 0 && static_cast<uint64_t>(open.st_size) >= bytes) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the packed file ", packed.path(),
      " was cut short: it is no copy any more; drop its replica (rm --replica --force) and put the artifact "
      "again"));
}

bool SomebodyListens(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return false;
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

class DaemonServerImpl : public DaemonServer {
 public:
  explicit DaemonServerImpl(DaemonOptions options) : options_(std::move(options)) {}
  ~DaemonServerImpl() override { Shutdown(SteadyNow()); }

  absl::Status Start();

  const std::vector<std::string>& addresses() const override { return server_->addresses(); }
  const std::string& handle_socket() const override { return handles_->path(); }
  const std::string& node_id() const override { return state_->node_id(); }
  absl::Status WaitRegistered(absl::Time deadline) override { return link_->WaitRegistered(deadline); }
  void Shutdown(absl::Time deadline) override;
  StoreEngine& engine() override { return *engine_; }
  HostPool& host_pool() override { return *pool_; }

 private:
  void FillDefaults();
  absl::Status OpenStorage();
  absl::Status OpenLanes();
  void ConnectToGlobalStore();
  absl::Status StartEngine();
  absl::Status StartServing();
  v1::Node DescribeNode() const;
  void AwaitTransfers(absl::Time deadline) const;
  void SayThatItDrains() const;
  void DoChores();

  // In the order of their making; destroyed the other way round, so that each outlives what uses it.
  DaemonOptions options_;
  std::unique_ptr<NodeState> state_;
  std::unique_ptr<DeviceRuntime> no_devices_;
  DeviceRuntime* devices_ = nullptr;
  std::unique_ptr<HostPool> pool_;
  std::unique_ptr<HostRegistration> host_registration_;
  std::unique_ptr<ArtifactStore> artifact_store_;
  std::vector<std::unique_ptr<transport::Transport>> lanes_;
  std::shared_ptr<grpc::Channel> global_store_channel_;
  std::unique_ptr<GlobalStoreClient> global_store_;
  std::unique_ptr<KnownKeys> known_keys_;
  std::unique_ptr<PeerClient> peers_;
  TransferLog transfers_;
  std::unique_ptr<ReplicaFeed> feed_;
  std::unique_ptr<GlobalStoreLink> link_;
  std::unique_ptr<ClusterEvictionGuard> guard_;
  PeerPools peer_pools_;
  RunningGrants running_;
  NodeParts parts_;
  std::unique_ptr<OwnPort> own_port_;
  std::unique_ptr<NodeAgent> agent_;
  std::unique_ptr<Errands> errands_;
  std::unique_ptr<StoreEngine> engine_;
  std::unique_ptr<HandleServer> handles_;  // its tickets and connections hold leases
  std::unique_ptr<Sessions> sessions_;
  std::unique_ptr<ServeRegistry> servings_;
  std::unique_ptr<rpc::Executor> quick_;
  std::unique_ptr<rpc::Executor> waiting_;
  std::unique_ptr<StoreDaemonService> service_;
  std::unique_ptr<GlobalStoreProxy> proxy_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<NodeGauges> gauges_;
  std::unique_ptr<Housekeeper> housekeeper_;
  std::unique_ptr<Housekeeper> file_keeper_;
  absl::Time next_peer_check_ = absl::InfinitePast();  // the housekeeper's

  absl::Mutex shutdown_mutex_;
  bool shut_down_ ABSL_GUARDED_BY(shutdown_mutex_) = false;
};

void DaemonServerImpl::FillDefaults() {
  const auto fill = [](std::string& option, const std::string& value) {
    if (option.empty()) {
      option = value;
    }
  };
  fill(options_.name, HostName());
  fill(options_.unix_socket, absl::StrCat(options_.state_dir, "/daemon.sock"));
  fill(options_.handle_socket, absl::StrCat(options_.state_dir, "/handles.sock"));
  fill(options_.disk_dir, absl::StrCat(options_.state_dir, "/artifacts"));
  // Told to processes with other working folders.
  options_.unix_socket = Absolute(options_.unix_socket);
  options_.handle_socket = Absolute(options_.handle_socket);
  fill(options_.global_store_label, options_.global_store);
  devices_ = options_.devices;
  if (devices_ == nullptr) {
    no_devices_ = CreateNullRuntime();
    devices_ = no_devices_.get();
  }
}

absl::Status DaemonServerImpl::OpenStorage() {
  TC_ASSIGN_OR_RETURN(pool_, HostPool::Create({.bytes = options_.host_pool_bytes,
                                               .use_huge_pages = options_.huge_pages,
                                               .prefault_threads = options_.prefault_threads}));
  TC_ASSIGN_OR_RETURN(host_registration_, HostRegistration::Make(devices_, pool_.get()));
  if (options_.disk_tier) {
    TC_RETURN_IF_ERROR(MakePrivateFolder(options_.disk_dir, ""));
    TC_ASSIGN_OR_RETURN(artifact_store_, ArtifactStore::Open(options_.disk_dir));
  }
  TC_ASSIGN_OR_RETURN(parts_.import_roots, ImportRoots::Beneath(options_.import_roots));
  return absl::OkStatus();
}

absl::Status DaemonServerImpl::OpenLanes() {
  for (const std::string& name : options_.lanes) {
    absl::StatusOr<std::unique_ptr<transport::Transport>> lane = options_.make_transport(name);
    if (!lane.ok()) {
      return Annotate(lane.status(), absl::StrCat("lane ", name));
    }
    TC_RETURN_IF_ERROR((*lane)->RegisterMemory(pool_->base(), pool_->bytes()));
    lanes_.push_back(*std::move(lane));
  }
  return absl::OkStatus();
}

v1::Node DaemonServerImpl::DescribeNode() const {
  v1::Node node;
  node.set_node_id(state_->node_id());
  node.set_name(options_.name);
  node.set_incarnation(state_->incarnation());
  node.set_host_id(options_.host_id);
  // Without it nobody attaches, and the global store grants no local lane.
  node.set_handle_socket(options_.local_lane ? options_.handle_socket : "");
  for (const auto& lane : lanes_) {
    node.add_lanes(std::string(lane->name()));
  }
  for (const DeviceInfo& info : devices_->devices()) {
    v1::Device* device = node.add_devices();
    device->set_ordinal(info.ordinal);
    device->set_uuid(info.uuid);
    device->set_name(info.name);
    device->set_total_bytes(info.total_bytes);
  }
  node.set_protocol_version(kProtocolVersion);
  return node;
}

void DaemonServerImpl::ConnectToGlobalStore() {
  global_store_channel_ = rpc::MakeChannel(options_.global_store);
  global_store_ = MakeGlobalStoreClient(global_store_channel_, options_.global_store);
  known_keys_ =
      std::make_unique<KnownKeys>(global_store_.get(), absl::StrCat(options_.state_dir, "/known_keys"));
  peers_ = MakePeerClient([](const std::string& address) { return rpc::MakeChannel(address); });
  feed_ = std::make_unique<ReplicaFeed>([this](const TransferReport& report) {
    transfers_.Add(report);
    RecordTransfer(report);
    LogTransfer(report);
  });
  link_ = std::make_unique<GlobalStoreLink>(GlobalStoreLink::Options{.node = DescribeNode(),
                                                                     .client = global_store_.get(),
                                                                     .feed = feed_.get(),
                                                                     .devices = devices_,
                                                                     .on_replaced = options_.on_replaced});
  const auto durable_here = [this](const ReplicaInfo& replica) -> absl::StatusOr<bool> {
    if (replica.location.kind == LocationKind::kDisk || artifact_store_ == nullptr) return false;
    const auto packed = artifact_store_->Find(replica.artifact_id);
    if (absl::IsNotFound(packed.status())) return false;
    TC_RETURN_IF_ERROR(packed.status());
    TC_RETURN_IF_ERROR(CheckPackedFile(**packed));
    return true;
  };
  guard_ = std::make_unique<ClusterEvictionGuard>(global_store_.get(), link_.get(), durable_here);
}

absl::Status DaemonServerImpl::StartEngine() {
  TC_ASSIGN_OR_RETURN(engine_, StoreEngine::Create({.host_pool = pool_.get(),
                                                    .devices = devices_,
                                                    .device_pool_bytes = options_.device_pool_bytes,
                                                    .artifact_store = artifact_store_.get(),
                                                    .eviction_guard = guard_.get(),
                                                    .listener = feed_.get(),
                                                    .max_concurrent_ingests = options_.max_concurrent_ingests,
                                                    .copy_threads = options_.copy_threads,
                                                    .staging_buffers = options_.staging_buffers,
                                                    .staging_buffer_bytes = options_.staging_buffer_bytes}));
  TC_ASSIGN_OR_RETURN(handles_, HandleServer::Start({.path = options_.handle_socket,
                                                     .allowed_groups = options_.handle_groups,
                                                     .ticket_ttl = options_.ticket_life,
                                                     .max_connections = options_.max_connections}));
  sessions_ = std::make_unique<Sessions>(handles_.get(), pool_.get(), NewUuid(), devices_);
  const bool stages = artifact_store_ != nullptr || !devices_->devices().empty();
  TC_ASSIGN_OR_RETURN(std::shared_ptr<StagingBuffers> staging,
                      StagingBuffers::Create(pool_.get(), stages ? options_.serving_buffers : 0));
  std::vector<transport::Transport*> lanes;
  for (const auto& lane : lanes_) {
    lanes.push_back(lane.get());
  }
  servings_ = std::make_unique<ServeRegistry>(
      ServeRegistry::Options{.engine = engine_.get(),
                             .devices = devices_,
                             .lanes = lanes,
                             .staging = std::move(staging),
                             .grant_key = [this] { return link_->grant_key(); },
                             .grant_life = options_.grant_life,
                             .staging_wait = options_.peer_timeout});
  errands_ = std::make_unique<Errands>();
  parts_.access = PeerAccess{.global_store = global_store_.get(),
                             .link = link_.get(),
                             .peers = peers_.get(),
                             .pools = &peer_pools_,
                             .running = &running_,
                             .errands = errands_.get(),
                             .engine = engine_.get(),
                             .devices = devices_,
                             .import_roots = &parts_.import_roots,
                             .lanes = std::move(lanes),
                             .peer_timeout = options_.peer_timeout};
  return absl::OkStatus();
}

absl::Status DaemonServerImpl::StartServing() {
  parts_.node_id = state_->node_id();
  parts_.global_store_label = options_.global_store_label;
  parts_.engine = engine_.get();
  parts_.pool = pool_.get();
  parts_.devices = devices_;
  parts_.artifact_store = artifact_store_.get();
  parts_.handles = handles_.get();
  parts_.sessions = sessions_.get();
  parts_.servings = servings_.get();
  parts_.transfers = &transfers_;
  parts_.known_keys = known_keys_.get();
  parts_.SetNode(DescribeNode());
  quick_ = std::make_unique<rpc::Executor>(rpc::Executor::Options{.max_threads = kQuickThreads});
  waiting_ = std::make_unique<rpc::Executor>(rpc::Executor::Options{.max_threads = kWaitingThreads});
  service_ = std::make_unique<StoreDaemonService>(&parts_, quick_.get(), waiting_.get());
  proxy_ = std::make_unique<GlobalStoreProxy>(global_store_channel_, global_store_.get(), known_keys_.get(),
                                              quick_.get(), waiting_.get());
  std::vector<std::string> listen = {absl::StrCat("unix:", options_.unix_socket)};
  if (!options_.listen.empty()) {
    listen.insert(listen.begin(), options_.listen);
  }
  TC_ASSIGN_OR_RETURN(server_, rpc::Server::Start({.listen = std::move(listen),
                                                   .unix_groups = options_.handle_groups,
                                                   .services = {service_.get(), proxy_.get()},
                                                   .max_connections = options_.max_connections}));
  v1::Node node = DescribeNode();
  TC_ASSIGN_OR_RETURN(const std::string advertised, Advertised(options_, server_->addresses().front()));
  node.set_grpc_address(advertised);
  parts_.SetNode(node);
  own_port_ = std::make_unique<OwnPort>(
      node.grpc_address(), kPortCheckInterval,
      [](const std::string& address) { return rpc::CheckHealth(address, kPortCheckTimeout); });
  agent_ = std::make_unique<NodeAgent>(&parts_, own_port_.get());
  link_->Start(agent_.get(), node.grpc_address());
  gauges_ = std::make_unique<NodeGauges>(&parts_);
  housekeeper_ = std::make_unique<Housekeeper>(kChoreInterval, [this] { DoChores(); });
  // Apart from the chores, which must go on when the disk does not answer.
  file_keeper_ = std::make_unique<Housekeeper>(kLostFilesInterval, [this] { engine_->DropLostFiles(); });
  return absl::OkStatus();
}

absl::Status DaemonServerImpl::Start() {
  if (options_.state_dir.empty() || options_.global_store.empty()) {
    return absl::InvalidArgumentError("a daemon needs a state_dir and the address of a global store");
  }
  // Clients of other users pass through the state folder to the sockets in it.
  const mode_t others = options_.handle_groups.empty() ? 0 : 0011;
  TC_RETURN_IF_ERROR(MakePrivateFolder(options_.state_dir, "node_id", others));
  TC_ASSIGN_OR_RETURN(state_, NodeState::Open(options_.state_dir));
  FillDefaults();
  if (options_.host_id.empty()) {
    TC_ASSIGN_OR_RETURN(options_.host_id, ReadBootId());
  }
  TC_RETURN_IF_ERROR(OpenStorage());
  TC_RETURN_IF_ERROR(OpenLanes());
  ConnectToGlobalStore();
  TC_RETURN_IF_ERROR(StartEngine());
  TC_RETURN_IF_ERROR(StartServing());
  state_->KeepRoom();
  LOG(INFO) << "Node " << options_.name << " serves at " << addresses().front() << ", on the host at "
            << options_.unix_socket << " and " << options_.handle_socket;
  return absl::OkStatus();
}

void DaemonServerImpl::DoChores() {
  servings_->Sweep();
  guard_->WithdrawUnused(engine_->ListReplicas());
  known_keys_->Save();
  const absl::Time now = SteadyNow();
  if (now >= next_peer_check_) {
    next_peer_check_ = now + kPeerCheckInterval;
    peer_pools_.Sweep(now, SomebodyListens);
  }
}

void DaemonServerImpl::AwaitTransfers(absl::Time deadline) const {
  // A pull may still be opened by a token that was given before, while the last ingest ends, and the other
  // way round.
  while (engine_->AwaitNoIngests(deadline) && servings_->AwaitNone(deadline)) {
    if (engine_->active_ingests() == 0) return;
  }
}

void DaemonServerImpl::SayThatItDrains() const {
  // A node that was replaced would make its successor drain.
  if (!link_->standing().ok()) {
    return;
  }
  v1::DrainNodeRequest request;
  request.set_node_id(state_->node_id());
  request.set_draining(true);
  const absl::Status told = global_store_->DrainNode(RequestContext::Background(kFarewell), request);
  LOG_IF(WARNING, !told.ok()) << "The global store was not told that this node drains: " << told;
}

void DaemonServerImpl::Shutdown(absl::Time deadline) {
  absl::MutexLock lock(&shutdown_mutex_);
  if (std::exchange(shut_down_, true)) {
    return;
  }
  parts_.stopping = true;
  if (server_ != nullptr) {
    if (SteadyNow() < deadline) {
      SayThatItDrains();
      AwaitTransfers(deadline);
    }
    // What still runs now only watches, or ran out of time.
    server_->Shutdown(SteadyNow() + absl::Milliseconds(100));
  }
  housekeeper_.reset();
  file_keeper_.reset();
  gauges_.reset();
  if (link_ != nullptr) {
    link_->Stop(/*goodbye=*/true);
  }
  if (servings_ != nullptr) {
    servings_->CloseAll();
  }
  if (known_keys_ != nullptr) {
    known_keys_->Save();
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<DaemonServer>> DaemonServer::Start(DaemonOptions options) {
  auto server = std::make_unique<DaemonServerImpl>(std::move(options));
  TC_RETURN_IF_ERROR(server->Start());
  return server;
}

}  // namespace tensorcast::daemon
