#include "daemon/sources/local_attach.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <variant>

#include "absl/log/log.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/disk/disk_source.h"
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

// What a source over another daemon's host memory holds: the lease and the mapping.
struct AttachedHost {
  std::unique_ptr<ClaimedReplica> claim;
  std::shared_ptr<PoolMapping> pool;
};

// What a source over another daemon's GPU memory holds. That may free the memory only after it was closed
// here.
class AttachedDevice {
 public:
  AttachedDevice(std::unique_ptr<ClaimedReplica> claim, DeviceRuntime* devices, DevicePtr memory)
      : claim_(std::move(claim)), devices_(devices), memory_(memory) {}
  ~AttachedDevice() {
    absl::Status status = devices_->CloseIpc(memory_);
    if (status.ok()) status = claim_->AcknowledgeClosed();
    LOG_IF(WARNING, !status.ok()) << "Device memory of a source was not given back, and the source keeps it: "
                                  << status;
  }

 private:
  const std::unique_ptr<ClaimedReplica> claim_;
  DeviceRuntime* const devices_;
  const DevicePtr memory_;
};

absl::StatusOr<std::unique_ptr<ChunkSource>> OverHost(std::unique_ptr<ClaimedReplica> claim,
                                                      const HostHandles& handles, PeerPools* pools,
                                                      SourceInfo info, const std::string& peer,
                                                      uint64_t image_bytes) {
  auto attached = std::make_shared<AttachedHost>();
  std::vector<ConstHostSpan> image;
  if (image_bytes > 0) {
    TC_ASSIGN_OR_RETURN(attached->pool, pools->Get(peer, handles, claim->fd()));
    TC_ASSIGN_OR_RETURN(image, attached->pool->Spans(handles.extents, image_bytes));
  }
  attached->claim = std::move(claim);
  return MakeMappedSource(std::move(info), image, std::move(attached), CopySlots());
}

absl::StatusOr<std::unique_ptr<ChunkSource>> OverDevice(std::unique_ptr<ClaimedReplica> claim,
                                                        const DeviceHandles& handles, DeviceRuntime* devices,
                                                        SourceInfo info, uint64_t image_bytes) {
  if (handles.ipc.bytes < image_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("the source's allocation has ", handles.ipc.bytes,
                                                   " bytes, fewer than the image's ", image_bytes));
  }
  absl::StatusOr<DevicePtr> opened = devices->OpenIpc(handles.ipc);
  if (!opened.ok()) {
    claim->AcknowledgeClosed().IgnoreError();  // it never was open here
    return opened.status();
  }
  auto attached = std::make_shared<AttachedDevice>(std::move(claim), devices, *opened);
  return MakeDeviceSource(std::move(info), devices, *opened, std::move(attached), CopySlots());
}

}  // namespace

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
  TC_ASSIGN_OR_RETURN(std::unique_ptr<ClaimedReplica> claim,
                      ClaimedReplica::Claim(response.handle_socket(), response.ticket(), attach.deadline));

  const ReplicaHandles handles = claim->handles();
  const uint64_t image_bytes = manifest.layout().image_bytes;
  if (handles.artifact_id != manifest.id() || handles.image_bytes != image_bytes) {
    return absl::DataLossError(absl::StrCat("attached to a replica of ", handles.artifact_id, " of ",
                                            handles.image_bytes, " bytes instead of ", manifest.id()));
  }
  SourceInfo info{.type = SourceType::kLocal,
                  .lane = std::string(kLocalLane),
                  .name = std::string(grant.source().name()),
                  .grant_id = grant.grant_id(),
                  .span = reading,
                  .made_by = MadeBy(response)};
  if (const auto* host = std::get_if<HostHandles>(&handles.memory)) {
    return OverHost(std::move(claim), *host, pools_, std::move(info), response.handle_socket(), image_bytes);
  }
  if (const auto* device = std::get_if<DeviceHandles>(&handles.memory)) {
    return OverDevice(std::move(claim), *device, devices_, std::move(info), image_bytes);
  }
  const int fd = claim->fd();
  return OpenPackedSource(absl::StrCat("the packed file of ", grant.source().name()), fd,
                          std::get<FileHandles>(handles.memory).image_offset, image_bytes,
                          std::shared_ptr<ClaimedReplica>(std::move(claim)),
                          {.span = reading, .made_by = MadeBy(response)});
}

}  // namespace tensorcast::daemon
