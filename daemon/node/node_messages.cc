#include "daemon/node/node_messages.h"

#include "base/status.h"
#include "rpc/convert/convert.h"
#include "rpc/convert/transfer_reports.h"

namespace tensorcast::daemon {
namespace {

absl::StatusOr<Location> GpuFromProto(const v1::Location& location, const DeviceRuntime* devices) {
  int device = location.device();
  // The UUID decides where it is given: ordinals differ from process to process.
  if (devices != nullptr && !location.device_uuid().empty()) {
    TC_ASSIGN_OR_RETURN(device, devices->FindDevice(location.device_uuid()));
  }
  const bool known = devices == nullptr || device < static_cast<int>(devices->devices().size());
  if (device < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("use gpu:", device, ": GPUs are numbered from 0; name another location"));
  }
  if (!known) {
    const size_t count = devices->devices().size();
    // No GPU may also mean that the daemon does not use the GPUs of its node.
    const std::string uses = count == 0 ? "no GPUs; check daemon.device_runtime, or use location cpu or disk"
                             : count == 1
                                 ? "only gpu:0; use gpu:0"
                                 : absl::StrCat("gpu:0 to gpu:", count - 1, "; use one of these GPUs");
    return absl::InvalidArgumentError(absl::StrCat("use gpu:", device, ": this daemon uses ", uses));
  }
  return Location{LocationKind::kGpu, device};
}

}  // namespace

v1::Location ToProto(const Location& location, const DeviceRuntime* devices) {
  v1::Location message = rpc::ToProto(location);
  // Other processes may number GPUs in another way; the UUID means the same GPU to all.
  if (location.kind == LocationKind::kGpu && devices != nullptr &&
      location.device < static_cast<int>(devices->devices().size())) {
    message.set_device_uuid(devices->devices()[location.device].uuid);
  }
  return message;
}

v1::TransferReport ToProto(const TransferReport& report, const DeviceRuntime* devices) {
  v1::TransferReport message = rpc::ToProto(report);
  *message.mutable_destination() = ToProto(report.destination, devices);
  return message;
}

absl::StatusOr<Location> FromProto(const v1::Location& location, const DeviceRuntime* devices) {
  return location.kind() == v1::LOCATION_KIND_GPU ? GpuFromProto(location, devices)
                                                  : rpc::FromProto(location);
}

absl::StatusOr<std::shared_ptr<const Manifest>> DecodeManifest(std::string_view bytes,
                                                               std::string_view artifact_id) {
  // A peer's manifest is checked against its id, so it does not matter which peer sent it.
  absl::StatusOr<std::shared_ptr<const Manifest>> manifest = Manifest::Decode(bytes);
  if (!manifest.ok()) {
    // In parentheses, since the decoder's error has a remedy of its own.
    return absl::DataLossError(absl::StrCat("read the manifest received for ", artifact_id,
                                            ": the manifest cannot be decoded (", manifest.status().message(),
                                            "); try again"));
  }
  if ((*manifest)->id() != artifact_id) {
    return absl::DataLossError(absl::StrCat("get the manifest of ", artifact_id,
                                            ": the global store sent the manifest of ", (*manifest)->id(),
                                            "; try again, or check the global store's database for damage"));
  }
  return manifest;
}

}  // namespace tensorcast::daemon
