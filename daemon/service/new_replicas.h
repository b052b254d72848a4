// Replicas of artifacts that are not published yet. If a put fails, the replicas that it made are dropped
// when its Hold (publications.h) is destroyed.
//
// Errors are those of the ingest, or of the context's end. Thread-safe.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "core/engine/engine.h"
#include "core/ingest/ingest_request.h"
#include "daemon/service/publications.h"
#include "daemon/service/replicas.h"
#include "daemon/sources/source_finder.h"

namespace tensorcast::daemon {

// A replica that a put has made, or found with the same content.
struct NewReplica {
  std::unique_ptr<Publications::Hold> hold;
  std::unique_ptr<PendingReplica> pending;
  std::unique_ptr<ReplicaLease> lease;
};

class NewReplicas {
 public:
  // All three must outlive this object; `publications` must outlive `engine`. `sources`: for PackToDisk.
  NewReplicas(StoreEngine* engine, Publications* publications, const SourceFinder* sources)
      : engine_(*engine), publications_(*publications), sources_(*sources) {}

  // Makes the replica of a new artifact. When its hold is destroyed, the replica is dropped, unless a put of
  // the artifact was published or still runs.
  absl::StatusOr<NewReplica> Make(const RequestContext& context, IngestRequest request,
                                  const OnProgress& on_progress) const;
  // Packs the leased replica's artifact to this node's disk. `hold`: the put's hold, which notes the
  // packed replica as made by this put.
  absl::Status PackToDisk(const RequestContext& context, const ReplicaLease& lease,
                          Publications::Hold& hold) const;

 private:
  absl::Status PackOnce(const RequestContext& context, const ReplicaLease& lease,
                        Publications::Hold& hold) const;

  StoreEngine& engine_;
  Publications& publications_;
  const SourceFinder& sources_;
};

}  // namespace tensorcast::daemon
