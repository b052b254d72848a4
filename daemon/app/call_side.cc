#include "daemon/app/call_side.h"

#include <grpcpp/impl/service_type.h>

#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "base/upkeep.h"
#include "daemon/app/access.h"
#include "daemon/service/global_store_proxy.h"
#include "daemon/service/live_leases_service.h"
#include "daemon/service/possession_service.h"
#include "daemon/service/replicas.h"
#include "daemon/service/store_daemon_service.h"
#include "daemon/service/versions_proxy.h"
#include "proto/differences.grpc.pb.h"
#include "proto/imports.grpc.pb.h"
#include "rpc/call.h"
#include "rpc/convert/convert.h"
#include "rpc/records.h"
#include "security/roles.h"

namespace tensorcast::daemon {
namespace {

// There are two sets of threads, so that calls which wait for transfers cannot take the threads of those that
// answer at once.
constexpr int kQuickThreads = 64;
constexpr int kWaitingThreads = 512;  // started on demand; each waits for a transfer or watches
// An ingest waits for it before it asks for other sources.
constexpr absl::Duration kReportTimeout = absl::Seconds(2);

OriginComparer::Options ComparerOptions(const DaemonOptions& options, const Storage& storage,
                                        GlobalStoreSide& store, const StoreEngine& engine) {
  OriginComparer::Options comparer = options.comparer;
  comparer.objects = storage.imports();
  comparer.find_manifest = [&engine, client = store.client.get()](const std::string& artifact_id) {
    return FindManifest(RequestContext::Background(kManifestTimeout), engine, *client, artifact_id);
  };
  // The comparison runs in this node's own name: it is upkeep, and no caller asked for it.
  comparer.publish = [&store](const Manifest& manifest, const Origin& origin) {
    v1::PublishArtifactRequest first;
    *first.mutable_node() = store.link.identity();
    *first.mutable_origin() = rpc::ToProto(origin);
    return store.client->PublishArtifact(UpkeepContext(kManifestTimeout), manifest, first, /*asking=*/"")
        .status();
  };
  return comparer;
}

// There are no retries: an import asks again by itself, or reads without a claim.
ImportJoins::Claim ClaimBy(GlobalStoreSide& store) {
  return [&store](const RequestContext& context,
                  v1::ClaimImportRequest request) -> absl::StatusOr<v1::ClaimImportResponse> {
    *request.mutable_node() = store.link.identity();
    const SteadyTime began = SteadyNow();
    absl::StatusOr<v1::ClaimImportResponse> response = rpc::CallUnary(
        *store.channel->imports_stub(), &v1::Imports::Stub::ClaimImport, context, request,
        {.retry_for = absl::ZeroDuration(), .what = "claim an import", .fence = &store.client->fence()});
    TC_RETURN_IF_ERROR(store.client->Noted(response.status(), began, Timeout::kMeansSilence));
    return response;
  };
}

// Tried once: a node that meets the difference again reports it again.
WrongDifferences::Report ReportBy(GlobalStoreSide& store) {
  return [&store](const std::string& difference_id) -> absl::Status {
    v1::ReportWrongDifferenceRequest request;
    *request.mutable_node() = store.link.identity();
    request.set_artifact_id(difference_id);
    const SteadyTime began = SteadyNow();
    const absl::Status reported =
        rpc::CallUnary(*store.channel->differences_stub(), &v1::Differences::Stub::ReportWrongDifference,
                       UpkeepContext(kReportTimeout), request,
                       {.retry_for = absl::ZeroDuration(),
                        .what = "report a wrong difference",
                        .fence = &store.client->fence()})
            .status();
    return store.client->Noted(reported, began, Timeout::kMeansSilence);
  };
}

// The lanes that a request may name: the local one and the disk, which every node has, and those that this
// node listens on.
std::vector<std::string> RequestableLanes(const std::vector<transport::Transport*>& transports) {
  std::vector<std::string> lanes = {std::string(kLocalLane), std::string(kDiskLane)};
  for (const transport::Transport* transport : transports) lanes.emplace_back(transport->name());
  return lanes;
}

}  // namespace

// Some parts are given the addresses of members that are made after them (`damaged`, `comparer`,
// `materializer`). That is safe, since only calls use them, and no call is taken before Listen.
CallSide::CallSide(const DaemonOptions& options, LocalNode* node, DeviceRuntime* devices,
                   const Storage& storage, const std::vector<transport::Transport*>& transports,
                   GlobalStoreSide& store, SourceSide& sources, EngineSide& replicas,
                   const BroadcastGroups& groups, const KeptPool* kept)
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
              .conservation = &sources.conservation,
              .groups = &groups,
              .damaged = &damaged,
              .kept = kept,
              .credentials = options.security.credentials.get(),
              .send_limit = options.lane_config.send_limit,
              .receive_limit = options.lane_config.receive_limit,
              .software_version = options.process.version}),
      explainer({.status = &status, .global_store = store.client.get(), .peers = sources.peers.get()}),
      probe({.global_store = store.client.get(), .peers = sources.peers.get()}),
      difference_paths({.engine = replicas.engine.get(),
                        .global_store = store.client.get(),
                        .sources = &sources.finder,
                        .devices = devices,
                        .report_wrong = ReportBy(store)}),
      difference_maker({.engine = replicas.engine.get(),
                        .known_keys = &store.known_keys,
                        .global_store = store.client.get(),
                        .materializer = &materializer,
                        .node_id = node->id(),
                        .default_base = options.difference_base}),
      materializer({.node = node,
                    .engine = replicas.engine.get(),
                    .devices = devices,
                    .sources = &sources.finder,
                    .global_store = store.client.get(),
                    .known_keys = &store.known_keys,
                    .sessions = &*replicas.sessions,
                    .handle_socket = replicas.handles->path(),
                    .servings = &*replicas.servings,
                    .lanes = RequestableLanes(transports),
                    .differences = &difference_paths,
                    .advance_tasks = options.advance}),
      live({.engine = replicas.engine.get(),
            .devices = devices,
            .materializer = &materializer,
            .sessions = &*replicas.sessions,
            .servings = &*replicas.servings,
            .handle_socket = replicas.handles->path()}),
      archiver(
          {.places = options.archives.places,
           .writer = storage.archives(),
           .writable = options.archives.Parse(objects::ProcessEnvironment()).value_or(objects::Origins()),
           .node_id = node->id(),
           .cluster_id = [&store] { return store.link.cluster_id(); },
           .engine = replicas.engine.get(),
           .global_store = store.client.get()}),
      joins(ClaimBy(store)),
      ingester({.node = node,
                .engine = replicas.engine.get(),
                .devices = devices,
                .disk_tier = storage.artifacts() != nullptr,
                .sessions = &*replicas.sessions,
                .objects = storage.imports(),
                .read_rates = storage.read_rates(),
                .joins = &joins,
                .materializer = &materializer,
                .sources = &sources.finder,
                .global_store = store.client.get(),
                .link = &store.link,
                .known_keys = &store.known_keys,
                .archiver = storage.archives() != nullptr ? &archiver : nullptr,
                .comparer = &comparer,
                .publications = &replicas.publications,
                .differences = &difference_maker}),
      origins(storage.imports(), storage.is_immutable()),
      comparer(ComparerOptions(options, storage, store, *replicas.engine)),
      quick({.max_threads = kQuickThreads}),
      waiting({.max_threads = kWaitingThreads}),
      service(MakeStoreDaemonService({.node = node,
                                      .engine = replicas.engine.get(),
                                      .materializer = &materializer,
                                      .ingester = &ingester,
                                      .archiver = &archiver,
                                      .status = &status,
                                      .explainer = &explainer,
                                      .probe = &probe,
                                      .servings = &*replicas.servings,
                                      .sessions = &*replicas.sessions,
                                      .origins = &origins,
                                      .comparer = &comparer,
                                      .link = &store.link,
                                      .quick = &quick,
                                      .waiting = &waiting})),
      possession(MakePossessionService(&*replicas.possession, &quick, &waiting)),
      records(rpc::MakeRecordsService(options.process, &quick)),
      damaged({.engine = replicas.engine.get(),
               .handles = replicas.handles.get(),
               .replace =
                   [this](const RequestContext& context, const v1::DamagedReplica& damaged_replica) {
                     return Replace(context, damaged_replica);
                   }}),
      proxy(MakeGlobalStoreProxy(store.channel, store.client.get(), &store.known_keys, &quick, &waiting)),
      versions(MakeVersionsProxy(store.channel, store.client.get(), &quick, &waiting)),
      live_leases(MakeLiveLeasesService(&live, &quick, &waiting)) {
  // Damage is found where replicas are digested again, and replaced by the parts of this side.
  replicas.possession->SetOnDamage([this](const v1::DamagedReplica& found) { damaged.Note(found); });
}

CallSide::~CallSide() = default;

absl::StatusOr<std::string> CallSide::Replace(const RequestContext& context,
                                              const v1::DamagedReplica& damaged_replica) const {
  v1::MaterializeReplicaRequest request;
  request.set_artifact_id(damaged_replica.artifact_id());
  *request.mutable_location() = damaged_replica.location();
  TC_ASSIGN_OR_RETURN(const v1::MaterializeReplicaResult result,
                      materializer.Materialize(context, request, nullptr));
  return result.replica().replica_id();
}

absl::Status CallSide::Listen(const DaemonOptions& options) {
  // The TCP address comes first: it is the one that this node advertises (DaemonServer::Parts::Start).
  std::vector<std::string> listen = {absl::StrCat("unix:", options.unix_socket)};
  if (!options.listen.empty()) listen.insert(listen.begin(), options.listen);
  TC_ASSIGN_OR_RETURN(
      server, rpc::Server::Start({.listen = std::move(listen),
                                  .services = {service.get(), possession.get(), records.get(), proxy.get(),
                                               versions.get(), live_leases.get()},
                                  .max_connections = options.max_connections,
                                  .credentials = options.security.credentials}));
  // A server of its own: gRPC does not tell a handler by which socket a call came, nor which user owns it.
  TC_ASSIGN_OR_RETURN(clients, rpc::Server::Start({.listen = {absl::StrCat("unix:", options.client_socket)},
                                                   .unix_groups = options.handle_groups,
                                                   .services = {service.get(), records.get(), proxy.get(),
                                                                versions.get(), live_leases.get()},
                                                   .max_connections = options.max_connections,
                                                   .unix_roles = security::Only(security::Role::kClient),
                                                   .operator_socket = options.unix_socket}));
  std::vector<rpc::EndpointAccess> endpoints = EndpointsOf(options, server->addresses());
  for (const rpc::EndpointAccess& endpoint : endpoints) LOG(INFO) << "access: " << endpoint.ToString();
  status.SetEndpoints(std::move(endpoints));
  return absl::OkStatus();
}

}  // namespace tensorcast::daemon
