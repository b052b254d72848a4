#include "daemon/wire/wire.h"

#include <algorithm>

#include "core/status/status.h"

namespace tensorcast::daemon {
namespace {

v1::LocationKind ToKind(LocationKind kind) {
  switch (kind) {
    case LocationKind::kGpu:
      return v1::LOCATION_KIND_GPU;
    case LocationKind::kCpu:
      return v1::LOCATION_KIND_CPU;
    case LocationKind::kDisk:
      return v1::LOCATION_KIND_DISK;
  }
  return v1::LOCATION_KIND_UNSPECIFIED;
}

v1::ReplicaState ToState(ReplicaState state) {
  switch (state) {
    case ReplicaState::kAllocating:
      return v1::REPLICA_STATE_ALLOCATING;
    case ReplicaState::kFilling:
      return v1::REPLICA_STATE_FILLING;
    case ReplicaState::kReady:
      return v1::REPLICA_STATE_READY;
    case ReplicaState::kDraining:
      return v1::REPLICA_STATE_DRAINING;
    case ReplicaState::kGone:
      return v1::REPLICA_STATE_GONE;
    case ReplicaState::kFailed:
      return v1::REPLICA_STATE_FAILED;
  }
  return v1::REPLICA_STATE_UNSPECIFIED;
}

void SetStage(const StageReport& stage, v1::StageReport* out) {
  out->set_stage(std::string(StageName(stage.stage)));
  out->set_source_type(std::string(SourceTypeName(stage.source.type)));
  out->set_lane(stage.source.lane);
  out->set_source(stage.source.name);
  out->set_bytes(stage.bytes);
  out->set_chunks(stage.chunks);
  SetTimestamp(stage.start, out->mutable_start());
  SetTimestamp(stage.end, out->mutable_end());
  SetDuration(stage.busy, out->mutable_busy());
  if (!stage.status.ok()) {
    out->set_error(stage.status.ToString());
  }
}

absl::StatusOr<Location> GetGpu(const v1::Location& location, const DeviceRuntime* devices) {
  int device = location.device();
  if (devices != nullptr && !location.device_uuid().empty()) {
    TC_ASSIGN_OR_RETURN(device, devices->FindDevice(location.device_uuid()));
  }
  const bool known = devices == nullptr || device < static_cast<int>(devices->devices().size());
  if (device < 0 || !known) {
    return absl::InvalidArgumentError(absl::StrCat("gpu:", device, " does not exist on this node, which has ",
                                                   devices == nullptr ? 0 : devices->devices().size(),
                                                   " devices"));
  }
  return Location{LocationKind::kGpu, device};
}

}  // namespace

void SetTimestamp(absl::Time time, google::protobuf::Timestamp* out) {
  const absl::Duration since_epoch = time - absl::UnixEpoch();
  const int64_t seconds =
      absl::IDivDuration(absl::Floor(since_epoch, absl::Seconds(1)), absl::Seconds(1), nullptr);
  out->set_seconds(seconds);
  out->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(since_epoch - absl::Seconds(seconds))));
}

void SetDuration(absl::Duration duration, google::protobuf::Duration* out) {
  // The protobuf type ends at 10,000 years; nobody means more.
  absl::Duration rest;
  const absl::Duration bounded = std::min(duration, absl::Hours(24 * 365 * 100));
  out->set_seconds(absl::IDivDuration(bounded, absl::Seconds(1), &rest));
  out->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
}

absl::Duration GetDuration(const google::protobuf::Duration& duration) {
  return std::max(absl::ZeroDuration(),
                  absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos()));
}

void SetLocation(const Location& location, const DeviceRuntime* devices, v1::Location* out) {
  out->set_kind(ToKind(location.kind));
  if (location.kind != LocationKind::kGpu) {
    return;
  }
  out->set_device(location.device);
  if (devices != nullptr && location.device < static_cast<int>(devices->devices().size())) {
    out->set_device_uuid(devices->devices()[location.device].uuid);
  }
}

absl::StatusOr<Location> GetLocation(const v1::Location& location, const DeviceRuntime* devices) {
  switch (location.kind()) {
    case v1::LOCATION_KIND_UNSPECIFIED:
    case v1::LOCATION_KIND_CPU:
      return Location{LocationKind::kCpu};
    case v1::LOCATION_KIND_DISK:
      return Location{LocationKind::kDisk};
    case v1::LOCATION_KIND_GPU:
      return GetGpu(location, devices);
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("location kind ", location.kind(), " is unknown to this daemon"));
  }
}

void SetReplica(const ReplicaInfo& info, std::string_view node_id, const DeviceRuntime* devices,
                v1::Replica* out) {
  out->set_replica_id(info.id);
  out->set_artifact_id(info.artifact_id);
  out->set_node_id(std::string(node_id));
  SetLocation(info.location, devices, out->mutable_location());
  out->set_state(ToState(info.state));
  out->set_image_bytes(info.image_bytes);
  out->set_chunks_total(info.chunks_total);
  out->set_chunks_present(info.chunks_present);
  out->set_leases(info.leases);
  out->set_pinned(info.pinned);
  SetTimestamp(info.last_used, out->mutable_last_used());
}

void SetReport(const TransferReport& report, const DeviceRuntime* devices, v1::TransferReport* out) {
  out->set_transfer_id(report.transfer_id);
  out->set_artifact_id(report.artifact_id);
  out->set_replica_id(report.replica_id);
  SetLocation(report.destination, devices, out->mutable_destination());
  out->set_bytes(report.bytes);
  SetTimestamp(report.queued, out->mutable_queued());
  SetTimestamp(report.start, out->mutable_start());
  SetTimestamp(report.end, out->mutable_end());
  for (const StageReport& stage : report.stages) {
    SetStage(stage, out->add_stages());
  }
  out->set_refetched_chunks(report.refetched_chunks);
  out->set_verified_chunks(report.verified_chunks);
  if (!report.status.ok()) {
    out->set_error(report.status.ToString());
  }
}

bool SendPieces(std::string_view bytes, const std::function<bool(std::string_view piece)>& send) {
  do {
    if (!send(bytes.substr(0, kManifestPieceBytes))) {
      return false;
    }
    bytes.remove_prefix(std::min(bytes.size(), kManifestPieceBytes));
  } while (!bytes.empty());
  return true;
}

absl::StatusOr<std::shared_ptr<const Manifest>> DecodeManifest(std::string_view bytes,
                                                               std::string_view artifact_id) {
  absl::StatusOr<std::shared_ptr<const Manifest>> manifest = Manifest::Decode(bytes);
  if (!manifest.ok()) {
    return absl::DataLossError(absl::StrCat("the manifest received for ", artifact_id,
                                            " is not valid: ", manifest.status().message()));
  }
  if ((*manifest)->id() != artifact_id) {
    return absl::DataLossError(absl::StrCat("asked for the manifest of ", artifact_id,
                                            " but received that of ", (*manifest)->id(),
                                            "; the sender's store may be damaged"));
  }
  return manifest;
}

}  // namespace tensorcast::daemon
