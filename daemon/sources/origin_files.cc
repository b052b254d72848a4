#include "daemon/sources/origin_files.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/safetensors/beside.h"
#include "core/safetensors/safetensors.h"
#include "core/source/object_source.h"

namespace tensorcast::daemon {
namespace {

// The objects, which are what was imported as far as their versions tell.
absl::StatusOr<ObjectReaders> OpenOrigin(const RequestContext& context, const ObjectStore& store,
                                         const Origin& origin) {
  if (origin.objects.empty()) return absl::FailedPreconditionError("the origin names no file");
  ObjectReaders objects;
  for (const ObjectIdentity& object : origin.objects) {
    TC_ASSIGN_OR_RETURN(objects.emplace_back(), store.OpenAgain(context, object));
  }
  return objects;
}

constexpr uint64_t kFirstBytes = 8;

absl::Status ReadFirstBytes(const RequestContext& context, const ObjectStore& store, const Origin& origin) {
  TC_ASSIGN_OR_RETURN(const ObjectReaders objects, OpenOrigin(context, store, origin));
  for (const std::shared_ptr<ObjectReader>& object : objects) {
    const uint64_t bytes = std::min(kFirstBytes, object->identity().bytes);
    TC_RETURN_IF_ERROR(ReadBytes(context, *object, 0, bytes).status());
  }
  return absl::OkStatus();
}

// `opened`: a SafetensorsModel, or FilesBeside.
template <class Opened>
absl::StatusOr<std::unique_ptr<ChunkSource>> SourceOf(Opened opened, const Origin& origin,
                                                      const Manifest& manifest) {
  if (!SameImage(opened.layout, manifest.layout())) {
    return absl::DataLossError(absl::StrCat(
        origin.objects[0].uri, " is no longer what was imported: its tensors changed; import it again"));
  }
  return MakeObjectSource(std::move(opened.objects), std::move(opened.extents),
                          manifest.layout().image_bytes);
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
  TC_ASSIGN_OR_RETURN(ObjectReaders objects, OpenOrigin(context, store, origin));
  if (manifest.kind() == ArtifactKind::kFiles) {
    std::vector<std::string> paths;
    for (const Tensor& file : manifest.layout().tensors) paths.push_back(file.name);
    TC_ASSIGN_OR_RETURN(FilesBeside files, FilesOf(std::move(objects), paths));
    return SourceOf(std::move(files), origin, manifest);
  }
  TC_ASSIGN_OR_RETURN(SafetensorsModel model, ReadSafetensors(context, objects));
  return SourceOf(std::move(model), origin, manifest);
}

absl::StatusOr<OriginChecker::Finding> OriginChecker::Check(const RequestContext& context,
                                                            const Origin& origin) {
  const absl::Cleanup ended = [this] { running_.fetch_sub(1); };
  if (const int others = running_.fetch_add(1); others >= kMaxChecksAtOnce) {
    return absl::ResourceExhaustedError(
        absl::StrCat(others, " checks of imported files are under way: does their disk still answer?"));
  }
  const absl::Status looked = ReadFirstBytes(context, *store_, origin);
  if (!looked.ok() && !IsAboutOriginFiles(looked)) return looked;
  return Finding{.intact = looked.ok(), .reason = std::string(looked.message())};
}

}  // namespace tensorcast::daemon
