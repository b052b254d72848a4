// Proves which bytes this node has (proto/possession.proto): digests ranges with a nonce, and checks whether
// a replica matches its manifest. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/byte_range.h"
#include "core/device/device_runtime.h"
#include "core/engine/engine.h"
#include "core/memory/host_pool.h"
#include "core/source/chunk_source.h"
#include "daemon/serving/served_replica.h"
#include "proto/daemon.pb.h"
#include "proto/possession.pb.h"

namespace tensorcast::daemon {

class Possession {
 public:
  // The files of this node that an artifact was imported from.
  struct Files {
    std::unique_ptr<ChunkSource> source;
    uint64_t image_bytes = 0;
  };
  // Called with a replica that no longer matches its manifest; the message names the first chunk that
  // differs.
  using OnDamage = std::function<void(const v1::DamagedReplica& damaged)>;
  struct Options {
    StoreEngine* engine = nullptr;  // must outlive this object, like the pool and the devices
    const HostPool* pool = nullptr;
    DeviceRuntime* devices = nullptr;
    std::shared_ptr<StagingBuffers> staging;
    absl::Duration patience = absl::Milliseconds(500);  // max wait for a staging buffer, and for a disk
    std::function<absl::StatusOr<Files>(const v1::Origin& origin, const std::string& artifact_id)>
        open_origin = nullptr;  // null: this node proves no files
  };

  explicit Possession(Options options) : options_(std::move(options)) {}

  // DigestAgain calls `on_damage` with each replica that it finds damaged; the function must drop the
  // replica. Call SetOnDamage before DigestAgain.
  void SetOnDamage(OnDamage on_damage) { on_damage_ = std::move(on_damage); }

  // Returns the BLAKE3 digest, 32 bytes, of the nonce and the requested ranges in this node's own bytes;
  // reads files from disk. INVALID_ARGUMENT for too many ranges or bytes, a nonce that is too long, or ranges
  // outside the image. FAILED_PRECONDITION for a replica that is incomplete or of another artifact, and for
  // files if this node proves no files. NOT_FOUND for a replica that is gone.
  absl::StatusOr<std::string> Prove(const v1::ProveRequest& request) const;

  // Returns true if each chunk of the replica has the digests of the manifest. Otherwise calls `on_damage`
  // (SetOnDamage). RESOURCE_EXHAUSTED while the max number of replicas is being digested; other errors if the
  // replica cannot be read, or is gone.
  absl::StatusOr<bool> DigestAgain(const RequestContext& context, const std::string& replica_id);

 private:
  absl::StatusOr<std::string> ProveFiles(const v1::ProveRequest& request) const;
  absl::StatusOr<std::optional<v1::DamagedReplica>> FindDamage(const RequestContext& context,
                                                               const std::string& replica_id) const;
  // The memory behind a chunk of the replica, for people.
  std::string DescribeMemory(const ReplicaLease& lease, const ByteRange& chunk) const;

  const Options options_;
  OnDamage on_damage_;
  std::atomic<int> digesting_ = 0;
};

}  // namespace tensorcast::daemon
