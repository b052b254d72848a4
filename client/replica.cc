#include "tensorcast/replica.h"

#include <algorithm>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "client/admin.h"
#include "client/mapped_images.h"
#include "client/replica_state.h"
#include "core/artifact/digest.h"
#include "rpc/convert/convert.h"
#include "rpc/convert/transfer_reports.h"

namespace tensorcast::client {

Replica::Replica(std::unique_ptr<State> state) : state_(std::move(state)) {}
Replica::~Replica() = default;

const std::string& Replica::artifact_id() const { return state_->artifact_id(); }
const std::string& Replica::replica_id() const { return state_->replica_id(); }
const Location& Replica::location() const { return state_->location; }
const std::vector<TensorView>& Replica::tensors() const { return state_->tensors; }
uint64_t Replica::image_bytes() const { return state_->manifest->layout().image_bytes; }
size_t Replica::tensor_count() const { return state_->manifest->layout().tensors.size(); }
const std::map<std::string, std::string>& Replica::metadata() const { return state_->manifest->metadata(); }
const std::string& Replica::files_id() const { return state_->result.files_id(); }
uint64_t Replica::key_revision() const { return state_->result.key_revision(); }
bool Replica::key_unconfirmed() const { return state_->result.key_unconfirmed(); }
const std::optional<TransferReport>& Replica::transfer() const { return state_->transfer; }
bool Replica::writable() const { return state_->claimed != nullptr && state_->claimed->writable(); }
bool Replica::lost() const { return state_->claimed != nullptr && state_->claimed->lost(); }

absl::Status Replica::Check() const {
  if (state_->claimed == nullptr) return absl::OkStatus();
  // Damage before loss: wrong bytes must not be used, lease or not.
  TC_RETURN_IF_ERROR(state_->claimed->CheckIntact());
  if (!lost()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "check replica ", replica_id(), ": the daemon that held the lease ended; get the artifact again"));
}

absl::Status Replica::Verify() const {
  if (state_->image.empty() && image_bytes() > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("verify replica ", replica_id(), ": ", state_->WhyNotMapped()));
  }
  const Manifest& manifest = *state_->manifest;
  // Digests are those of chunks, so each chunk that holds a part of a chosen tensor is read whole.
  for (const uint32_t chunk : state_->chosen.chunks) {
    const ByteRange range = manifest.layout().chunk(chunk);
    if (ComputeDigest(state_->image.subspan(range.offset, range.bytes)) == manifest.digests()[chunk].xxh3) {
      continue;
    }
    return absl::DataLossError(absl::StrCat("verify replica ", replica_id(), " of ", artifact_id(),
                                            ": chunk ", chunk,
                                            " does not match its digest; evict the replica, get the artifact "
                                            "again, and check the memory of this node"));
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorView> Replica::Find(std::string_view name) const {
  const Tensor* tensor = state_->manifest->Find(name);
  if (tensor == nullptr) {
    return absl::NotFoundError(absl::StrCat("find tensor \"", name, "\": artifact ", artifact_id(),
                                            " has no such tensor; tensors() lists the tensors"));
  }
  // Tensors are found in the manifest, and views exist only of those that the get chose: `chosen.tensors` has
  // their places in the manifest, ascending, in the order of the views.
  const auto place = static_cast<uint32_t>(tensor - state_->manifest->layout().tensors.data());
  const auto chosen = std::ranges::lower_bound(state_->chosen.tensors, place);
  if (chosen == state_->chosen.tensors.end() || *chosen != place) {
    return absl::FailedPreconditionError(
        absl::StrCat("find tensor \"", name, "\" of ", artifact_id(),
                     ": the get did not choose this tensor; choose this tensor in the get, too"));
  }
  return state_->tensors[chosen - state_->chosen.tensors.begin()];
}

// The whole image or nothing: where tensors were chosen, the others may have no memory.
std::span<const std::byte> Replica::image() const {
  return state_->tensors.size() == tensor_count() ? state_->image : std::span<const std::byte>();
}

// The members then end the lease: `claimed` unmaps host memory and closes its connection.
Replica::State::~State() {
  if (!image.empty()) MappedImages::OfProcess().Remove(image);
  CloseDevice();
}

absl::StatusOr<std::unique_ptr<Replica::State>> Replica::State::Of(v1::MaterializeReplicaResult result) {
  auto state = std::make_unique<State>();
  TC_ASSIGN_OR_RETURN(state->location, rpc::FromProto(result.replica().location()));
  if (result.has_transfer()) {
    TC_ASSIGN_OR_RETURN(state->transfer, rpc::FromProto(result.transfer()));
  }
  state->result = std::move(result);
  return state;
}

const v1::MaterializeReplicaResult& AdminClient::ResultOf(const Replica& replica) {
  return replica.state_->result;
}

// The claim is a lease with handles. Host memory is mapped: the descriptors came with the claim. GPU memory
// is opened by its IPC handle.
absl::Status Replica::State::Attach(std::unique_ptr<ClaimedReplica> claim, DeviceRuntime* device_runtime,
                                    bool copy_on_write) {
  // From here on the lease ends with this state, whatever fails below.
  claimed = std::move(claim);
  const ReplicaHandles& handles = claimed->handles();
  // The views are made from the manifest; with a smaller image they would point outside it.
  if (handles.image_bytes != manifest->layout().image_bytes) {
    return absl::DataLossError(absl::StrCat("attach replica ", replica_id(), ": the replica has ",
                                            handles.image_bytes, " bytes, but the manifest of ",
                                            artifact_id(), " describes ", manifest->layout().image_bytes,
                                            " bytes; get the artifact again"));
  }
  if (const auto* memory = std::get_if<HostHandles>(&handles.memory)) {
    // A hole cannot be read, and nothing else here would say so.
    for (const uint32_t place : chosen.tensors) {
      const Tensor& tensor = manifest->layout().tensors[place];
      if (!memory->Covers(tensor.offset, tensor.nbytes)) {
        return absl::DataLossError(absl::StrCat("attach replica ", replica_id(), " of ", artifact_id(),
                                                ": the replica has no memory for tensor \"", tensor.name,
                                                "\"; get the artifact again"));
      }
    }
    TC_ASSIGN_OR_RETURN(image, claimed->MapImage(copy_on_write));
    // A put of these bytes can then name the replica instead of streaming them.
    if (!image.empty()) {
      MappedImages::OfProcess().Add(
          image,
          {.pool_id = memory->pool_id, .replica_id = handles.replica_id, .writable = claimed->writable()});
    }
    return absl::OkStatus();
  }
  if (const auto* memory = std::get_if<DeviceHandles>(&handles.memory)) {
    return OpenDevice(memory->ipc, device_runtime);
  }
  return absl::UnimplementedError(absl::StrCat(
      "attach replica ", replica_id(), ": the replica is on disk; get the artifact at \"cpu\" or \"gpu:N\""));
}

std::string_view Replica::State::WhyNotMapped() const {
  if (location.kind == LocationKind::kDisk) return "the replica is on disk; get the artifact at \"cpu\"";
  if (claimed != nullptr) return "the replica is in GPU memory; get the artifact at \"cpu\"";
  return "this process is not attached to the replica; get the artifact with GetOptions::attach, at \"cpu\" "
         "to "
         "read its bytes in this process";
}

// A view points into the image by the tensor's offset, which is the same in host memory and on a GPU. A
// replica that is not attached has views without memory: names, types and shapes.
void Replica::State::MakeViews() {
  manifest_of_views = manifest;
  tensors.reserve(chosen.tensors.size());
  for (const uint32_t place : chosen.tensors) {
    const Tensor& tensor = manifest->layout().tensors[place];
    TensorView& view = tensors.emplace_back();
    view.name = tensor.name;
    view.dtype = tensor.dtype;
    view.shape = tensor.shape;
    view.nbytes = tensor.nbytes;
    if (!image.empty()) view.host = image.subspan(tensor.offset, tensor.nbytes);
    if (device) view.device = device + tensor.offset;
  }
}

absl::Status Replica::State::OpenDevice(const IpcHandle& handle, DeviceRuntime* device_runtime) {
  if (device_runtime == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("attach replica ", replica_id(),
                     ": this client has no device runtime to open GPU memory; set ClientOptions::devices"));
  }
  // Before it is open: from then on the daemon keeps the memory until this process has closed it, or has
  // ended.
  TC_RETURN_IF_ERROR(claimed->AnnounceOpening());
  absl::StatusOr<DevicePtr> opened = device_runtime->OpenIpc(handle);
  if (!opened.ok()) {
    claimed->AcknowledgeClosed().IgnoreError();  // it never was open here
    return opened.status();
  }
  device = *opened;
  devices = device_runtime;
  return absl::OkStatus();
}

void Replica::State::CloseDevice() {
  if (!device) return;
  // In this order: the acknowledgement tells the daemon that nothing is open here any more, after which it
  // may free the memory.
  absl::Status closed = devices->CloseIpc(device);
  if (closed.ok()) closed = claimed->AcknowledgeClosed();
  if (!closed.ok() && !claimed->lost()) {
    LOG(WARNING) << "give back GPU replica " << replica_id() << ": " << closed
                 << "; the daemon keeps the memory of this replica until this process ends";
  }
}

}  // namespace tensorcast::client
