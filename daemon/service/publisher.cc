#include "daemon/service/publisher.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "daemon/service/replicas.h"
#include "rpc/convert/convert.h"

namespace tensorcast::daemon {
namespace {

constexpr absl::Duration kCheckInTimeout = absl::Seconds(5);

}  // namespace

absl::StatusOr<v1::PublishArtifactResponse> Publisher::Publish(const RequestContext& context,
                                                               const Manifest& manifest,
                                                               const v1::Replica& replica,
                                                               const Publication& publication,
                                                               const ReplicaLease* difference) const {
  v1::PublishArtifactRequest first;
  *first.mutable_node() = link_.identity();
  *first.mutable_replica() = replica;
  if (!publication.origin.objects.empty()) *first.mutable_origin() = rpc::ToProto(publication.origin);
  if (publication.binding != nullptr) {
    first.set_key(publication.binding->key());
    if (publication.binding->has_expected_revision()) {
      first.set_expected_revision(publication.binding->expected_revision());
    }
    if (publication.binding->has_keep()) first.set_keep(publication.binding->keep());
    first.set_files_id(publication.files_id);
  }
  if (difference != nullptr) {
    TC_ASSIGN_OR_RETURN(*first.mutable_difference_replica(),
                        DescribeReplica(engine_, difference->replica_id()));
  }
  const auto publish = [&] {
    if (difference == nullptr) {
      return global_store_.PublishArtifact(context, manifest, first, publication.asking);
    }
    return global_store_.PublishWithDifference(context, manifest, *difference->manifest(), first,
                                               publication.asking);
  };
  const SteadyTime asked = SteadyNow();
  absl::StatusOr<v1::PublishArtifactResponse> published = publish();
  if (absl::IsNotFound(published.status()) || absl::IsAborted(published.status())) {
    // The global store may have been restarted since the last heartbeat and not know this node yet.
    const SteadyTime deadline = std::min(context.deadline, SteadyNow() + kCheckInTimeout);
    TC_RETURN_IF_ERROR(Annotate(link_.CheckIn(deadline), "put at this daemon"));
    published = publish();
  }
  TC_ASSIGN_OR_RETURN(v1::PublishArtifactResponse response, std::move(published));
  if (response.artifact_id() != manifest.id()) {
    return absl::InternalError(
        absl::StrCat("publish ", manifest.id(), ": the global store gave the artifact the id ",
                     response.artifact_id(), "; upgrade the older of daemon and global store"));
  }
  if (publication.binding != nullptr) {
    v1::Key bound;
    bound.set_name(publication.binding->key());
    bound.set_artifact_id(response.artifact_id());
    bound.set_revision(response.key_revision());
    bound.set_files_id(response.files_id());
    // After the store's own time of the binding, clocks being equal: where the store loses its database, a
    // binding that it makes later at the same revision is newer, and one of a backup is not.
    *bound.mutable_updated() = rpc::ToProto(absl::Now());
    known_keys_.NotePut(bound, asked);
  }
  return response;
}

absl::Status Publisher::AddOrigin(const RequestContext& context, const Manifest& manifest,
                                  const Origin& origin, const std::string& asking) const {
  v1::PublishArtifactRequest first;
  *first.mutable_node() = link_.identity();
  *first.mutable_origin() = rpc::ToProto(origin);
  return global_store_.PublishArtifact(context, manifest, first, asking).status();
}

}  // namespace tensorcast::daemon
