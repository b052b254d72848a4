#include "daemon/sources/local_attach.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/disk/packed_source.h"
#include "core/handles/handle_client.h"
#include "core/source/device_source.h"
#include "core/source/mapped_source.h"

namespace tensorcast::daemon {
namespace {

// Two a core up to 4: on a busy host the scheduler may leave two threads on one core for the length of a
// transfer, hardly ever four. On an idle one the second thread of a core costs nothing.
int CopySlots() { return std::clamp(2 * static_cast<int>(std::thread::hardware_concurrency()), 2, 4); }

TraceContext MadeBy(const v1::AttachReplicaResponse& response) {
  return TraceContext::FromTraceparent(response.made_by()).value_or(TraceContext());
}

// What a source over another daemon's host memory holds: the lease and the mappings.
struct AttachedHost {
  std::unique_ptr<ClaimedReplica> claim;
  std::vector<std::shared_ptr<SegmentMapping>> segments;
};

// What a source over another daemon's GPU memory holds. That may free the memory only after it was closed
// here.
// The order of the protocol: AnnounceOpening, OpenIpc, the copies, CloseIpc, AcknowledgeClosed. The source
// frees the memory after the acknowledgement. Where it does not come although the memory was announced as
// open, the source keeps the memory: to free it while it is open elsewhere leads to undefined behaviour in
// CUDA.
class AttachedDevice {
 public:
  AttachedDevice(std::unique_ptr<ClaimedReplica> claim, DeviceRuntime* devices, DevicePtr memory)
      : claim_(std::move(claim)), devices_(devices), memory_(memory) {}
  ~AttachedDevice() {
    absl::Status status = devices_->CloseIpc(memory_);
    if (status.ok()) status = claim_->AcknowledgeClosed();
    LOG_IF(WARNING, !status.ok()) << "give device memory back to a daemon of this host: " << status
                                  << "; that daemon keeps the memory until this daemon ends";
  }

 private:
  const std::unique_ptr<ClaimedReplica> claim_;
  DeviceRuntime* const devices_;
  const DevicePtr memory_;
};

// `availability`: null, all of the image is there; else chunks of which the handles cover each.
absl::StatusOr<std::unique_ptr<ChunkSource>> OverHost(std::unique_ptr<ClaimedReplica> claim,
                                                      const HostHandles& handles, PeerPools* pools,
                                                      SourceInfo info, const std::string& peer,
                                                      uint64_t image_bytes,
                                                      std::shared_ptr<const Availability> availability) {
  if (availability == nullptr && !handles.Covers(0, image_bytes)) {
    return absl::UnavailableError(
        absl::StrCat("attach to ", info.name, ": the source handed over no memory for some of the ",
                     image_bytes, " bytes of replica ", info.replica_id, "; take another source"));
  }
  auto attached = std::make_shared<AttachedHost>();
  TC_ASSIGN_OR_RETURN(attached->segments, pools->Get(peer, handles, claim->fds()));
  // The mappings keep the memory; a process has few descriptors.
  claim->CloseFds();
  std::vector<MappedPiece> pieces;
  for (const SegmentExtent& extent : handles.extents) {
    const uint64_t used = std::min(extent.bytes, image_bytes - extent.image_offset);
    pieces.push_back({.image_offset = extent.image_offset,
                      .bytes = attached->segments[extent.segment]->bytes().subspan(extent.offset, used)});
  }
  attached->claim = std::move(claim);
  return MakeMappedSource(std::move(info), image_bytes, SpansOf(std::move(pieces), std::move(attached)),
                          CopySlots(), std::move(availability));
}

absl::StatusOr<std::unique_ptr<ChunkSource>> OverDevice(std::unique_ptr<ClaimedReplica> claim,
                                                        const DeviceHandles& handles, DeviceRuntime* devices,
                                                        SourceInfo info, uint64_t image_bytes) {
  if (handles.ipc.bytes < image_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("attach to ", info.name, ": the source's allocation has ",
                                                   handles.ipc.bytes, " bytes, but the image has ",
                                                   image_bytes, " bytes; take another source"));
  }
  // The source is told before the memory is opened here: the source may free the memory only after
  // AcknowledgeClosed.
  TC_RETURN_IF_ERROR(claim->AnnounceOpening());
  absl::StatusOr<DevicePtr> opened = devices->OpenIpc(handles.ipc);
  if (!opened.ok()) {
    claim->AcknowledgeClosed().IgnoreError();  // it never was open here
    return opened.status();
  }
  auto attached = std::make_shared<AttachedDevice>(std::move(claim), devices, *opened);
  return MakeDeviceSource(std::move(info), devices, *opened, std::move(attached), CopySlots());
}

}  // namespace

// Two steps: AttachReplica (an RPC) gives a ticket and the path of the handle socket, and the claim of the
// ticket on that socket gives descriptors or IPC handles. The claimed connection is the lease on the peer's
// replica, so the source owns it.
absl::StatusOr<std::unique_ptr<ChunkSource>> LocalAttacher::Attach(const RequestContext& context,
                                                                   const v1::TransportGrant& grant,
                                                                   const Manifest& manifest,
                                                                   const TraceContext& reading) {
  RequestContext attach = context.Child();
  attach.deadline = std::min(context.deadline, SteadyNow() + timeout_);
  v1::AttachReplicaRequest request;
  request.set_replica_id(grant.replica().replica_id());
  request.set_grant_id(grant.grant_id());
  request.set_grant_token(grant.token());
  if (!reading.IsUnstarted()) request.set_traceparent(reading.ToTraceparent());
  TC_ASSIGN_OR_RETURN(
      const v1::AttachReplicaResponse response,
      peers_->AttachReplica(attach, {grant.source().grpc_address(), grant.source().name()}, request));
  // The path is the one it registered with, and no other: a peer is not to choose, call by call, to which
  // sockets of this host the daemon connects.
  if (response.handle_socket() != grant.source().handle_socket()) {
    return absl::PermissionDeniedError(
        absl::StrCat("attach to ", grant.source().name(), ": the source names the handle socket ",
                     response.handle_socket(), ", but registered the handle socket ",
                     grant.source().handle_socket(), "; restart the daemon of the source"));
  }
  TC_ASSIGN_OR_RETURN(std::unique_ptr<ClaimedReplica> claim,
                      ClaimedReplica::Claim(response.handle_socket(), response.ticket(), attach.deadline,
                                            attach.cancellation, &groups_));

  const ReplicaHandles handles = claim->handles();
  const uint64_t image_bytes = manifest.layout().image_bytes;
  if (handles.artifact_id != manifest.id() || handles.image_bytes != image_bytes) {
    return absl::DataLossError(absl::StrCat("attach to ", grant.source().name(),
                                            ": the source's replica is a copy of ", handles.artifact_id,
                                            " with ", handles.image_bytes, " bytes, not of ", manifest.id(),
                                            " with ", image_bytes, " bytes; take another source"));
  }
  SourceInfo info{.type = SourceType::kLocal,
                  .lane = std::string(kLocalLane),
                  .name = std::string(grant.source().name()),
                  .grant_id = grant.grant_id(),
                  .span = reading,
                  .made_by = MadeBy(response),
                  .replica_id = grant.replica().replica_id()};
  if (const auto* host = std::get_if<HostHandles>(&handles.memory)) {
    std::shared_ptr<const Availability> availability;
    // Whatever it was when it was leased, a replica that is ready now has all of its bytes where it has
    // memory.
    if (response.replica().state() != v1::REPLICA_STATE_READY) {
      TC_ASSIGN_OR_RETURN(availability, claim->Follow(manifest.layout().chunk_bytes, attach.deadline));
    }
    return OverHost(std::move(claim), *host, pools_, std::move(info), response.handle_socket(), image_bytes,
                    std::move(availability));
  }
  if (const auto* device = std::get_if<DeviceHandles>(&handles.memory)) {
    return OverDevice(std::move(claim), *device, devices_, std::move(info), image_bytes);
  }
  const int fd = claim->fds().front().get();
  // The claim owns the descriptor, and the source holds the claim.
  info.name = absl::StrCat("the packed file of ", grant.source().name());
  return OpenPackedSource(std::move(info), fd, std::get<FileHandles>(handles.memory).image_offset,
                          image_bytes, std::shared_ptr<ClaimedReplica>(std::move(claim)));
}

}  // namespace tensorcast::daemon
