// A manifest file beside its model: "model.tcmanifest" beside "model.safetensors" or
// "model.safetensors.index.json". It has the manifest's canonical bytes. An import that finds such a file
// knows the artifact before it reads a tensor, and fails if a chunk does not match the manifest. Stateless;
// thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "core/artifact/manifest.h"
#include "core/safetensors/safetensors.h"
#include "core/source/object_reader.h"

namespace tensorcast {

inline constexpr std::string_view kManifestExtension = ".tcmanifest";

// The URI of the manifest beside the model at `uri` (a .safetensors file or a folder).
std::string ManifestUriOf(std::string_view uri);

// Reads the whole model and digests it, as an import does. Starts a few threads.
absl::StatusOr<std::shared_ptr<const Manifest>> MakeManifest(const RequestContext& context,
                                                             const SafetensorsModel& model);

// The manifest beside the model that was opened at `uri`. Null if no such file exists, or if the store
// refuses to open the file. FAILED_PRECONDITION if the manifest does not describe the model's tensors and
// metadata.
absl::StatusOr<std::shared_ptr<const Manifest>> FindManifestBeside(const RequestContext& context,
                                                                   const ObjectStore& store,
                                                                   std::string_view uri,
                                                                   const SafetensorsModel& model);

// Compares the manifest `made` of an imported model with the manifest file `beside` of the model at `uri`.
// FAILED_PRECONDITION, naming the first chunk that differs.
absl::Status CheckManifestBeside(std::string_view uri, const Manifest& beside, const Manifest& made);

}  // namespace tensorcast
