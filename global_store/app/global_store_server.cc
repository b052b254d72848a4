#include "global_store/app/global_store_server.h"

#include <grpcpp/impl/service_type.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/address.h"
#include "base/posix/host_checks.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "base/task_loop.h"
#include "base/units.h"
#include "global_store/coordinator/coordinator.h"
#include "global_store/metadata/etcd/store.h"
#include "global_store/metadata/metadata_store.h"
#include "global_store/service/differences_service.h"
#include "global_store/service/gauges.h"
#include "global_store/service/global_store_service.h"
#include "global_store/service/group_rounds.h"
#include "global_store/service/imports_service.h"
#include "global_store/service/versions_service.h"
#include "rpc/admission_queue.h"
#include "rpc/endpoint_access.h"
#include "rpc/executor.h"
#include "rpc/server.h"

namespace tensorcast::global_store {
namespace {

void CheckMetadata(const GlobalStoreOptions& options, Findings& findings) {
  constexpr std::string_view kKey = "global_store.metadata_path";
  const std::string& path = options.metadata_path;
  if (options.metadata_store == "etcd") options.etcd.Validate(findings);
  if (options.metadata_store != "sqlite") return;
  if (path.empty()) {
    return findings.Add(kKey, "the sqlite metadata store needs a file; set the path of the file");
  }
  if (path == ":memory:" || path.starts_with("file:")) {
    return findings.Add(kKey,
                        absl::StrCat("\"", path,
                                     "\" is not the path of a file; to keep the metadata only in memory, set "
                                     "global_store.metadata_store: memory"));
  }
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return findings.Add(kKey, absl::StrCat("\"", path, "\" is a folder; name a file in it"));
  }
  const std::filesystem::path file = path;
  if (const std::string folder = file.parent_path().string(); !folder.empty()) {
    CheckPrivatePlace(kKey, folder, file.filename().string(), findings);
  }
}

// The check of every call before its handler: only a leader answers, and only for as long as no other store
// can lead.
std::function<absl::Status()> AdmissionOf(const etcd::Leadership* leadership) {
  if (leadership == nullptr) return nullptr;
  return [leadership] { return leadership->Check(); };
}

std::function<void(const RequestContext&, v1::GetClusterStatusResponse&)> DescriptionBy(
    const EtcdGroup* group) {
  if (group == nullptr) return nullptr;
  return [group](const RequestContext& context, v1::GetClusterStatusResponse& response) {
    group->Describe(context, response);
  };
}

// The store hears its nodes in time while calls wait in its queue for less than this part of a node's time to
// live (1 / kPunctual).
constexpr int kPunctual = 20;
// A store that has more of its connections yet to read is behind by a good part of a heartbeat interval,
// whatever waits in its own queue.
constexpr double kUnreadShare = 0.25;

absl::Duration TickInterval(const GlobalStoreOptions& options) {
  // Often enough to notice silence well within a node's time to live.
  return std::clamp(options.heartbeat_interval / 2, absl::Milliseconds(10), absl::Seconds(1));
}

}  // namespace

void GlobalStoreOptions::ReadRetention(ConfigReader& config) {
  int keep = static_cast<int>(retention.keep);
  config.Read("global_store.keep_versions", keep);
  std::vector<std::string> by_prefix;
  config.Read("global_store.keep_versions_by_prefix", by_prefix);
  absl::StatusOr<Retention> parsed = Retention::Parse(static_cast<uint64_t>(keep), by_prefix);
  config.findings().Add("global_store.keep_versions_by_prefix", parsed.status());
  int difference_versions = static_cast<int>(retention.difference_versions);
  config.Read("global_store.difference_versions", difference_versions);
  if (parsed.ok()) retention = *std::move(parsed);
  retention.difference_versions = static_cast<uint32_t>(difference_versions);
}

void GlobalStoreOptions::ValidateTimes(Findings& findings) const {
  if (heartbeat_interval <= absl::ZeroDuration()) {
    findings.Add("global_store.heartbeat_interval",
                 absl::StrCat("\"", DurationText(heartbeat_interval),
                              "\" is not longer than 0; set a longer interval"));
  }
  const absl::Duration shortest = 2 * heartbeat_interval;
  for (const auto& [key, life] :
       {std::pair{"global_store.node_ttl", node_ttl}, std::pair{"global_store.grant_ttl", grant_ttl}}) {
    if (life >= shortest) continue;
    findings.Add(key, absl::StrCat("\"", DurationText(life), "\" is less than two heartbeats (",
                                   absl::FormatDuration(shortest),
                                   "), and one heartbeat may be lost; set a longer time, or a shorter "
                                   "global_store.heartbeat_interval"));
  }
}

void GlobalStoreOptions::Validate(Findings& findings) const {
  std::vector<rpc::ListenEndpoint> endpoints;
  if (IsUnixAddress(listen)) {
    CheckSocketPlace("global_store.listen", SocketPath(listen), findings);
  } else {
    CheckListen("global_store.listen", listen, findings);
    endpoints.push_back({"global_store.listen", listen});
  }
  CheckMetadata(*this, findings);
  ValidateTimes(findings);
  security.Validate(endpoints, findings);
}

// In the order of construction; ends in the reverse.
struct GlobalStoreServer::State {
  absl::Status Open(const GlobalStoreOptions& options);

  RandomSecrets secrets;
  std::unique_ptr<EtcdGroup> group;  // on etcd alone
  std::unique_ptr<MetadataStore> store;
  std::unique_ptr<Coordinator> coordinator;
  std::unique_ptr<rpc::AdmissionQueue> admission;
  std::unique_ptr<grpc::Service> service;
  std::unique_ptr<grpc::Service> imports;
  std::unique_ptr<grpc::Service> differences;
  std::shared_ptr<GroupRounds> rounds;
  std::unique_ptr<grpc::Service> versions;
  std::unique_ptr<grpc::Service> records;
  std::unique_ptr<rpc::Executor> executor;  // ends before what its tasks use
  std::unique_ptr<rpc::Server> server;
  std::unique_ptr<TaskLoop> expiry;
  std::vector<otel::GaugeRegistration> gauges;
};

absl::Status GlobalStoreServer::State::Open(const GlobalStoreOptions& options) {
  if (options.metadata_store != "etcd") {
    TC_ASSIGN_OR_RETURN(store, OpenMetadataStore(options.metadata_store, options.metadata_path));
    return absl::OkStatus();
  }
  // Blocks until this process leads. Before, there is nothing to load and the server must not listen.
  TC_ASSIGN_OR_RETURN(group, EtcdGroup::JoinAndLead(options.etcd));
  store = etcd::MakeStore(group->client(), group->leadership(), options.etcd.leadership.prefix);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<GlobalStoreServer>> GlobalStoreServer::Start(
    const GlobalStoreOptions& options) {
  Findings findings;
  options.ValidateTimes(findings);
  TC_RETURN_IF_ERROR(findings.ToStatus());
  auto state = std::make_unique<State>();
  TC_RETURN_IF_ERROR(state->Open(options));
  state->store = MakeObservedStore(std::move(state->store));
  EtcdGroup* const group = state->group.get();
  const etcd::Leadership* const leadership = group != nullptr ? group->leadership() : nullptr;
  // On etcd the epoch is the leader's, and grows with each leader. Elsewhere the number is 0, and the
  // coordinator draws a random one.
  const rpc::Epoch epoch = leadership != nullptr ? leadership->epoch() : rpc::Epoch();
  CoordinatorOptions coordinator;
  coordinator.directory.membership = {.heartbeat_interval = options.heartbeat_interval,
                                      .node_ttl = options.node_ttl,
                                      .awaits_nodes = options.awaits_nodes};
  coordinator.directory.transfers.grant_ttl = options.grant_ttl;
  coordinator.directory.transfers.filling_lanes = options.filling_lanes;
  coordinator.directory.retention = options.retention;
  coordinator.clock = options.clock;
  coordinator.wall_clock = options.wall_clock;
  coordinator.epoch = epoch.number;
  coordinator.directory.tasks.groups.min_bytes = options.broadcast_min_bytes;
  TC_ASSIGN_OR_RETURN(state->coordinator,
                      Coordinator::Create(coordinator, state->store.get(), &state->secrets));
  // The admission queue decides which calls wait; the executor must never refuse what the queue let in.
  const rpc::AdmissionQueue::Options waiting = {.max_waiting = options.max_waiting_calls};
  state->executor = std::make_unique<rpc::Executor>(
      rpc::Executor::Options{.max_queued = rpc::AdmissionQueue::RoomFor(waiting)});
  state->admission = std::make_unique<rpc::AdmissionQueue>(state->executor.get(), waiting);
  state->service = MakeGlobalStoreService(state->coordinator.get(), state->admission.get(),
                                          {.own_host_only = IsUnixAddress(options.listen),
                                           .credentials = options.security.credentials,
                                           .key_rules = options.security.key_rules,
                                           .describe_stores = DescriptionBy(group)});
  state->imports = MakeImportsService(state->coordinator.get(), state->admission.get());
  state->differences = MakeDifferencesService(state->coordinator.get(), state->admission.get());
  state->rounds = GroupRounds::Create(state->coordinator.get());
  state->versions = MakeVersionsService(state->coordinator.get(), state->rounds, state->admission.get());
  state->records =
      rpc::MakeRecordsService(options.process, &state->admission->line(rpc::AdmissionQueue::Class::kCall));
  TC_ASSIGN_OR_RETURN(
      state->server,
      rpc::Server::Start({.listen = {options.listen},
                          .services = {state->service.get(), state->imports.get(), state->differences.get(),
                                       state->versions.get(), state->records.get()},
                          .max_connections = options.max_connections,
                          .credentials = options.security.credentials,
                          .admit = AdmissionOf(leadership),
                          .epoch = epoch}));
  // This is the only thread that expires nodes and settles tasks. It ends before the server does (State), so
  // no tick meets a server that is gone.
  // Nodes are silent only where the store would have heard them. While heartbeats may lie in the queue, or
  // unread in a connection, the coordinator drops no node.
  state->expiry =
      TaskLoop::Every(TickInterval(options), [state = state.get(), late = options.node_ttl / kPunctual] {
        const bool queued = state->admission->TakeLag() > late;
        state->coordinator->Tick(/*behind=*/queued || state->server->UnreadShare() > kUnreadShare);
        state->rounds->Tick();
      });
  state->gauges = ObserveCoordinator(state->coordinator.get());
  LOG(INFO) << "global store listens on " << state->server->addresses()[0];
  LOG(INFO) << "access: "
            << rpc::AccessOf(state->server->addresses()[0], {}, security::kEveryRole,
                             options.security.credentials.get())
                   .ToString();
  // The call comes last: where the lease has ended meanwhile, it calls `on_lost` at once.
  if (leadership != nullptr && options.etcd.on_lost != nullptr) {
    group->leadership()->OnLost(options.etcd.on_lost);
  }
  return std::unique_ptr<GlobalStoreServer>(new GlobalStoreServer(std::move(state)));
}

GlobalStoreServer::GlobalStoreServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

GlobalStoreServer::~GlobalStoreServer() { Shutdown(absl::ZeroDuration()); }

const std::string& GlobalStoreServer::address() const { return state_->server->addresses()[0]; }

void GlobalStoreServer::Shutdown(absl::Duration grace) {
  // The calls of version groups end with them: GroupRounds watches all keys.
  // First: watches end by nothing else, and would hold the server for the whole grace.
  state_->coordinator->CloseWatches(
      absl::UnavailableError("call the global store: the global store is shutting down; call again"));
  state_->server->Shutdown(SteadyNow() + grace);
}

}  // namespace tensorcast::global_store
