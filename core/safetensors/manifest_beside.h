// The manifest of a model that lies beside it: "model.tcmanifest" beside "model.safetensors" or
// "model.safetensors.index.json", with the manifest's canonical bytes. An import that finds one knows the
// artifact before it reads a tensor, and is refused when a chunk is not what the manifest says. Functions
// only, thread-safe.
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

// Where the manifest of the model at `uri`, a .safetensors file or a folder, lies.
std::string ManifestUriOf(std::string_view uri);

// Reads the whole model and digests it, as an import does. Starts a few threads of its own.
absl::StatusOr<std::shared_ptr<const Manifest>> MakeManifest(const RequestContext& context,
                                                             const SafetensorsModel& model);

// The manifest beside the model that was opened at `uri`; null where there is none, or the store does not
// open it. FAILED_PRECONDITION where it is not of these tensors and this metadata.
absl::StatusOr<std::shared_ptr<const Manifest>> FindManifestBeside(const RequestContext& context,
                                                                   const ObjectStore& store,
                                                                   std::string_view uri,
                                                                   const SafetensorsModel& model);

// FAILED_PRECONDITION, naming the first chunk that differs, unless the model at `uri` became what the
// manifest beside it says.
absl::Status CheckManifestBeside(std::string_view uri, const Manifest& beside, const Manifest& made);

}  // namespace tensorcast
