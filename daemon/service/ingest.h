// PutArtifact and ImportArtifact: make the first replica of a new artifact, and publish it.
//
// An artifact exists once the global store has its manifest. A failed put drops the replicas that it made,
// except replicas of files beside tensors. Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/artifact/manifest.h"
#include "core/device/device_runtime.h"
#include "core/engine/engine.h"
#include "core/source/object_reader.h"
#include "daemon/global_store_link/global_store_client.h"
#include "daemon/global_store_link/global_store_link.h"
#include "daemon/global_store_link/known_keys.h"
#include "daemon/node/local_node.h"
#include "daemon/service/archiver.h"
#include "daemon/service/difference_maker.h"
#include "daemon/service/import_joins.h"
#include "daemon/service/materialize.h"
#include "daemon/service/model_files.h"
#include "daemon/service/new_replicas.h"
#include "daemon/service/publications.h"
#include "daemon/service/publisher.h"
#include "daemon/service/replicas.h"
#include "daemon/session/sessions.h"
#include "daemon/sources/origin_comparer.h"
#include "daemon/sources/source_finder.h"
#include "objects/credentials/profile.h"
#include "objects/http/read_rates.h"
#include "proto/daemon.pb.h"

namespace tensorcast::daemon {

class Ingester {
 public:
  struct Options {
    const LocalNode* node = nullptr;  // all must outlive the ingester
    StoreEngine* engine = nullptr;
    const DeviceRuntime* devices = nullptr;
    bool disk_tier = false;                          // for durable puts
    Sessions* sessions = nullptr;                    // for memory and files that clients offer
    std::shared_ptr<const ObjectStore> objects;      // what may be imported
    std::shared_ptr<objects::ReadRates> read_rates;  // for reads with a client's credentials; null: no limit
    // The daemon's environment. An import with a client's credentials takes only AWS_CA_BUNDLE from
    // `environment`. Such an import may use a loopback or link-local endpoint only if `environment` names
    // that endpoint.
    objects::Environment environment = objects::ProcessEnvironment();
    ImportJoins* joins = nullptr;                // null: each import reads
    const Materializer* materializer = nullptr;  // takes the artifact of another import
    const SourceFinder* sources = nullptr;       // for the packing
    GlobalStoreClient* global_store = nullptr;
    GlobalStoreLink* link = nullptr;
    KnownKeys* known_keys = nullptr;
    const Archiver* archiver = nullptr;            // null: nothing is archived
    OriginComparer* comparer = nullptr;            // null: imported files never count as a copy
    Publications* publications = nullptr;          // must outlive the engine
    const DifferenceMaker* differences = nullptr;  // null: no difference is made, and none may be requested
  };

  explicit Ingester(const Options& options)
      : options_(options),
        new_replicas_(options.engine, options.publications, options.sources),
        publisher_(options.engine, options.global_store, options.link, options.known_keys) {}

  // `request` is the first message of the stream, with the tensors of all messages added. `offer`: the offer
  // that the request's token names. `asking`: the caller, as in rpc::Caller.
  absl::StatusOr<v1::PutArtifactResult> Put(const RequestContext& context,
                                            const v1::PutArtifactRequest& request, Offer offer,
                                            const std::string& asking, const OnProgress& on_progress) const;

  // Imports offered files, a path, or a URI. PERMISSION_DENIED if a path cannot be opened below the import
  // roots (core/disk/import_roots.h). For a URI, the client may have offered credentials
  // (objects/client_credentials.h). Imports of the same objects are joined (import_joins.h). DATA_LOSS if the
  // bytes do not match the digest that a hub promises.
  absl::StatusOr<v1::PutArtifactResult> Import(const RequestContext& context,
                                               const v1::ImportArtifactRequest& request,
                                               const std::string& asking,
                                               const OnProgress& on_progress) const;

 private:
  struct NewArtifact;
  struct Published;

  absl::Status CheckNew(const v1::KeyBinding& binding, bool has_binding, bool durable) const;
  absl::Status CheckArchive(const std::string& archive, const std::string& beside) const;
  absl::StatusOr<ModelPlaces> PlacesOf(const v1::ImportArtifactRequest& request) const;
  absl::StatusOr<v1::PutArtifactResult> Store(const RequestContext& context, NewArtifact artifact,
                                              const OnProgress& on_progress) const;
  // Takes the artifact that another import of the same objects made.
  absl::StatusOr<v1::PutArtifactResult> TakeMade(const RequestContext& context,
                                                 const std::string& artifact_id, NewArtifact& artifact,
                                                 const OnProgress& on_progress) const;
  absl::Status PlanDifference(const RequestContext& context, const v1::DifferenceRequest& request,
                              NewArtifact& artifact) const;
  // Packs and publishes an artifact with a ready replica.
  absl::StatusOr<v1::PutArtifactResult> Finish(const RequestContext& context, NewArtifact& artifact,
                                               const ReplicaLease& lease, Publications::Hold& hold) const;
  // Archives a published artifact. After a failure, the artifact is still stored.
  absl::Status Archive(const RequestContext& context, const NewArtifact& artifact,
                       const ReplicaLease& lease) const;
  // Makes the planned difference and its replica. The result's lease is null if there can be no difference.
  absl::StatusOr<NewReplica> StoreDifference(const RequestContext& context, NewArtifact& artifact,
                                             const ReplicaLease& target) const;
  absl::StatusOr<Published> PublishWithDifference(const RequestContext& context, NewArtifact& artifact,
                                                  const ReplicaLease& lease) const;
  // UNAVAILABLE if the leased replica is no longer ready.
  absl::StatusOr<v1::Replica> DescribeReady(const ReplicaLease& lease) const;

  const Options options_;
  const NewReplicas new_replicas_;
  const Publisher publisher_;
};

}  // namespace tensorcast::daemon
