#include "client/live.h"

#include <grpcpp/channel.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "client/daemon_link.h"
#include "client/mapped_images.h"
#include "client/replica_state.h"
#include "core/artifact/manifest.h"
#include "core/handles/handle_client.h"
#include "proto/live.grpc.pb.h"
#include "rpc/call.h"
#include "rpc/convert/convert.h"
#include "rpc/pieces.h"

namespace tensorcast::client {
namespace {

using LiveStub = v1::LiveLeases::Stub;

// The daemon answers on the handle socket at once or not at all.
constexpr absl::Duration kLiveClaimTimeout = absl::Seconds(10);

absl::StatusOr<std::shared_ptr<const Manifest>> FetchManifest(const DaemonLink& link,
                                                              const RequestContext& context,
                                                              const std::string& artifact_id) {
  v1::DescribeArtifactRequest request;
  request.set_artifact_id(artifact_id);
  request.set_manifest(true);
  rpc::PieceJoiner pieces;
  TC_RETURN_IF_ERROR(rpc::CallServerStream(
      link.global_store(), &v1::GlobalStore::Stub::DescribeArtifact, context, request,
      [&](v1::DescribeArtifactResponse&& response) { return pieces.Add(response.manifest_piece()); },
      {.what = "get the manifest of the version"}));
  TC_ASSIGN_OR_RETURN(std::shared_ptr<const Manifest> manifest, Manifest::Decode(pieces.bytes()));
  if (manifest->id() == artifact_id) return manifest;
  return absl::DataLossError(absl::StrCat("get the manifest of ", artifact_id,
                                          ": the global store sent the manifest of ", manifest->id(),
                                          "; report this defect of the global store"));
}

}  // namespace

struct LiveClient::Stubs {
  std::unique_ptr<LiveStub> live;
};

LiveClient::LiveClient(std::unique_ptr<DaemonLink> link)
    : link_(std::move(link)), stubs_(new Stubs{v1::LiveLeases::NewStub(link_->channel())}) {}
LiveClient::~LiveClient() = default;

absl::StatusOr<std::unique_ptr<LiveClient>> LiveClient::Connect(const ClientOptions& options) {
  TC_ASSIGN_OR_RETURN(auto link, DaemonLink::Connect(options));
  return std::unique_ptr<LiveClient>(new LiveClient(std::move(link)));
}

absl::StatusOr<std::shared_ptr<const Manifest>> LiveClient::ManifestOf(const RequestContext& context,
                                                                       const std::string& artifact_id) {
  {
    absl::MutexLock lock(&mutex_);
    if (manifest_ != nullptr && manifest_->id() == artifact_id) return manifest_;
  }
  TC_ASSIGN_OR_RETURN(std::shared_ptr<const Manifest> fetched, FetchManifest(*link_, context, artifact_id));
  absl::MutexLock lock(&mutex_);
  manifest_ = fetched;
  return fetched;
}

// The mapping, or the opened GPU memory, stays. From here on the connection that claims the ticket has the
// lease.
absl::Status LiveClient::TakeLease(const RequestContext& context, const std::string& handle_socket,
                                   const std::string& ticket, ClaimedReplica& claimed) {
  TC_ASSIGN_OR_RETURN(auto again,
                      ClaimedReplica::Claim(handle_socket, ticket,
                                            std::min(context.deadline, SteadyNow() + kLiveClaimTimeout),
                                            context.cancellation));
  return claimed.TakeOver(std::move(again));
}

// The protocol of a live replica, as this process sees it:
//
//   MakeLive  AttachLive gives a ticket; the connection that claims it takes over the lease
//   Prepare   the daemon stages the version; the replica stays as it is
//   Commit    this holder enters the gate; when all holders are in it, the memory is rewritten
//             and a ticket for the new version comes back
//   Adopt     the replica describes itself as the new version, at the same addresses
//
// The mapping, or the opened GPU memory, stays through all of it; only the lease is exchanged. The caller
// does not read the memory from Commit to Adopt.
absl::StatusOr<std::string> LiveClient::MakeLive(const RequestContext& context, const Replica& replica) {
  const std::string what = absl::StrCat("make the lease on replica ", replica.replica_id(), " live");
  if (replica.image().empty() && !replica.state_->device) {
    return absl::FailedPreconditionError(absl::StrCat(
        what,
        ": this process is not attached to all tensors of the replica; get all tensors at \"cpu\" or "
        "\"gpu:N\""));
  }
  return InSpan(
      "Client/MakeLive", context, [&](const RequestContext& operation) -> absl::StatusOr<std::string> {
        v1::AttachLiveRequest request;
        request.set_replica_id(replica.replica_id());
        TC_ASSIGN_OR_RETURN(const v1::AttachLiveResponse attached,
                            rpc::CallUnary(*stubs_->live, &LiveStub::AttachLive, operation, request,
                                           {.what = "make a lease live"}));
        TC_RETURN_IF_ERROR(
            TakeLease(operation, attached.handle_socket(), attached.ticket(), *replica.state_->claimed));
        // The memory may hold another version from now on, so a put must stream it.
        MappedImages::OfProcess().Remove(replica.state_->image);
        return attached.hold();
      });
}

absl::Status LiveClient::Prepare(const RequestContext& context, const std::string& hold,
                                 const std::string& artifact_id) {
  return InSpan("Client/PrepareVersion", context, [&](const RequestContext& operation) -> absl::Status {
    v1::PrepareVersionRequest request;
    request.set_hold(hold);
    request.set_artifact_id(artifact_id);
    TC_RETURN_IF_ERROR(rpc::CallUnary(*stubs_->live, &LiveStub::PrepareVersion, operation, request,
                                      {.what = "prepare a version"})
                           .status());
    return ManifestOf(operation, artifact_id).status();
  });
}

// CommitVersion is not retried here: without an answer the rewriting may have begun, and the caller decides.
absl::StatusOr<LiveClient::Committed> LiveClient::Commit(const RequestContext& context,
                                                         const std::string& hold,
                                                         const std::string& artifact_id, absl::Duration wait,
                                                         const Replica& replica) {
  return InSpan(
      "Client/CommitVersion", context, [&](const RequestContext& operation) -> absl::StatusOr<Committed> {
        Committed committed;
        // First: after the replica was rewritten only the lease is left to be taken.
        TC_ASSIGN_OR_RETURN(committed.manifest, ManifestOf(operation, artifact_id));
        v1::CommitVersionRequest request;
        request.set_hold(hold);
        request.set_artifact_id(artifact_id);
        if (wait != absl::InfiniteDuration()) *request.mutable_wait() = rpc::ToProto(wait);
        TC_ASSIGN_OR_RETURN(
            v1::CommitVersionResponse response,
            rpc::CallUnary(*stubs_->live, &LiveStub::CommitVersion, operation, request,
                           {.retry_for = absl::ZeroDuration(), .what = "commit to a version"}));
        RequestContext claim = operation;  // it is rewritten, however late it is
        claim.deadline = SteadyTime::InfiniteFuture();
        TC_RETURN_IF_ERROR(
            TakeLease(claim, response.handle_socket(), response.ticket(), *replica.state_->claimed));
        committed.hold = response.hold();
        committed.replica = std::move(*response.mutable_replica());
        return committed;
      });
}

void LiveClient::Adopt(const Committed& committed, const Replica& replica) {
  Replica::State& state = *replica.state_;
  state.manifest = committed.manifest;
  v1::MaterializeReplicaResult& result = state.result;
  result.set_artifact_id(committed.manifest->id());
  *result.mutable_replica() = committed.replica;
  result.clear_key_revision();
  result.clear_files_id();
  result.clear_transfer();
  state.transfer.reset();
}

}  // namespace tensorcast::client
