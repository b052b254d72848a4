// The state of a Replica: the daemon's answer, the manifest and, for an attached replica, its lease and its
// memory. Private to this folder. Only LiveClient::Adopt changes a State after it is made.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/artifact/manifest.h"
#include "core/artifact/tensor_selection.h"
#include "core/handles/handle_client.h"
#include "proto/daemon.pb.h"
#include "tensorcast/replica.h"

namespace tensorcast::client {

struct Replica::State {
  // Unmaps the memory. For GPU memory, first closes the handle and then tells the daemon, which needs this
  // order.
  ~State();

  // INVALID_ARGUMENT for a result with enum values that this library does not know.
  static absl::StatusOr<std::unique_ptr<State>> Of(v1::MaterializeReplicaResult result);
  const std::string& artifact_id() const { return result.artifact_id(); }
  const std::string& replica_id() const { return result.replica().replica_id(); }
  // Maps or opens the claimed memory. `device_runtime` may be null for host memory. DATA_LOSS when the
  // handles do not fit the manifest.
  absl::Status Attach(std::unique_ptr<ClaimedReplica> claim, DeviceRuntime* device_runtime,
                      bool copy_on_write);
  // For errors: why this process cannot use the replica's bytes, and the remedy.
  std::string_view WhyNotMapped() const;
  // Lists the chosen tensors, with their addresses if the replica is attached.
  void MakeViews();

  v1::MaterializeReplicaResult result;
  Location location;  // from `result`, like `transfer`
  std::optional<TransferReport> transfer;

  std::shared_ptr<const Manifest> manifest;
  TensorSelection chosen;
  std::vector<TensorView> tensors;  // in the order of chosen.tensors
  // Owns the names and shapes of `tensors`. LiveClient::Adopt replaces `manifest` by the manifest of a later
  // version, but keeps this pointer.
  std::shared_ptr<const Manifest> manifest_of_views;

  std::shared_ptr<ClaimedReplica> claimed;  // null: not attached
  std::span<const std::byte> image;         // host memory; chunks that were not chosen may be unreadable
  DevicePtr device;                         // device memory, opened with `devices`
  DeviceRuntime* devices = nullptr;

 private:
  absl::Status OpenDevice(const IpcHandle& handle, DeviceRuntime* device_runtime);
  void CloseDevice();
};

}  // namespace tensorcast::client
