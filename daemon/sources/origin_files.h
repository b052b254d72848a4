// The objects that an artifact was imported from. Unchanged objects are a source of the artifact's bytes.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "core/artifact/manifest.h"
#include "core/artifact/origin.h"
#include "core/source/chunk_source.h"
#include "core/source/object_extents.h"
#include "core/source/object_reader.h"

namespace tensorcast::daemon {

// Whether the error is about the files, and not only about the attempt to read them.
bool IsAboutOriginFiles(const absl::Status& error);

// The open objects of an origin, and the places of the artifact's image in them.
struct OriginExtents {
  ObjectReaders objects;
  std::vector<ObjectExtent> extents;
};

// Opens the objects of an origin, if they can be read here and have the same identities and the same layout
// as at the import. PERMISSION_DENIED when `store` does not open them. NOT_FOUND when they are gone.
// INVALID_ARGUMENT or FAILED_PRECONDITION when they have changed. DATA_LOSS when they have the same
// identities but another layout. Any other error says nothing about the objects.
absl::StatusOr<OriginExtents> OpenOriginExtents(const RequestContext& context, const ObjectStore& store,
                                                const Origin& origin, const Manifest& manifest);
// Like OpenOriginExtents, but returns a source. If `shares` nodes read the shared objects at the same time,
// this node is number `share`, counted from 0.
absl::StatusOr<std::unique_ptr<ChunkSource>> OpenOriginSource(const RequestContext& context,
                                                              const ObjectStore& store, const Origin& origin,
                                                              const Manifest& manifest, uint32_t share = 0,
                                                              uint32_t shares = 1);

// Checks an origin's objects before the global store counts them as a copy. Thread-safe.
class OriginChecker {
 public:
  // Whether this version of a shared object is immutable.
  using IsImmutable = std::function<bool(const ObjectIdentity&)>;

  OriginChecker(std::shared_ptr<const ObjectStore> store, IsImmutable is_immutable)
      : store_(std::move(store)), is_immutable_(std::move(is_immutable)) {}

  struct Finding {
    bool intact = false;
    bool is_mutable = false;  // shared objects that others may replace or delete; they were not checked
    std::string reason;       // why not intact
  };
  // Opens files as an ingest would, and reads their first bytes. Of shared objects, checks only that they
  // exist with this version and size. Objects that the object store refuses are not intact. An error means
  // that the check failed: RESOURCE_EXHAUSTED when several checks already hang on a disk that does not
  // answer; FAILED_PRECONDITION when this node cannot read the shared objects now.
  absl::StatusOr<Finding> Check(const RequestContext& context, const Origin& origin);

 private:
  absl::StatusOr<Finding> CheckShared(const RequestContext& context, const Origin& origin) const;

  const std::shared_ptr<const ObjectStore> store_;
  const IsImmutable is_immutable_;
  std::atomic<int> running_ = 0;
};

}  // namespace tensorcast::daemon
