// The SHA-256 that a model hub, or its cache, promises of a file, checked on what an import stored: the hub
// names large files by it, and so does the name of a blob in the cache. Each byte is digested where it lies
// in the image, so no object is read a second time but for its header, which the image does not have.
// Functions only, thread-safe.
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
  std::vector<ObjectExtent> extents;  // of its bytes in the image, ascending in the object
};

// Those of the objects that a digest is promised of.
std::vector<PromisedObject> FindPromises(const ObjectReaders& objects,
                                         const std::vector<ObjectExtent>& extents);

// DATA_LOSS, naming the object, when its bytes are not what was promised. A replica elsewhere than in host
// memory is not read: there the objects are read again. Blocks; several objects are digested at once.
absl::Status CheckPromises(const RequestContext& context, const std::vector<PromisedObject>& promised,
                           const ReplicaLease& lease);

}  // namespace tensorcast::daemon
