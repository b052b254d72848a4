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
#include "daemon/service/promised_digests.h"
#include "proto/daemon.pb.h"

namespace tensorcast::daemon {

struct OpenedModel {
  ArtifactKind kind = ArtifactKind::kTensors;
  ImageLayout layout;
  std::map<std::string, std::string> metadata;
  std::shared_ptr<SourceProvider> sources;  // of the whole image
  Origin origin;          // the objects, where this daemon can open them again by itself; else it names none
  std::string import_id;  // equal where the same objects are read in the same versions; empty: not known
  std::vector<PromisedObject> promised;      // objects of a hub with the digests that it promises
  std::shared_ptr<const Manifest> beside;    // found beside the model; null: there is none
  std::shared_ptr<SafetensorsModel> second;  // to be read again; null unless the request says `verify`
  std::shared_ptr<OpenedModel> files;        // beside the tensors, for a key to bind; null: none
};

// What an import reads from. With neither of the last two it is the daemon's own store.
struct ModelPlaces {
  std::shared_ptr<const ObjectStore> own;        // the daemon's: what it opens again is an origin
  std::shared_ptr<const ObjectStore> of_client;  // reads with the credentials of the client
  ForeignFds offered = {};                       // files that the client has open
};

// The model at the request's path, and where a key is bound the files beside it; or those that were offered,
// which may be files alone.
// INVALID_ARGUMENT names the file that is not a regular file or no model.
absl::StatusOr<OpenedModel> OpenModel(const RequestContext& context, ModelPlaces places,
                                      const v1::ImportArtifactRequest& request);

// Compares the objects with what was made of them: ABORTED where something wrote them meanwhile.
absl::Status ReadModelAgain(const RequestContext& context, std::shared_ptr<SafetensorsModel> model,
                            std::shared_ptr<const Manifest> manifest);

}  // namespace tensorcast::daemon
