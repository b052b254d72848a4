#include "daemon/app/daemon_server.h"

#include <unistd.h>

#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/address.h"
#include "base/posix/state_files.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "base/task_loop.h"
#include "base/upkeep.h"
#include "daemon/app/access.h"
#include "daemon/app/hardware.h"
#include "daemon/app/node_agent.h"
#include "daemon/app/node_gauges.h"
#include "daemon/app/storage.h"
#include "daemon/global_store_link/eviction_guard.h"
#include "daemon/global_store_link/global_store_channel.h"
#include "daemon/global_store_link/reachability_probe.h"
#include "daemon/keeper/kept_pool.h"
#include "daemon/node/node_messages.h"
#include "daemon/node/node_state.h"
#include "daemon/service/broadcast_groups.h"
#include "daemon/service/damaged_replicas.h"
#include "daemon/service/global_store_proxy.h"
#include "daemon/service/possession_service.h"
#include "daemon/service/replicas.h"
#include "daemon/service/replication_tasks.h"
#include "daemon/service/store_daemon_service.h"
#include "daemon/serving/possession.h"
#include "daemon/sources/origin_comparer.h"
#include "daemon/sources/origin_files.h"
#include "daemon/telemetry/telemetry.h"
#include "rpc/channel.h"
#include "rpc/convert/convert.h"
#include "rpc/credentials.h"
#include "rpc/executor.h"
#include "rpc/protocol_version.h"
#include "rpc/server.h"

namespace tensorcast::daemon {
namespace {

constexpr absl::Duration kChoreInterval = absl::Seconds(1);
constexpr absl::Duration kPeerCheckInterval = absl::Seconds(10);
constexpr absl::Duration kLostFilesInterval = absl::Seconds(10);
constexpr absl::Duration kPortCheckInterval = absl::Seconds(2);
constexpr absl::Duration kPortCheckTimeout = absl::Seconds(5);
constexpr absl::Duration kManifestTimeout = absl::Seconds(1);
constexpr absl::Duration kFarewell = absl::Seconds(2);  // for the last calls of a shutdown
constexpr int kQuickThreads = 64;
constexpr int kWaitingThreads = 512;  // started on demand; each waits for a transfer or watches

// How the global store's scheduler knows the label.
constexpr char kLinkLabel[] = "link_mbit";

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unnamed";
}

// What others are told to connect to: an address of this host alone where nothing else is listened on.
absl::StatusOr<std::string> Advertised(const DaemonOptions& options, const std::string& bound) {
  if (IsUnixAddress(bound)) return bound;
  TC_ASSIGN_OR_RETURN(const HostPort listening, ParseHostPort(bound));
  HostPort advertised = listening;
  if (!options.advertise.empty()) {
    TC_ASSIGN_OR_RETURN(advertised, ParseHostPort(options.advertise));
    if (advertised.port == 0) advertised.port = listening.port;
  }
  if (IsWildcard(advertised)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "daemon.listen is ", options.listen,
        ", every address of this host, and others need one to connect to: set daemon.advertise"));
  }
  return FormatHostPort(advertised);
}

std::string Absolute(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.string();
}

// What was left empty.
void FillDefaults(DaemonOptions& options) {
  const auto fill = [](std::string& option, const std::string& value) {
    if (option.empty()) option = value;
  };
  if (options.security.credentials != nullptr) {
    fill(options.name, options.security.credentials->identity().self().name.name);
  }
  fill(options.name, HostName());
  fill(options.disk.folder, absl::StrCat(options.state_dir, "/artifacts"));
  // Told to processes with other working folders.
  const DaemonSockets sockets = options.sockets();
  options.unix_socket = Absolute(sockets.operators);
  options.client_socket = Absolute(sockets.clients);
  options.handle_socket = Absolute(sockets.handles);
  fill(options.global_store_label, options.global_store);
}

v1::Node DescribeNode(const DaemonOptions& options, const NodeState& state, const DeviceRuntime& devices,
                      const Transports& transports) {
  v1::Node node;
  node.set_node_id(state.node_id());
  node.set_name(options.name);
  node.set_incarnation(state.incarnation());
  node.set_host_id(options.host_id);
  // Without it no client attaches, and the global store grants no local lane.
  node.set_handle_socket(options.local_lane ? options.handle_socket : "");
  for (const auto& lane : transports) {
    node.add_lanes(std::string(lane->name()));
    if (lane->memory() == transport::LaneMemory::kHostAndDevice) {
      node.add_device_lanes(std::string(lane->name()));
    }
  }
  for (const DeviceInfo& info : devices.devices()) {
    v1::Device* device = node.add_devices();
    device->set_ordinal(info.ordinal);
    device->set_uuid(info.uuid);
    device->set_name(info.name);
    device->set_total_bytes(info.total_bytes);
  }
  Labels labels = options.labels;
  const uint64_t link_mbit = LinkMbit(options);
  if (link_mbit > 0) labels.emplace(kLinkLabel, absl::StrCat(link_mbit));
  // What was set comes first, also where there are as many as there may be.
  if (!CheckLabels(labels).ok()) labels = options.labels;
  node.mutable_labels()->insert(labels.begin(), labels.end());
  node.set_protocol_version(rpc::kProtocolVersion);
  return node;
}

// Shows reports of transfers to the calls that watch, and keeps the last ones.
ReplicaFeed::TransferSink TellOfTransfersTo(TransferLog* log) {
  return [log](const TransferReport& report) {
    log->Add(report);
    RecordTransfer(report);
    LogTransfer(report);
  };
}

// The parts in groups, each made of those above it. In a group, too, members stand in the order of their
// making, so that each outlives what uses it.

// The global store, as this node deals with it.
struct GlobalStoreSide {
  GlobalStoreSide(const DaemonOptions& options, const v1::Node& node, const Storage* storage)
      : channel(std::make_shared<GlobalStoreChannel>(
            options.global_store,
            rpc::ChannelOptions{.credentials = options.security.credentials,
                                .servers = security::Only(security::Role::kGlobalStore)})),
        client(MakeGlobalStoreClient(channel)),
        known_keys(client.get(), absl::StrCat(options.state_dir, "/known_keys")),
        link({.node = node, .client = client.get(), .feed = &feed, .on_replaced = options.on_replaced}),
        guard(client.get(), &link,
              [storage](const ReplicaInfo& replica) { return storage->HasPacked(replica); }) {}

  const std::shared_ptr<GlobalStoreChannel> channel;
  const std::unique_ptr<GlobalStoreClient> client;
  KnownKeys known_keys;
  TransferLog transfers;
  ReplicaFeed feed{TellOfTransfersTo(&transfers)};
  GlobalStoreLink link;
  ClusterEvictionGuard guard;
};

// The ways to other daemons' replicas.
struct SourceSide {
  SourceSide(const DaemonOptions& options, const std::string& node_id, DeviceRuntime* devices,
             const Storage& storage, std::vector<transport::Transport*> transports, GlobalStoreSide& store)
      : peers(MakePeerClient([credentials = options.security.credentials](const PeerAddress& peer) {
          return rpc::MakeChannel(peer.address, {.credentials = credentials,
                                                 .servers = security::Only(security::Role::kNode),
                                                 .server_name = peer.node});
        })),
        attacher(peers.get(), &pools, devices, options.peer_timeout, options.handle_groups),
        opener({.node_id = node_id,
                .transports = std::move(transports),
                .local = &attacher,
                .peers = peers.get(),
                .peer_timeout = options.peer_timeout}),
        finder({.grants = {.global_store = store.client.get(),
                           .link = &store.link,
                           .peers = peers.get(),
                           .opener = &opener,
                           .running = &grants,
                           .background = &background},
                .devices = devices,
                .objects = storage.imports()}) {}

  const std::unique_ptr<PeerClient> peers;
  PeerPools pools;
  RunningGrants grants;
  LocalAttacher attacher;
  const GrantedSourceOpener opener;
  TaskLoop background;  // ends what the opener opens
  const SourceFinder finder;
};

// The files of this node that an artifact was imported from.
absl::StatusOr<Possession::Files> OpenFiles(const StoreEngine& engine, GlobalStoreClient& client,
                                            const ObjectStore& store, const v1::Origin& origin,
                                            const std::string& artifact_id) {
  TC_ASSIGN_OR_RETURN(
      const std::shared_ptr<const Manifest> manifest,
      FindManifest(RequestContext::Background(kManifestTimeout), engine, client, artifact_id));
  TC_ASSIGN_OR_RETURN(std::unique_ptr<ChunkSource> source,
                      OpenOriginSource(RequestContext(), store, rpc::FromProto(origin), *manifest));
  return Possession::Files{.source = std::move(source), .image_bytes = manifest->layout().image_bytes};
}

OriginComparer::Options ComparerOptions(const DaemonOptions& options, const Storage& storage,
                                        GlobalStoreSide& store, const StoreEngine& engine) {
  OriginComparer::Options comparer = options.comparer;
  comparer.objects = storage.imports();
  comparer.find_manifest = [&engine, client = store.client.get()](const std::string& artifact_id) {
    return FindManifest(RequestContext::Background(kManifestTimeout), engine, *client, artifact_id);
  };
  comparer.publish = [&store](const Manifest& manifest, const Origin& origin) {
    v1::PublishArtifactRequest first;
    *first.mutable_node() = store.link.identity();
    *first.mutable_origin() = rpc::ToProto(origin);
    return store.client->PublishArtifact(UpkeepContext(kManifestTimeout), manifest, first, /*asking=*/"")
        .status();
  };
  return comparer;
}

OnHostClaim OnHostClaimOf(KeptPool* kept) {
  if (kept == nullptr) return nullptr;
  return [kept](pid_t pid, UniqueFd process, const Claim& claim) {
    return kept->NoteHolder(pid, std::move(process), claim.handles);
  };
}

// The replicas of this node, and what reads them. The engine must see its last lease end before it goes: the
// servings and the handle server (tickets and connections) end before it.
struct EngineSide {
  static absl::StatusOr<std::unique_ptr<EngineSide>> Start(const DaemonOptions& options,
                                                           const std::string& node_id, DeviceRuntime* devices,
                                                           const Storage& storage,
                                                           std::vector<transport::Transport*> transports,
                                                           GlobalStoreSide& store, KeptPool* kept) {
    auto side = std::make_unique<EngineSide>();
    side->broadcaster = OpenBroadcaster(options, devices);
    ReplicaListener* listener = &store.feed;
    if (kept != nullptr) {
      kept->SetNext(listener);
      listener = kept;
    }
    EngineOptions engine = options.engine;
    engine.node_id = node_id;
    engine.host_pool = &storage.pool();
    engine.devices = devices;
    engine.artifact_store = storage.artifacts();
    engine.eviction_guard = &store.guard;
    engine.listener = listener;
    engine.broadcaster = side->broadcaster.get();
    engine.numa_nodes = storage.numa_nodes();
    engine.distrust_other_hosts = options.security.credentials != nullptr;
    engine.peer_timeout = options.peer_timeout;
    TC_ASSIGN_OR_RETURN(side->engine, StoreEngine::Create(engine));
    if (kept != nullptr) {
      kept->SetEngine(side->engine.get());
      side->engine->Adopt(kept->TakeReplicas(),
                          [kept](const std::string& artifact_id, std::unique_ptr<ReplicaLease> lease) {
                            kept->OnSettled(artifact_id, std::move(lease));
                          });
    }
    HandleServer::Options handles = options.handles;
    handles.path = options.handle_socket;
    handles.allowed_groups = options.handle_groups;
    handles.stall_timeout = options.peer_timeout;
    handles.on_host_claim = OnHostClaimOf(kept);
    handles.max_connections = options.max_connections;
    TC_ASSIGN_OR_RETURN(side->handles, HandleServer::Start(handles));
    side->sessions.emplace(side->handles.get(), &storage.pool(), devices);
    const bool stages = storage.artifacts() != nullptr || !devices->devices().empty();
    TC_ASSIGN_OR_RETURN(
        std::shared_ptr<StagingBuffers> staging,
        StagingBuffers::Create(&storage.pool(), stages ? options.serving_buffers : 0, storage.numa_nodes()));
    side->possession.emplace(
        Possession::Options{.engine = side->engine.get(),
                            .devices = devices,
                            .staging = staging,
                            .open_origin = [engine = side->engine.get(), client = store.client.get(),
                                            objects = storage.imports()](const v1::Origin& origin,
                                                                         const std::string& artifact_id) {
                              return OpenFiles(*engine, *client, *objects, origin, artifact_id);
                            }});
    side->servings.emplace(ServeRegistry::Options{.engine = side->engine.get(),
                                                  .devices = devices,
                                                  .transports = std::move(transports),
                                                  .staging = std::move(staging),
                                                  .grant_key = [&store] { return store.link.grant_key(); },
                                                  .name = options.name,
                                                  .grant_life = options.grant_life,
                                                  .staging_wait = options.peer_timeout});
    return side;
  }

  Publications publications;  // an ingest may go on for a moment after its put
  std::unique_ptr<DeviceBroadcaster> broadcaster;
  std::unique_ptr<StoreEngine> engine;
  std::unique_ptr<HandleServer> handles;
  std::optional<Sessions> sessions;
  std::optional<ServeRegistry> servings;
  std::optional<Possession> possession;
};

// The calls of this node. They take no request before Listen.
struct CallSide {
  CallSide(const DaemonOptions& options, LocalNode* node, DeviceRuntime* devices, const Storage& storage,
           const std::vector<transport::Transport*>& transports, GlobalStoreSide& store, SourceSide& sources,
           EngineSide& replicas, const BroadcastGroups& groups, const KeptPool* kept)
      : status({.node = node,
                .global_store_label = options.global_store_label,
                .link = &store.link,
                .engine = replicas.engine.get(),
                .pool = &storage.pool(),
                .devices = devices,
                .artifact_store = storage.artifacts(),
                .handles = replicas.handles.get(),
                .servings = &*replicas.servings,
                .transfers = &store.transfers,
                .groups = &groups,
                .damaged = &damaged,
                .kept = kept,
                .credentials = options.security.credentials.get(),
                .send_limit = options.lane_config.send_limit,
                .receive_limit = options.lane_config.receive_limit}),
        explainer({.status = &status, .global_store = store.client.get(), .peers = sources.peers.get()}),
        materializer({.node = node,
                      .engine = replicas.engine.get(),
                      .devices = devices,
                      .sources = &sources.finder,
                      .global_store = store.client.get(),
                      .known_keys = &store.known_keys,
                      .sessions = &*replicas.sessions,
                      .handle_socket = replicas.handles->path(),
                      .servings = &*replicas.servings,
                      .lanes = RequestableLanes(transports)}),
        ingester({.node = node,
                  .engine = replicas.engine.get(),
                  .devices = devices,
                  .disk_tier = storage.artifacts() != nullptr,
                  .sessions = &*replicas.sessions,
                  .objects = storage.imports(),
                  .sources = &sources.finder,
                  .global_store = store.client.get(),
                  .link = &store.link,
                  .known_keys = &store.known_keys,
                  .comparer = &comparer,
                  .publications = &replicas.publications}),
        origins(storage.imports()),
        comparer(ComparerOptions(options, storage, store, *replicas.engine)),
        service(MakeStoreDaemonService({.node = node,
                                        .engine = replicas.engine.get(),
                                        .materializer = &materializer,
                                        .ingester = &ingester,
                                        .status = &status,
                                        .explainer = &explainer,
                                        .servings = &*replicas.servings,
                                        .sessions = &*replicas.sessions,
                                        .origins = &origins,
                                        .comparer = &comparer,
                                        .link = &store.link,
                                        .quick = &quick,
                                        .waiting = &waiting})),
        possession(MakePossessionService(&*replicas.possession, &quick, &waiting)),
        damaged(
            {.engine = replicas.engine.get(),
             .handles = replicas.handles.get(),
             .pool = &storage.pool(),
             .devices = devices,
             .replace = [this, devices](
                            const RequestContext& context, const std::string& artifact_id,
                            Location location) { return Bring(context, artifact_id, location, devices); }}),
        proxy(MakeGlobalStoreProxy(store.channel, store.client.get(), &store.known_keys, &quick, &waiting)) {
    replicas.possession->SetOnDamage([this](const Possession::Damage& damage) { damaged.Note(damage); });
  }

  static std::vector<std::string> RequestableLanes(const std::vector<transport::Transport*>& transports) {
    std::vector<std::string> lanes = {std::string(kLocalLane), std::string(kDiskLane)};
    for (const transport::Transport* transport : transports) lanes.emplace_back(transport->name());
    return lanes;
  }

  absl::StatusOr<std::string> Bring(const RequestContext& context, const std::string& artifact_id,
                                    const Location& location, DeviceRuntime* devices) const {
    v1::MaterializeReplicaRequest request;
    request.set_artifact_id(artifact_id);
    *request.mutable_location() = ToProto(location, devices);
    TC_ASSIGN_OR_RETURN(const v1::MaterializeReplicaResult result,
                        materializer.Materialize(context, request, nullptr));
    return result.replica().replica_id();
  }

  absl::Status Listen(const DaemonOptions& options) {
    std::vector<std::string> listen = {absl::StrCat("unix:", options.unix_socket)};
    if (!options.listen.empty()) listen.insert(listen.begin(), options.listen);
    TC_ASSIGN_OR_RETURN(server,
                        rpc::Server::Start({.listen = std::move(listen),
                                            .services = {service.get(), possession.get(), proxy.get()},
                                            .max_connections = options.max_connections,
                                            .credentials = options.security.credentials}));
    // A server of its own: gRPC does not tell a handler by which socket a call came, nor which user owns it.
    TC_ASSIGN_OR_RETURN(clients, rpc::Server::Start({.listen = {absl::StrCat("unix:", options.client_socket)},
                                                     .unix_groups = options.handle_groups,
                                                     .services = {service.get(), proxy.get()},
                                                     .max_connections = options.max_connections,
                                                     .unix_roles = security::Only(security::Role::kClient),
                                                     .operator_socket = options.unix_socket}));
    std::vector<rpc::EndpointAccess> endpoints = EndpointsOf(options, server->addresses());
    for (const rpc::EndpointAccess& endpoint : endpoints) LOG(INFO) << "access: " << endpoint.ToString();
    status.SetEndpoints(std::move(endpoints));
    return absl::OkStatus();
  }

  StatusReporter status;
  TransferExplainer explainer;
  const Materializer materializer;
  const Ingester ingester;
  OriginChecker origins;
  OriginComparer comparer;
  rpc::Executor quick{rpc::Executor::Options{.max_threads = kQuickThreads}};
  rpc::Executor waiting{rpc::Executor::Options{.max_threads = kWaitingThreads}};
  const std::unique_ptr<grpc::Service> service;
  const std::unique_ptr<grpc::Service> possession;
  DamagedReplicas damaged;
  const std::unique_ptr<grpc::Service> proxy;
  std::unique_ptr<rpc::Server> server;
  std::unique_ptr<rpc::Server> clients;  // of callers with the rights of a client
};

}  // namespace

// Each group is there once the start came so far; a start that fails destroys what there is.
struct DaemonServer::Parts {
  explicit Parts(DaemonOptions daemon_options) : options(std::move(daemon_options)) {}

  absl::Status Start();
  absl::Status OpenNode();
  void OpenKeeper();
  void StartUpkeep(const std::string& grpc_address);
  void DoChores();
  void AwaitTransfers(SteadyTime deadline) const;
  void TellStoreOfDrain() const;
  void Shutdown(SteadyTime deadline);

  DaemonOptions options;
  std::unique_ptr<NodeState> state;
  std::unique_ptr<DeviceRuntime> own_devices;  // null: those of the options
  DeviceRuntime* devices = nullptr;
  std::unique_ptr<KeptPool> kept;  // null: nothing keeps the pool
  std::unique_ptr<Storage> storage;
  Transports transports;
  std::optional<LocalNode> node;
  std::unique_ptr<GlobalStoreSide> store;
  std::unique_ptr<SourceSide> sources;
  std::unique_ptr<EngineSide> replicas;
  std::unique_ptr<BroadcastGroups> groups;
  std::unique_ptr<CallSide> calls;
  std::unique_ptr<ReachabilityProbe> reachability_probe;
  std::unique_ptr<ReplicationTasks> tasks;
  std::unique_ptr<NodeAgent> agent;  // used by the link until it is stopped
  std::unique_ptr<NodeGauges> gauges;
  std::unique_ptr<TaskLoop> chores;
  std::unique_ptr<TaskLoop> lost_files;
  SteadyTime next_peer_check = SteadyTime::InfinitePast();  // of the chores
};

// The identity of this node, and what it has of its own.
absl::Status DaemonServer::Parts::OpenNode() {
  if (options.state_dir.empty() || options.global_store.empty()) {
    return absl::InvalidArgumentError("a daemon needs a state_dir and the address of a global store");
  }
  // Clients of other users pass through the state folder to the sockets in it.
  const mode_t others = options.handle_groups.empty() ? 0 : 0011;
  TC_RETURN_IF_ERROR(MakePrivateFolder(options.state_dir, "node_id", others));
  TC_ASSIGN_OR_RETURN(state, NodeState::Open(options.state_dir));
  FillDefaults(options);
  if (options.host_id.empty()) {
    TC_ASSIGN_OR_RETURN(options.host_id, ReadBootId());
  }
  devices = options.devices;
  if (devices == nullptr) {
    TC_ASSIGN_OR_RETURN(own_devices, OpenDevices(options.gpus));
    devices = own_devices.get();
  }
  if (options.keeper.on()) OpenKeeper();
  TC_ASSIGN_OR_RETURN(storage, Storage::Open(options, devices, kept.get()));
  TC_ASSIGN_OR_RETURN(transports, OpenLanes(options, devices, storage->pool()));
  node.emplace(DescribeNode(options, *state, *devices, transports));
  return absl::OkStatus();
}

// Without one this daemon serves like any other, and comes back with nothing.
void DaemonServer::Parts::OpenKeeper() {
  const std::string socket = absl::StrCat(options.state_dir, "/keeper.sock");
  absl::StatusOr<std::unique_ptr<KeptPool>> opened = KeptPool::Open(socket, options.keeper.Command(socket));
  if (opened.ok()) kept = *std::move(opened);
  LOG_IF(ERROR, !opened.ok()) << "Nothing keeps the host pool when this daemon ends: " << opened.status();
}

absl::Status DaemonServer::Parts::Start() {
  TC_RETURN_IF_ERROR(OpenNode());
  std::vector<transport::Transport*> lanes;
  for (const auto& transport : transports) lanes.push_back(transport.get());
  store = std::make_unique<GlobalStoreSide>(options, node->Describe(), storage.get());
  sources = std::make_unique<SourceSide>(options, node->id(), devices, *storage, lanes, *store);
  TC_ASSIGN_OR_RETURN(replicas,
                      EngineSide::Start(options, node->id(), devices, *storage, lanes, *store, kept.get()));
  groups = std::make_unique<BroadcastGroups>(
      BroadcastGroups::Options{.node_name = options.name,
                               .global_store = store->client.get(),
                               .link = &store->link,
                               .engine = replicas->engine.get(),
                               .broadcaster = replicas->broadcaster.get(),
                               .trusted_fabric = options.lane_config.trusted_fabric});
  calls = std::make_unique<CallSide>(options, &*node, devices, *storage, lanes, *store, *sources, *replicas,
                                     *groups, kept.get());
  TC_RETURN_IF_ERROR(calls->Listen(options));
  const std::vector<std::string>& addresses = calls->server->addresses();
  TC_ASSIGN_OR_RETURN(const std::string advertised, Advertised(options, addresses.front()));
  StartUpkeep(advertised);
  state->KeepRoom();
  LOG(INFO) << "Node " << options.name << " serves at " << addresses.front() << ", on the host at "
            << options.unix_socket << ", " << options.client_socket << " and " << options.handle_socket;
  return absl::OkStatus();
}

// What goes on by itself while the node serves.
void DaemonServer::Parts::StartUpkeep(const std::string& grpc_address) {
  node->SetAddress(grpc_address);
  reachability_probe = std::make_unique<ReachabilityProbe>(
      grpc_address, kPortCheckInterval, [this](const std::string& address) {
        return rpc::CheckHealth(address, kPortCheckTimeout, options.security.credentials);
      });
  tasks = std::make_unique<ReplicationTasks>(
      [this](const RequestContext& context, const v1::ReplicationTask& task, const OnProgress& on_progress) {
        v1::MaterializeReplicaRequest request;
        request.set_artifact_id(task.artifact_id());
        *request.mutable_location() = task.location();
        return calls->materializer.Materialize(context, request, on_progress).status();
      },
      [this] { store->link.HeartbeatSoon(); });
  agent = std::make_unique<NodeAgent>(NodeAgent::Options{.engine = replicas->engine.get(),
                                                         .servings = &*replicas->servings,
                                                         .grants = &sources->grants,
                                                         .publications = &replicas->publications,
                                                         .tasks = tasks.get(),
                                                         .groups = groups.get(),
                                                         .status = &calls->status,
                                                         .port = reachability_probe.get()});
  store->link.Start(agent.get(), grpc_address);
  gauges = std::make_unique<NodeGauges>(NodeGauges::Options{.engine = replicas->engine.get(),
                                                            .pool = &storage->pool(),
                                                            .devices = devices,
                                                            .artifact_store = storage->artifacts(),
                                                            .handles = replicas->handles.get(),
                                                            .servings = &*replicas->servings});
  chores = TaskLoop::Every(kChoreInterval, [this] { DoChores(); });
  // Apart from the chores, which must go on when the disk does not answer.
  lost_files = TaskLoop::Every(kLostFilesInterval, [this] { replicas->engine->DropLostFiles(); });
}

void DaemonServer::Parts::DoChores() {
  replicas->servings->Sweep();
  replicas->engine->WithdrawUnhealthy();
  store->guard.WithdrawUnused(replicas->engine->ListReplicas());
  store->known_keys.Save();
  if (kept != nullptr) kept->Mend();
  const SteadyTime now = SteadyNow();
  if (now >= next_peer_check) {
    next_peer_check = now + kPeerCheckInterval;
    sources->pools.Sweep(now, HasListener);
  }
}

void DaemonServer::Parts::AwaitTransfers(SteadyTime deadline) const {
  // A pull may still be opened by a token that was given before, while the last ingest ends, and the other
  // way round.
  while (replicas->engine->AwaitNoIngests(deadline) && replicas->servings->AwaitNone(deadline)) {
    if (replicas->engine->active_ingests() == 0) return;
  }
}

void DaemonServer::Parts::TellStoreOfDrain() const {
  // A node that was replaced would make its successor drain.
  if (!store->link.standing().ok()) return;
  v1::DrainNodeRequest request;
  request.set_node_id(node->id());
  request.set_draining(true);
  const absl::Status told = store->client->DrainNode(RequestContext::Background(kFarewell), request);
  LOG_IF(WARNING, !told.ok()) << "The global store was not told that this node drains: " << told;
}

void DaemonServer::Parts::Shutdown(SteadyTime deadline) {
  if (node.has_value()) node->Drain();
  if (tasks != nullptr) tasks->Drain();
  if (calls != nullptr && calls->server != nullptr) {
    if (SteadyNow() < deadline) {
      TellStoreOfDrain();
      AwaitTransfers(deadline);
    }
    if (tasks != nullptr) tasks->Stop();
    // What still runs now only watches, or ran out of time.
    const SteadyTime end = SteadyNow() + absl::Milliseconds(100);
    calls->server->Shutdown(end);
    if (calls->clients != nullptr) calls->clients->Shutdown(end);
  }
  chores.reset();
  lost_files.reset();
  gauges.reset();
  if (store != nullptr) store->link.Stop(/*goodbye=*/true);
  if (kept != nullptr) kept->Stop();
  if (replicas != nullptr) replicas->servings->CloseAll();
  if (store != nullptr) store->known_keys.Save();
}

absl::StatusOr<std::unique_ptr<DaemonServer>> DaemonServer::Start(DaemonOptions options) {
  std::unique_ptr<DaemonServer> server(new DaemonServer(std::make_unique<Parts>(std::move(options))));
  TC_RETURN_IF_ERROR(server->parts_->Start());
  return server;
}

DaemonServer::DaemonServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
DaemonServer::~DaemonServer() { Shutdown(SteadyNow()); }

const std::vector<std::string>& DaemonServer::addresses() const { return parts_->calls->server->addresses(); }
const std::string& DaemonServer::client_socket() const { return parts_->options.client_socket; }
const std::string& DaemonServer::handle_socket() const { return parts_->replicas->handles->path(); }
const std::string& DaemonServer::node_id() const { return parts_->node->id(); }
StoreEngine& DaemonServer::engine() { return *parts_->replicas->engine; }
HostPool& DaemonServer::host_pool() { return parts_->storage->pool(); }

absl::Status DaemonServer::WaitRegistered(SteadyTime deadline) {
  return parts_->store->link.WaitRegistered(deadline);
}

void DaemonServer::Shutdown(SteadyTime deadline) {
  absl::MutexLock lock(&shutdown_mutex_);
  if (!std::exchange(shut_down_, true)) parts_->Shutdown(deadline);
}

}  // namespace tensorcast::daemon
