#include "client/replica_state.h"

#include <utility>

#include "absl/log/log.h"
#include "base/status.h"

namespace tensorcast::client {
namespace {

class ReplicaImpl final : public Replica {
 public:
  ReplicaImpl(ReplicaFacts facts, std::shared_ptr<const Manifest> manifest)
      : facts_(std::move(facts)), manifest_(std::move(manifest)) {}

  ~ReplicaImpl() override { CloseDevice(); }

  absl::Status Attach(std::unique_ptr<ClaimedReplica> claimed, DeviceRuntime* devices) {
    claimed_ = std::move(claimed);
    const ReplicaHandles& handles = claimed_->handles();
    if (handles.image_bytes != manifest_->layout().image_bytes) {
      return absl::DataLossError(absl::StrCat("replica ", facts_.replica_id, " has ", handles.image_bytes,
                                              " bytes, but the manifest of ", facts_.artifact_id,
                                              " describes ", manifest_->layout().image_bytes));
    }
    if (std::holds_alternative<HostHandles>(handles.memory)) {
      TC_ASSIGN_OR_RETURN(image_, claimed_->MapImage());
      return absl::OkStatus();
    }
    if (const auto* device = std::get_if<DeviceHandles>(&handles.memory))
      return OpenDevice(device->ipc, devices);
    return absl::UnimplementedError("a disk replica cannot be attached; ask for it at \"cpu\" or \"gpu:N\"");
  }

  const std::string& artifact_id() const override { return facts_.artifact_id; }
  const std::string& replica_id() const override { return facts_.replica_id; }
  const Location& location() const override { return facts_.location; }
  const Manifest& manifest() const override { return *manifest_; }
  uint64_t key_revision() const override { return facts_.key_revision; }
  bool key_unconfirmed() const override { return facts_.key_unconfirmed; }
  std::span<const std::byte> image() const override { return image_; }
  const std::optional<TransferReport>& transfer() const override { return facts_.transfer; }
  bool lost() const override { return claimed_ != nullptr && claimed_->lost(); }

  absl::StatusOr<TensorView> Find(std::string_view name) const override {
    const Tensor* tensor = manifest_->Find(name);
    if (tensor == nullptr) {
      return absl::NotFoundError(
          absl::StrCat("artifact ", facts_.artifact_id, " has no tensor \"", name, "\""));
    }
    TensorView view{.tensor = tensor};
    if (!image_.empty()) view.host = image_.subspan(tensor->offset, tensor->nbytes);
    if (device_) view.device = device_ + tensor->offset;
    return view;
  }

 private:
  absl::Status OpenDevice(const IpcHandle& handle, DeviceRuntime* devices) {
    if (devices == nullptr) {
      return absl::FailedPreconditionError("attaching to a GPU replica needs ClientOptions::devices");
    }
    TC_ASSIGN_OR_RETURN(device_, devices->OpenIpc(handle));
    devices_ = devices;
    return absl::OkStatus();
  }

  // The daemon frees the memory only once it knows that nobody has it open.
  void CloseDevice() {
    if (!device_) return;
    absl::Status closed = devices_->CloseIpc(device_);
    if (closed.ok()) closed = claimed_->AcknowledgeClosed();
    if (!closed.ok() && !claimed_->lost()) {
      LOG(WARNING) << "giving back GPU replica " << facts_.replica_id << ": " << closed
                   << "; the daemon keeps its memory until this process ends";
    }
  }

  const ReplicaFacts facts_;
  const std::shared_ptr<const Manifest> manifest_;
  std::unique_ptr<ClaimedReplica> claimed_;
  ConstHostSpan image_;
  DevicePtr device_;
  DeviceRuntime* devices_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Replica>> MakeAttachedReplica(ReplicaFacts facts,
                                                             std::shared_ptr<const Manifest> manifest,
                                                             std::unique_ptr<ClaimedReplica> claimed,
                                                             DeviceRuntime* devices) {
  auto replica = std::make_unique<ReplicaImpl>(std::move(facts), std::move(manifest));
  TC_RETURN_IF_ERROR(replica->Attach(std::move(claimed), devices));
  return replica;
}

std::unique_ptr<Replica> MakeUnattachedReplica(ReplicaFacts facts, std::shared_ptr<const Manifest> manifest) {
  return std::make_unique<ReplicaImpl>(std::move(facts), std::move(manifest));
}

}  // namespace tensorcast::client
