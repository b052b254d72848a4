// The objects that an artifact was imported from: a source of its bytes for as long as they are what was
// imported.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "core/artifact/manifest.h"
#include "core/artifact/origin.h"
#include "core/source/chunk_source.h"
#include "core/source/object_reader.h"

namespace tensorcast::daemon {

// Whether such an error is about the files, or only about the attempt to look at them.
bool IsAboutOriginFiles(const absl::Status& error);

// The objects of an origin, when they can be read here and still are what was imported: of the same
// identities, and of the same layout. PERMISSION_DENIED (the store does not open them), INVALID_ARGUMENT or
// FAILED_PRECONDITION when they are not, DATA_LOSS when they no longer give the same layout, though they have
// the same identities; any other error tells nothing of them. `share` of `shares`: of the nodes that read
// shared objects at once, which this one is.
absl::StatusOr<std::unique_ptr<ChunkSource>> OpenOriginSource(const RequestContext& context,
                                                              const ObjectStore& store, const Origin& origin,
                                                              const Manifest& manifest, uint32_t share = 0,
                                                              uint32_t shares = 1);

// Looks at such objects for others: the global store asks before it takes them for a copy. Thread-safe.
class OriginChecker {
 public:
  // Whether a shared object stays as it is in the version that was read.
  using IsImmutable = std::function<bool(const ObjectIdentity&)>;

  OriginChecker(std::shared_ptr<const ObjectStore> store, IsImmutable is_immutable)
      : store_(std::move(store)), is_immutable_(std::move(is_immutable)) {}

  struct Finding {
    bool intact = false;
    bool is_mutable = false;  // shared objects that others may replace or delete; they were not looked at
    std::string reason;       // why not
  };
  // Opens files as a load would, and reads their first bytes; of shared objects it asks for no more than that
  // they are there in this version and of this size. What the store does not open is not intact. An error
  // says that this could not be found out: RESOURCE_EXHAUSTED when several checks hang already, on a disk
  // that does not answer; FAILED_PRECONDITION when this node cannot read the shared objects now.
  absl::StatusOr<Finding> Check(const RequestContext& context, const Origin& origin);

 private:
  absl::StatusOr<Finding> CheckShared(const RequestContext& context, const Origin& origin) const;

  const std::shared_ptr<const ObjectStore> store_;
  const IsImmutable is_immutable_;
  std::atomic<int> running_ = 0;
};

}  // namespace tensorcast::daemon
