#include "daemon/sources/origin_files.h"

#include <span>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/artifact/object_uri.h"
#include "core/disk/packed_format.h"
#include "core/safetensors/safetensors.h"
#include "core/source/object_source.h"

namespace tensorcast::daemon {
namespace {

// The model that the objects are now, which is the imported one as far as their versions tell.
absl::StatusOr<SafetensorsModel> OpenOrigin(const RequestContext& context, const ObjectStore& store,
                                            const Origin& origin) {
  if (origin.objects.empty()) return absl::FailedPreconditionError("the origin names no file");
  ObjectReaders objects;
  for (const ObjectIdentity& object : origin.objects) {
    TC_ASSIGN_OR_RETURN(objects.emplace_back(), store.OpenAgain(context, object));
  }
  return ReadSafetensors(context, objects);
}

// Whether it is a packed file of an archive, which its name tells.
bool IsPacked(const Origin& origin) {
  if (origin.objects.size() != 1) return false;
  const std::string& uri = origin.objects[0].uri;
  return IsObjectUri(uri) && !ArtifactIdOfFileName(uri.substr(uri.rfind('/') + 1)).empty();
}

// The image of a packed file: one extent of one object. The layout stays empty.
absl::StatusOr<SafetensorsModel> OpenPacked(const RequestContext& context, const ObjectStore& store,
                                            const Origin& origin) {
  SafetensorsModel model;
  TC_ASSIGN_OR_RETURN(model.objects.emplace_back(), store.OpenAgain(context, origin.objects[0]));
  TC_ASSIGN_OR_RETURN(const std::string bytes, ReadBytes(context, *model.objects[0], 0, kPackedHeaderBytes));
  TC_ASSIGN_OR_RETURN(const PackedHeader header,
                      DecodePackedHeader(std::as_bytes(std::span(bytes)), origin.objects[0].bytes));
  model.extents.push_back({.object_offset = header.image_offset, .bytes = header.image_bytes});
  return model;
}

constexpr int kMaxChecksAtOnce = 8;

}  // namespace

bool IsAboutOriginFiles(const absl::Status& error) {
  return absl::IsNotFound(error) || absl::IsPermissionDenied(error) || absl::IsInvalidArgument(error) ||
         absl::IsFailedPrecondition(error);
}

absl::StatusOr<std::unique_ptr<ChunkSource>> OpenOriginSource(const RequestContext& context,
                                                              const ObjectStore& store, const Origin& origin,
                                                              const Manifest& manifest) {
  const bool packed = IsPacked(origin);
  TC_ASSIGN_OR_RETURN(SafetensorsModel model,
                      packed ? OpenPacked(context, store, origin) : OpenOrigin(context, store, origin));
  // The chunks of a pack are compared with the manifest as those of any source; here that they are as many.
  if (packed ? model.extents[0].bytes != manifest.layout().image_bytes
             : !SameImage(model.layout, manifest.layout())) {
    return absl::DataLossError(absl::StrCat(
        origin.objects[0].uri, " is no longer what was imported: its tensors changed; import it again"));
  }
  return MakeObjectSource(std::move(model.objects), std::move(model.extents), manifest.layout().image_bytes);
}

absl::StatusOr<OriginChecker::Finding> OriginChecker::Check(const RequestContext& context,
                                                            const Origin& origin) {
  const absl::Cleanup ended = [this] { running_.fetch_sub(1); };
  if (const int others = running_.fetch_add(1); others >= kMaxChecksAtOnce) {
    return absl::ResourceExhaustedError(
        absl::StrCat(others, " checks of imported files are under way: does their disk still answer?"));
  }
  const absl::Status looked = IsPacked(origin) ? OpenPacked(context, *store_, origin).status()
                                               : OpenOrigin(context, *store_, origin).status();
  if (!looked.ok() && !IsAboutOriginFiles(looked)) return looked;
  return Finding{.intact = looked.ok(), .reason = std::string(looked.message())};
}

}  // namespace tensorcast::daemon
