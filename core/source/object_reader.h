// Objects: bytes under a URI, which stay the same as long as the object has the same version. There are three
// interfaces: a store finds an object or a folder by URI, a folder lists and opens its objects, and a reader
// reads one version of one object. Files (core/disk), buckets and model hubs implement them.
// core/testing/object_contract.h has the tests that each implementation passes.
//
// Reads are synchronous, since an ingest has threads that wait for their chunks anyway: up to
// ObjectTraits::max_concurrency of them read at the same time. An implementation that reads over a network
// retries within Read. It returns within the deadline of its context, and soon after the context was
// cancelled.
//
// Thread-safe, all of it.
//
// Errors: NOT_FOUND (no object at the URI), PERMISSION_DENIED, FAILED_PRECONDITION (the object has another
// version now), OUT_OF_RANGE (the object does not have the range), DATA_LOSS (its bytes cannot be read),
// UNAVAILABLE (nothing is known about the object: retry). Each error names the URI.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "core/artifact/origin.h"
#include "core/memory/host_pool.h"
#include "core/replica/transfer_report.h"

namespace tensorcast {

// How objects of one kind are best read, and properties that callers must know.
struct ObjectTraits {
  SourceType type = SourceType::kDisk;  // for reports, like the lane
  std::string_view lane = kDiskLane;
  int max_concurrency = 4;         // reads in flight; more gain nothing
  uint64_t read_bytes = 4u << 20;  // of one read
  bool traceable = true;           // false: a write may leave no trace in the version
  bool may_hang = false;           // a read may block after its context has ended
};

class ObjectReader {
 public:
  virtual ~ObjectReader() = default;

  // The identity of the version that is read. The reader never reads another version instead.
  virtual const ObjectIdentity& identity() const = 0;
  virtual const ObjectTraits& traits() const = 0;

  // Reads `needed` bytes at `offset` to the front of `destination`. May also write the rest of `destination`.
  virtual absl::Status Read(const RequestContext& context, uint64_t offset, HostSpan destination,
                            uint64_t needed) = 0;
  // FAILED_PRECONDITION when the object has changed since it was opened, so that earlier reads may be of
  // another version. Always OK if Read itself detects changes.
  virtual absl::Status CheckUnchanged(const RequestContext& context) = 0;

  // Reads are fastest if offset, address and size are multiples of this.
  virtual uint64_t alignment() const { return 1; }
  // Whether this host seems to hold the whole range in memory; cheap, and may be wrong.
  virtual bool SeemsCached(uint64_t /*offset*/, uint64_t /*bytes*/) const { return false; }
  // Reads what this host holds in memory at `offset`: the bytes read, 0 when there are none.
  virtual uint64_t ReadCached(uint64_t /*offset*/, HostSpan /*destination*/) { return 0; }

  // The file descriptor, if the object can be handed to another process; else -1.
  virtual int descriptor() const { return -1; }
  // Called for each chunk that begins in this object, with the result of its read, for the metrics of its
  // kind.
  virtual void NoteChunk(absl::Duration /*took*/, uint64_t /*bytes*/, bool /*ok*/) const {}
};

using ObjectReaders = std::vector<std::shared_ptr<ObjectReader>>;

// A folder of objects, or a prefix that ends at a '/'.
class ObjectFolder {
 public:
  virtual ~ObjectFolder() = default;
  // The names of the entries directly in the folder, ascending byte by byte.
  virtual absl::StatusOr<std::vector<std::string>> List(const RequestContext& context) const = 0;
  // The paths of all objects below the folder, ascending byte by byte, except paths with a part that begins
  // with '.'. If there are more than `max`, the list has more than `max` paths, but may lack some.
  virtual absl::StatusOr<std::vector<std::string>> ListBelow(const RequestContext& context,
                                                             size_t max) const = 0;
  // Opens an object by its path below the folder, without "." and "..". Never opens an object outside the
  // folder.
  virtual absl::StatusOr<std::shared_ptr<ObjectReader>> Open(const RequestContext& context,
                                                             const std::string& name) const = 0;
};

// The object or the folder at a URI; exactly one is set.
struct FoundObject {
  std::shared_ptr<ObjectReader> object;
  std::shared_ptr<ObjectFolder> folder;
};

class ObjectStore {
 public:
  virtual ~ObjectStore() = default;
  virtual absl::StatusOr<FoundObject> Find(const RequestContext& context, const std::string& uri) const = 0;
  // Opens an object that was opened before. FAILED_PRECONDITION when its version differs now.
  virtual absl::StatusOr<std::shared_ptr<ObjectReader>> OpenAgain(const RequestContext& context,
                                                                  const ObjectIdentity& object) const = 0;
};

// Whether a part of the path begins with '.': such a file does not belong to a model.
bool IsHiddenPath(std::string_view path);
// Reads exactly these bytes.
absl::StatusOr<std::string> ReadBytes(const RequestContext& context, ObjectReader& object, uint64_t offset,
                                      uint64_t bytes);
// OUT_OF_RANGE unless the object has these bytes.
absl::Status CheckObjectRange(const ObjectIdentity& object, uint64_t offset, uint64_t bytes);

}  // namespace tensorcast
