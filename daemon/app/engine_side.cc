#include "daemon/app/engine_side.h"

#include <sys/types.h>

#include <utility>

#include "base/posix/unique_fd.h"
#include "base/request_context.h"
#include "base/status.h"
#include "daemon/app/hardware.h"
#include "daemon/service/replicas.h"
#include "daemon/sources/origin_files.h"
#include "rpc/convert/convert.h"

namespace tensorcast::daemon {
namespace {

// Opens the files of this node that an artifact was imported from.
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

OnHostClaim OnHostClaimOf(KeptPool* kept) {
  if (kept == nullptr) return nullptr;
  return [kept](pid_t pid, UniqueFd process, const Claim& claim) {
    return kept->NoteHolder(pid, std::move(process), claim.handles);
  };
}

}  // namespace

absl::StatusOr<std::unique_ptr<EngineSide>> EngineSide::Start(const DaemonOptions& options,
                                                              const std::string& node_id,
                                                              DeviceRuntime* devices, const Storage& storage,
                                                              std::vector<transport::Transport*> transports,
                                                              GlobalStoreSide& store, KeptPool* kept) {
  auto side = std::make_unique<EngineSide>();
  side->broadcaster = OpenBroadcaster(options, devices);
  // The engine's news go through the keeper's record first, and from there to the global store's link.
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
  // The kept replicas come back before any client can come: the node is never seen without them.
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
  // Host memory is served where it is. Only packed files and replicas on GPUs need buffers to be served from.
  const bool stages = storage.artifacts() != nullptr || !devices->devices().empty();
  TC_ASSIGN_OR_RETURN(
      std::shared_ptr<StagingBuffers> staging,
      StagingBuffers::Create(&storage.pool(), stages ? options.serving_buffers : 0, storage.numa_nodes()));
  side->possession.emplace(Possession::Options{
      .engine = side->engine.get(),
      .pool = &storage.pool(),
      .devices = devices,
      .staging = staging,
      .open_origin = [engine = side->engine.get(), client = store.client.get(), objects = storage.imports()](
                         const v1::Origin& origin, const std::string& artifact_id) {
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

}  // namespace tensorcast::daemon
