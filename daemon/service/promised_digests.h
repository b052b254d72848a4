// Checks stored imports against the SHA-256 that a model hub, or the hub's local cache, promises for a file.
// Thread-safe functions.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/request_context.h"
#include "core/replicas/replica_lease.h"
#include "core/source/object_extents.h"
#include "core/source/object_reader.h"

namespace tensorcast::daemon {

struct PromisedObject {
  std::shared_ptr<ObjectReader> object;
  std::vector<ObjectExtent> extents;  // the object's bytes in the image, by ascending offset in the object
};

// The objects for which a digest is promised.
std::vector<PromisedObject> FindPromises(const ObjectReaders& objects,
                                         const std::vector<ObjectExtent>& extents);

// DATA_LOSS, naming the object, when the object's bytes in the replica do not match the promised digest.
// Reads the objects again if the replica is not in host memory. Blocks.
absl::Status CheckPromises(const RequestContext& context, const std::vector<PromisedObject>& promised,
                           const ReplicaLease& lease);

}  // namespace tensorcast::daemon
