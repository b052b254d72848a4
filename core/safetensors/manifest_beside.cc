#include "core/safetensors/manifest_beside.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "core/artifact/digest.h"
#include "core/source/digest_chunks.h"
#include "core/source/object_source.h"

namespace tensorcast {
namespace {

absl::Status Unfit(std::string_view uri, std::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat("import with the manifest ", uri, ": ", why,
                   "; remove this manifest, or write a new one with `tensorcast manifest`"));
}

constexpr uint64_t kMaxManifestBytes = uint64_t{1} << 30;

}  // namespace

absl::StatusOr<std::shared_ptr<const Manifest>> MakeManifest(const RequestContext& context,
                                                             const SafetensorsModel& model) {
  TC_ASSIGN_OR_RETURN(const std::unique_ptr<ChunkSource> source,
                      MakeObjectSource(model.objects, model.extents, model.layout.image_bytes));
  std::vector<ChunkDigests> digests(model.layout.chunk_count());
  TC_RETURN_IF_ERROR(DigestChunks(context, *source, model.layout, /*with_blake3=*/true,
                                  [&digests](uint32_t chunk, ChunkDigests digest) {
                                    digests[chunk] = std::move(digest);
                                    return true;
                                  }));
  // After the last read: a file that was written to meanwhile must not get a manifest.
  for (const std::shared_ptr<ObjectReader>& object : model.objects) {
    TC_RETURN_IF_ERROR(object->CheckUnchanged(context));
  }
  return Manifest::Create(model.layout, std::move(digests), model.metadata);
}

std::string ManifestUriOf(std::string_view uri) {
  if (absl::ConsumeSuffix(&uri, ".safetensors")) return absl::StrCat(uri, kManifestExtension);
  return absl::StrCat(absl::StripSuffix(uri, "/"), "/model", kManifestExtension);
}

absl::StatusOr<std::shared_ptr<const Manifest>> FindManifestBeside(const RequestContext& context,
                                                                   const ObjectStore& store,
                                                                   std::string_view uri,
                                                                   const SafetensorsModel& model) {
  const std::string beside = ManifestUriOf(uri);
  const absl::StatusOr<FoundObject> found = store.Find(context, beside);
  if (!found.ok()) {
    // A store may answer "denied" for an object that does not exist, to a client that may not list. A path
    // that cannot be opened as an object is not a manifest either.
    const bool none = absl::IsNotFound(found.status()) || absl::IsPermissionDenied(found.status()) ||
                      absl::IsInvalidArgument(found.status());
    if (none) return nullptr;
    return found.status();
  }
  if (found->object == nullptr) return nullptr;
  const uint64_t bytes = found->object->identity().bytes;
  if (bytes > kMaxManifestBytes) {
    return Unfit(beside, absl::StrCat("the file has ", bytes, " bytes, and a manifest may have at most ",
                                      kMaxManifestBytes, " bytes"));
  }
  TC_ASSIGN_OR_RETURN(const std::string text, ReadBytes(context, *found->object, 0, bytes));
  absl::StatusOr<std::shared_ptr<const Manifest>> manifest = Manifest::Decode(text);
  if (!manifest.ok()) {
    // Whole and in parentheses: a cut at a ';' would cut the name of a tensor that has one.
    return Unfit(beside, absl::StrCat("the manifest cannot be decoded (", manifest.status().message(), ")"));
  }
  // The headers are compared now, and the chunks as the import reads them.
  if (!SameImage((*manifest)->layout(), model.layout) || (*manifest)->metadata() != model.metadata) {
    return Unfit(beside, "the manifest belongs to another model");
  }
  return manifest;
}

absl::Status CheckManifestBeside(std::string_view uri, const Manifest& beside, const Manifest& made) {
  if (beside.id() == made.id()) return absl::OkStatus();
  const std::vector<ChunkDigests>& told = beside.digests();
  size_t chunk = 0;
  // The first chunk that differs is named, since a user can compare that part of the file.
  while (chunk < told.size() && chunk < made.digests().size() && told[chunk] == made.digests()[chunk]) {
    ++chunk;
  }
  return Unfit(ManifestUriOf(uri), absl::StrCat("the model's chunk ", chunk, " does not match the manifest"));
}

}  // namespace tensorcast
