// Checks stored imports against the SHA-256 that a model hub, or the hub's local cache, promises for a file.
// The hub names large files by this digest, and the cache names its blobs by it. The bytes are digested in
// the image, so only an object's header, which the image does not have, is read a second time. Functions
// only, thread-safe.
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
  std::vector<ObjectExtent> extents;  // where its bytes are in the image, by ascending offset in the object
};

// The objects for which a digest is promised.
std::vector<PromisedObject> FindPromises(const ObjectReaders& objects,
                                         const std::vector<ObjectExtent>& extents);

// DATA_LOSS, naming the object, when its bytes do not match the promised digest. If the replica is not in
// host memory, the objects are read again instead. Blocks; several objects are digested at once.
absl::Status CheckPromises(const RequestContext& context, const std::vector<PromisedObject>& promised,
                           const ReplicaLease& lease);

}  // namespace tensorcast::daemon
