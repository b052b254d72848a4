// The Replica that clients hold: a claimed lease with its mapping or opened device memory, or (not attached)
// only the facts. Private to this folder.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "core/handles/handle_client.h"
#include "tensorcast/client.h"

namespace tensorcast::client {

struct ReplicaFacts {
  std::string artifact_id;
  std::string replica_id;
  Location location;
  uint64_t key_revision = 0;
  bool key_unconfirmed = false;
  std::optional<TransferReport> transfer;
};

// Maps or opens what was claimed. `devices` must outlive the replica; it may be null where no device memory
// was claimed. DATA_LOSS when the handles do not fit the manifest.
absl::StatusOr<std::unique_ptr<Replica>> MakeAttachedReplica(ReplicaFacts facts,
                                                             std::shared_ptr<const Manifest> manifest,
                                                             std::unique_ptr<ClaimedReplica> claimed,
                                                             DeviceRuntime* devices);

std::unique_ptr<Replica> MakeUnattachedReplica(ReplicaFacts facts, std::shared_ptr<const Manifest> manifest);

}  // namespace tensorcast::client
