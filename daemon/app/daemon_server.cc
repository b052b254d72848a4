#include "daemon/app/daemon_server.h"

#include <sys/types.h>

#include <optional>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/posix/state_files.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "base/task_loop.h"
#include "daemon/app/call_side.h"
#include "daemon/app/cluster_side.h"
#include "daemon/app/engine_side.h"
#include "daemon/app/hardware.h"
#include "daemon/app/node_agent.h"
#include "daemon/app/node_description.h"
#include "daemon/app/node_gauges.h"
#include "daemon/app/storage.h"
#include "daemon/global_store_link/reachability_probe.h"
#include "daemon/keeper/kept_pool.h"
#include "daemon/node/local_node.h"
#include "daemon/node/node_state.h"
#include "daemon/service/broadcast_groups.h"
#include "daemon/service/replication_tasks.h"
#include "rpc/channel.h"

namespace tensorcast::daemon {
namespace {

constexpr absl::Duration kChoreInterval = absl::Seconds(1);
constexpr absl::Duration kPeerCheckInterval = absl::Seconds(10);
// Lost packed files are looked for at this interval, since each look reads the disk.
constexpr absl::Duration kLostFilesInterval = absl::Seconds(10);
constexpr absl::Duration kPortCheckInterval = absl::Seconds(2);
constexpr absl::Duration kPortCheckTimeout = absl::Seconds(5);
constexpr absl::Duration kFarewell = absl::Seconds(2);  // for the last calls of a shutdown

}  // namespace

// The groups of parts, each made of those above it, so that each outlives what uses it. Each group is there
// once the start came so far; a start that fails destroys what there is.
struct DaemonServer::Parts {
  explicit Parts(DaemonOptions daemon_options) : options(std::move(daemon_options)) {}

  absl::Status Start();
  absl::Status OpenNode();
  void OpenKeeper();
  absl::Status StartUpkeep(const std::string& grpc_address);
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
    return absl::InvalidArgumentError(
        "start a daemon: state_dir or the address of the global store is missing; set daemon.state_dir and "
        "daemon.global_store");
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
  LOG_IF(ERROR, !opened.ok()) << "start the keeper of the host pool: " << opened.status()
                              << "; the pool is lost when this daemon ends";
}

absl::Status DaemonServer::Parts::Start() {
  // Parts come in the order in which they use each other. The sockets listen once all of them are there. The
  // node registers at the very end (StartUpkeep), since from then on the global store may name it to others.
  TC_RETURN_IF_ERROR(OpenNode());
  std::vector<transport::Transport*> lanes;
  for (const auto& transport : transports) lanes.push_back(transport.get());
  store = std::make_unique<GlobalStoreSide>(options, node->Describe(), storage.get());
  sources = std::make_unique<SourceSide>(options, node->id(), devices, *storage, lanes, *store);
  TC_ASSIGN_OR_RETURN(replicas,
                      EngineSide::Start(options, node->id(), devices, *storage, lanes, *store, kept.get()));
  // Transfers, and their sources with them, end before the engine does.
  sources->find_share = [engine = replicas->engine.get()](std::string_view grant_id) {
    return FindShare(engine->RunningTransfers(), grant_id);
  };
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
  // The port is known only now, where daemon.listen leaves the choice to the system.
  TC_ASSIGN_OR_RETURN(const std::string advertised, Advertised(options, addresses.front()));
  TC_RETURN_IF_ERROR(StartUpkeep(advertised));
  state->KeepRoom();
  LOG(INFO) << "Node " << options.name << " serves at " << addresses.front() << ", on the host at "
            << options.unix_socket << ", " << options.client_socket << " and " << options.handle_socket;
  return absl::OkStatus();
}

// What goes on by itself while the node serves.
absl::Status DaemonServer::Parts::StartUpkeep(const std::string& grpc_address) {
  node->SetAddress(grpc_address);
  reachability_probe = std::make_unique<ReachabilityProbe>(
      grpc_address, kPortCheckInterval, [this](const std::string& address) {
        return rpc::CheckHealth(address, kPortCheckTimeout, options.security.credentials);
      });
  tasks = std::make_unique<ReplicationTasks>(
      [this](const RequestContext& context, const v1::ReplicationTask& task, const OnProgress& on_progress) {
        return calls->materializer.Fulfil(context, task, on_progress);
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
  // Other nodes see the registration last: with it come pulls and tasks.
  TC_RETURN_IF_ERROR(store->link.Start(agent.get(), grpc_address));
  gauges = std::make_unique<NodeGauges>(NodeGauges::Options{.engine = replicas->engine.get(),
                                                            .pool = &storage->pool(),
                                                            .devices = devices,
                                                            .artifact_store = storage->artifacts(),
                                                            .handles = replicas->handles.get(),
                                                            .servings = &*replicas->servings});
  chores = TaskLoop::Every(kChoreInterval, [this] { DoChores(); });
  // Apart from the chores, which must go on when the disk does not answer.
  lost_files = TaskLoop::Every(kLostFilesInterval, [this] { replicas->engine->DropLostFiles(); });
  return absl::OkStatus();
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
  // Since Drain no call is let in that begins either (LocalNode::CheckAccepting). One that was let in before
  // may open its pull while the last ingest ends, or begin its ingest while the last pull does.
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
  LOG_IF(WARNING, !told.ok()) << "tell the global store that this node drains: " << told
                              << "; this daemon stops all the same";
}

void DaemonServer::Parts::Shutdown(SteadyTime deadline) {
  // Nothing new begins, neither by calls nor by tasks. Transfers that run may end in the time that is left.
  if (node.has_value()) node->Drain();
  if (tasks != nullptr) tasks->Drain();
  if (calls != nullptr && calls->server != nullptr) {
    calls->live.Stop();  // what waits for its holders would be waited for
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
  // The link stops after the servers: the goodbye says that this node holds nothing, so no call may make a
  // replica after it.
  if (store != nullptr) store->link.Stop(/*goodbye=*/true);
  // The keeper is told nothing from here on, so the next daemon finds what is kept now.
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
