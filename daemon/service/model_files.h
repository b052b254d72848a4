// The files of an import: opened, described, and what of them the global store is told. The files belong to a
// client, and so may the file system below them (FUSE, NFS), which may hang: everything that waits for it is
// done on threads of its own (base/aside.h), and the callers' threads go on when their contexts end.
// Functions only, thread-safe.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/posix/foreign_fds.h"
#include "base/request_context.h"
#include "core/artifact/layout.h"
#include "core/artifact/manifest.h"
#include "core/disk/disk_source.h"
#include "core/disk/import_roots.h"
#include "core/source/chunk_source.h"
#include "proto/daemon.pb.h"
#include "proto/types.pb.h"

namespace tensorcast::daemon {

// Files that are to be read a second time, and what the model's metadata calls them.
struct SecondReading {
  std::vector<OpenedFile> files;
  std::vector<std::string> shards;
};

struct OpenedModel {
  ImageLayout layout;
  std::map<std::string, std::string> metadata;
  std::shared_ptr<SourceProvider> sources;  // of the whole image
  ChunkSource* source = nullptr;            // that one, until `sources` has given it
  v1::Origin origin;  // the files, where this daemon can open them again by itself; else it names none
  std::shared_ptr<SecondReading> second;  // null unless the request says `verify`
};

// The model at the request's path beneath the roots; or the files that a client has open and offered,
// whatever the roots are. INVALID_ARGUMENT names the file that is not a regular file or no model.
absl::StatusOr<OpenedModel> OpenModel(const RequestContext& context, const ImportRoots& roots,
                                      const v1::ImportArtifactRequest& request, ForeignFds offered);

// Compares the files with what was made of them: ABORTED where something wrote them meanwhile.
absl::Status ReadModelAgain(const RequestContext& context, std::shared_ptr<SecondReading> files,
                            std::shared_ptr<const Manifest> manifest);

}  // namespace tensorcast::daemon
