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
#include "core/artifact/origin.h"
#include "core/safetensors/safetensors.h"
#include "core/source/chunk_source.h"
#include "core/source/object_reader.h"
#include "proto/daemon.pb.h"

namespace tensorcast::daemon {

struct OpenedModel {
  ArtifactKind kind = ArtifactKind::kTensors;
  ImageLayout layout;
  std::map<std::string, std::string> metadata;
  std::shared_ptr<SourceProvider> sources;  // of the whole image
  Origin origin;  // the objects, where this daemon can open them again by itself; else it names none
  std::shared_ptr<const Manifest> beside;    // found beside the model; null: there is none
  std::shared_ptr<SafetensorsModel> second;  // to be read again; null unless the request says `verify`
  std::shared_ptr<OpenedModel> files;        // beside the tensors, for a key to bind; null: none
};

// The model at the request's path in the store, and where a key is bound the files beside it; or the files
// that a client has open and offered, whatever the store has. INVALID_ARGUMENT names the file that is not a
// regular file or no model.
absl::StatusOr<OpenedModel> OpenModel(const RequestContext& context, std::shared_ptr<const ObjectStore> store,
                                      const v1::ImportArtifactRequest& request, ForeignFds offered);

// Compares the objects with what was made of them: ABORTED where something wrote them meanwhile.
absl::Status ReadModelAgain(const RequestContext& context, std::shared_ptr<SafetensorsModel> model,
                            std::shared_ptr<const Manifest> manifest);

}  // namespace tensorcast::daemon
