// The files that an artifact was imported from, on this node: a source of its bytes for as long as they are
// what was imported.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/artifact/manifest.h"
#include "core/disk/file_io.h"
#include "core/disk/import_roots.h"
#include "core/source/chunk_source.h"
#include "proto/types.pb.h"

namespace tensorcast::daemon {

// Whether such an error is about the files, or only about the attempt to look at them.
bool IsAboutOriginFiles(const absl::Status& error);

v1::Origin::File DescribeOriginFile(const FileIdentity& file);
FileIdentity IdentityOfOriginFile(const v1::Origin::File& file);

// The files of an origin on this node, when they can be read and still are what was imported: of the same
// identities, and of the same layout. PERMISSION_DENIED (they cannot be opened beneath the roots),
// INVALID_ARGUMENT or FAILED_PRECONDITION when they are not, DATA_LOSS when they no longer give the same
// layout, though they have the same identities; any other error tells nothing of them.
absl::StatusOr<std::unique_ptr<ChunkSource>> OpenOriginSource(const ImportRoots& roots,
                                                              const v1::Origin& origin,
                                                              const Manifest& manifest);

// Looks at such files for others: the global store asks before it takes them for a copy. Thread-safe.
class OriginChecker {
 public:
  // `roots` must outlive it.
  explicit OriginChecker(const ImportRoots* roots) : roots_(*roots) {}

  struct Finding {
    bool intact = false;
    std::string reason;  // why not
  };
  // Opens the files as a load would, and reads their headers. What lies outside the import roots is not
  // looked at, and not intact. An error says that this could not be found out: RESOURCE_EXHAUSTED when
  // several checks hang already, on a disk that does not answer.
  absl::StatusOr<Finding> Check(const v1::Origin& origin);

 private:
  const ImportRoots& roots_;
  std::atomic<int> running_ = 0;
};

}  // namespace tensorcast::daemon
