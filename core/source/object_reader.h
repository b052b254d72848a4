// Objects: bytes under a URI. The bytes of one version never change. An ObjectStore finds an object or a
// folder by URI. An ObjectFolder lists and opens its objects. An ObjectReader reads one version of one
// object. core/disk implements these interfaces for files, and objects/ for buckets and model hubs. Each
// implementation passes the tests of core/testing/object_contract.h.
//
// Reads are synchronous. Up to ObjectTraits::max_concurrency reads run at the same time. An implementation
// that reads over a network retries within Read. Read returns before the deadline of its context, and soon
// after a cancellation, unless ObjectTraits::may_hang is true.
//
// All implementations are thread-safe.
//
// Errors:
// - NOT_FOUND: there is no object at the URI;
// - PERMISSION_DENIED: this process may not read the object;
// - FAILED_PRECONDITION: the object now has another version;
// - OUT_OF_RANGE: the object does not have the range;
// - DATA_LOSS: the object's bytes cannot be read;
// - UNAVAILABLE: the state of the object is unknown; retry later.
//
// Each error names the URI.
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

// How to read objects of one kind, and properties that callers must know.
struct ObjectTraits {
  SourceType type = SourceType::kDisk;  // for reports
  std::string_view lane = kDiskLane;    // for reports
  int max_concurrency = 4;              // concurrent reads; more do not increase the rate
  uint64_t read_bytes = 4u << 20;       // the best size of one read
  bool traceable = true;                // false: a write may leave the version unchanged
  bool may_hang = false;                // a read may block after its context has ended
};

class ObjectReader {
 public:
  virtual ~ObjectReader() = default;

  // The identity of the version that was opened. If the version changes, Read or CheckUnchanged fails.
  virtual const ObjectIdentity& identity() const = 0;
  virtual const ObjectTraits& traits() const = 0;

  // Reads `needed` bytes at `offset` to the front of `destination`. The rest of `destination` may be
  // overwritten.
  virtual absl::Status Read(const RequestContext& context, uint64_t offset, HostSpan destination,
                            uint64_t needed) = 0;
  // FAILED_PRECONDITION if the object has changed since it was opened: earlier reads may be from another
  // version. Always OK if Read itself detects changes.
  virtual absl::Status CheckUnchanged(const RequestContext& context) = 0;

  // Reads are fastest if offset, address and size are multiples of this number of bytes.
  virtual uint64_t alignment() const { return 1; }
  // Whether this host seems to have the whole range in memory. Cheap; the answer may be wrong.
  virtual bool SeemsCached(uint64_t /*offset*/, uint64_t /*bytes*/) const { return false; }
  // Reads bytes at `offset` that this host has in memory, and returns their number; 0 if there are none.
  virtual uint64_t ReadCached(uint64_t /*offset*/, HostSpan /*destination*/) { return 0; }

  // The file descriptor, if the object can be passed to another process; else -1. The reader still owns the
  // descriptor.
  virtual int descriptor() const { return -1; }
  // After each fetch an ObjectSource calls NoteChunk of the first of its objects, for metrics.
  virtual void NoteChunk(absl::Duration /*took*/, uint64_t /*bytes*/, bool /*ok*/) const {}
};

using ObjectReaders = std::vector<std::shared_ptr<ObjectReader>>;

// A folder, or a prefix of object names that ends with '/'.
class ObjectFolder {
 public:
  virtual ~ObjectFolder() = default;
  // The names of the entries directly in the folder, ascending byte by byte.
  virtual absl::StatusOr<std::vector<std::string>> List(const RequestContext& context) const = 0;
  // The paths of all objects below the folder, ascending byte by byte, except hidden paths (IsHiddenPath). If
  // there are more than `max`, the list has more than `max` paths but may be incomplete.
  virtual absl::StatusOr<std::vector<std::string>> ListBelow(const RequestContext& context,
                                                             size_t max) const = 0;
  // Opens an object by its path below the folder; no part of the path may be "." or "..". Never opens an
  // object outside the folder.
  virtual absl::StatusOr<std::shared_ptr<ObjectReader>> Open(const RequestContext& context,
                                                             const std::string& name) const = 0;
};

// The object or the folder at a URI; exactly one of them is set.
struct FoundObject {
  std::shared_ptr<ObjectReader> object;
  std::shared_ptr<ObjectFolder> folder;
};

class ObjectStore {
 public:
  virtual ~ObjectStore() = default;
  virtual absl::StatusOr<FoundObject> Find(const RequestContext& context, const std::string& uri) const = 0;
  // Opens an object that was opened before. FAILED_PRECONDITION if it now has another version.
  virtual absl::StatusOr<std::shared_ptr<ObjectReader>> OpenAgain(const RequestContext& context,
                                                                  const ObjectIdentity& object) const = 0;
};

// Whether a part of the path begins with '.'; such a file does not belong to a model.
bool IsHiddenPath(std::string_view path);
// Reads exactly these bytes. OUT_OF_RANGE if the object does not have them.
absl::StatusOr<std::string> ReadBytes(const RequestContext& context, ObjectReader& object, uint64_t offset,
                                      uint64_t bytes);
// OUT_OF_RANGE unless the object has these bytes.
absl::Status CheckObjectRange(const ObjectIdentity& object, uint64_t offset, uint64_t bytes);

}  // namespace tensorcast
