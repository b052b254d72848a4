// Opens and describes the files of an import, and makes their origin for the global store. Each function
// returns when its context ends, even if the files' file system hangs. Thread-safe functions.
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
  Origin origin;          // the objects, if this daemon can open them again by itself; else empty
  std::string import_id;  // equal for imports of the same objects in the same versions; empty: not known
  std::vector<PromisedObject> promised;      // objects of a hub, with the digests that the hub promises
  std::shared_ptr<const Manifest> beside;    // manifest found beside the model; null: none
  std::shared_ptr<SafetensorsModel> second;  // for ReadModelAgain; null unless the request says `verify`
  std::shared_ptr<OpenedModel> files;        // the files beside the tensors, for a key to bind; null: none
};

// Where an import reads from: `offered` if it is not empty, else `of_client` if it is not null, else `own`.
struct ModelPlaces {
  std::shared_ptr<const ObjectStore> own;        // the daemon's store; the import has an origin only if this
                                                 // store can open the objects again
  std::shared_ptr<const ObjectStore> of_client;  // reads with the client's credentials
  ForeignFds offered = {};                       // files that the client has open
};

// Opens the files that the client offers; they may have no tensors. Without offered files, opens the model at
// the request's path, and the files beside the model if the request binds a key without `no_files`.
// INVALID_ARGUMENT, naming the file, for one that is not regular, not a model, or not named in valid UTF-8.
absl::StatusOr<OpenedModel> OpenModel(const RequestContext& context, ModelPlaces places,
                                      const v1::ImportArtifactRequest& request);

// Reads the objects again. ABORTED if the objects differ from the manifest.
absl::Status ReadModelAgain(const RequestContext& context, std::shared_ptr<SafetensorsModel> model,
                            std::shared_ptr<const Manifest> manifest);

}  // namespace tensorcast::daemon
