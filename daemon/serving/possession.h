// What this node shows of the bytes that it has (proto/possession.proto): digests of ranges under a nonce,
// and whether a replica matches its manifest. Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/device/device_runtime.h"
#include "core/engine/engine.h"
#include "core/source/chunk_source.h"
#include "daemon/serving/served_replica.h"
#include "proto/possession.pb.h"

namespace tensorcast::daemon {

class Possession {
 public:
  // The files of this node that an artifact was imported from.
  struct Files {
    std::unique_ptr<ChunkSource> source;
    uint64_t image_bytes = 0;
  };
  struct Options {
    StoreEngine* engine = nullptr;  // must outlive it, like the devices
    DeviceRuntime* devices = nullptr;
    std::shared_ptr<StagingBuffers> staging;
    absl::Duration patience = absl::Milliseconds(500);  // for a staging buffer, and for a disk
    std::function<absl::StatusOr<Files>(const v1::Origin& origin, const std::string& artifact_id)>
        open_origin = nullptr;  // null: it has no files
  };

  explicit Possession(Options options) : options_(std::move(options)) {}

  // From this node's own bytes, a BLAKE3 digest of 32 bytes. Of files it reads the disk. INVALID_ARGUMENT for
  // more ranges than are allowed, or ranges outside the image; FAILED_PRECONDITION for a replica of another
  // artifact, or one that is not whole; NOT_FOUND for one that is gone.
  absl::StatusOr<std::string> Prove(const v1::ProveRequest& request) const;

  // Whether each chunk has the digests of the manifest. Where not, the replica is evicted as soon as its
  // leases end, and takes no new ones, pinned or not. RESOURCE_EXHAUSTED while as many as are allowed at once
  // are digested; other errors where it cannot be read, or is gone.
  absl::StatusOr<bool> DigestAgain(const RequestContext& context, const std::string& replica_id);

 private:
  absl::StatusOr<std::string> ProveFiles(const v1::ProveRequest& request) const;
  absl::StatusOr<bool> Matches(const RequestContext& context, const std::string& replica_id) const;

  const Options options_;
  std::atomic<int> digesting_ = 0;
};

}  // namespace tensorcast::daemon
